"""Of which processors PyTorch's library for products leaves vectors idle."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from phlox.backend.torch.cpu import features


@pytest.mark.parametrize(
    ("capability", "has_mkl", "is_intels", "are_idle"),
    [
        ("AVX512", True, False, True),
        ("AVX512", True, True, False),
        ("AVX2", True, False, False),
        ("AVX512", False, False, False),
    ],
)
def test_which_processors_have_idle_vectors(
    capability: str, has_mkl: bool, is_intels: bool, are_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(features, "is_intels", lambda: is_intels)
    assert features.has_idle_vectors.__wrapped__() == are_idle


@pytest.mark.parametrize(
    ("said", "is_intels"),
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n", True),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\n", False),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", True),
    ],
)
def test_who_made_the_processor(said: str, is_intels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "cpuinfo"
    text.write_text(said, "utf-8")
    monkeypatch.setattr(features, "_CPUINFO", text)
    assert features.is_intels() == is_intels
    monkeypatch.setattr(features, "_CPUINFO", tmp_path / "there is none")
    monkeypatch.setattr(platform, "processor", lambda: said)
    assert features.is_intels() == is_intels
