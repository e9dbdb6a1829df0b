"""Does MKL, by which PyTorch multiplies matrices, use AVX-512 on this CPU?"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

_INTELS = "GenuineIntel"
_SAID = Path("/proc/cpuinfo")
"""Where Linux says who made the processor; Windows does in what Python calls its name."""


@cache
def has_idle_vectors() -> bool:
    """Has it AVX-512, of which the library for products, MKL, makes no use?

    MKL takes AVX-512 on Intel's processors, and on those of others that have it, AVX2: half of what they can do. It is
    a rule, and nothing that is measured: training that goes on in another process would not always go on bit for bit.
    """
    return torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_intels()


def is_intels() -> bool:
    """Did Intel make the processor? Where nobody says, too, it is taken for one of theirs."""
    try:
        said = _SAID.read_text("utf-8", errors="replace")
    except OSError:
        said = platform.processor()
    return _INTELS in said or "Authentic" not in said
