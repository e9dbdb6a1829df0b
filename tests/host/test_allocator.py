"""The memory of freed arrays: kept or given back, by glibc alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phlox
from phlox.backend import settings
from phlox.host import allocator
from phlox.host.threads import VARIABLES

OWN = {*settings.VARIABLES.values(), settings.FILE, *VARIABLES, "XLA_FLAGS"}

CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}

GLIBC = allocator.has_glibc()


def run(program: str, *warnings: str, **variables: str) -> str:
    """What the program prints in a process of its own with these variables."""
    environment = {**CLEAN, "PYTHONPATH": str(Path(phlox.__path__[0]).parent), **variables}
    flags = warnings or ("-W", "error")
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


MEMORY = """
import phlox, pathlib
import numpy as np
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
for _ in range(3):
    x = np.ones(1 << 24)
    del x
print((resident() - before) >> 20 > 100)
"""


@pytest.mark.skipif(not GLIBC, reason="what is set is glibc's")
def test_freed_memory_is_kept_or_given_back() -> None:
    assert run(MEMORY, PHLOX_ALLOCATOR="keep") == "True"
    assert run(MEMORY, PHLOX_ALLOCATOR="system") == "False"


def test_another_library_of_c_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        def mallopt(self, *_: object) -> int:
            raise AssertionError("means something else there")

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: Musl())
    assert not allocator.keep_memory()
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not allocator.keep_memory()
