"""Does MKL, by which PyTorch multiplies matrices, use AVX-512 on this CPU?"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

_INTELS = "GenuineIntel"
_CPUINFO = Path("/proc/cpuinfo")
"""The file in which Linux names the CPU's vendor; on Windows, `platform.processor()` names it."""


@cache
def has_idle_vectors() -> bool:
    """Does the CPU have AVX-512 that MKL, PyTorch's library for matrix products, does not use?

    MKL uses AVX-512 only on Intel's CPUs, and AVX2 on others, at half their speed. This is a fixed rule and not
    measured, so that a training that resumes in another process gives the same bits.
    """
    return torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_intels()


def is_intels() -> bool:
    """Did Intel make the CPU? Yes, if it is unknown."""
    try:
        text = _CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        text = platform.processor()
    return _INTELS in text or "Authentic" not in text
