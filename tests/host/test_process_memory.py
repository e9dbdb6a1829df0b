"""The memory of this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phlox.host import process_memory
from phlox.host.process_memory import peak_bytes, resident_bytes

STATUS = Path("/proc/self/status")


def test_it_is_what_the_system_says() -> None:
    if not STATUS.exists():
        pytest.skip("needs /proc")
    stated = int(re.search(r"VmRSS:\s+(\d+) kB", STATUS.read_text())[1]) * 1024  # pyright: ignore[reportOptionalSubscript]
    assert abs(resident_bytes() - stated) < 0.05 * stated and peak_bytes() >= 0.95 * stated


def test_a_system_that_says_only_the_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    monkeypatch.setattr(process_memory, "_STATUS", tmp_path / "none")
    assert resident_bytes() == peak_bytes() > 1e6
