"""The memory of this process in RAM, as the system reports it."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
"""Of Linux."""


def resident_bytes() -> int:
    """The memory that is in RAM now; the most so far where the system does not report it; 0 if it reports neither."""
    return _reported("VmRSS:") or _most()


def peak_bytes() -> int:
    """The most memory that was in RAM so far; 0 if the system does not report it."""
    return _reported("VmHWM:") or _most()


def _reported(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def _most() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
