"""How many threads the engines compute with. Each reads it from a variable of its own when it starts, or is told."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

_OBEYED: dict[str, tuple[str, ...]] = {
    "numpy": ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
    "torch": ("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    "jax": ("NPROC",),  # as many as XLA takes for the processors of the machine
}
"""The variables that each engine reads when it starts."""

VARIABLES = tuple({name: None for names in _OBEYED.values() for name in names})
"""All of them."""

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
"""What OpenBLAS calls its function, by who built it."""


def set_threads(number: int, environment: MutableMapping[str, str]) -> None:
    """Let every engine compute with this many threads; a variable of its own, where it is set, is obeyed instead."""
    given = {name for name in VARIABLES if environment.get(name)}
    told = [engine for engine, names in _OBEYED.items() if not given.intersection(names)]
    for engine in told:
        environment[_OBEYED[engine][0]] = str(number)
    # Those that have started have read their variables.
    if "numpy" in told and "numpy" in sys.modules:
        _tell_openblas(number)
    if "torch" in told and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)


def _tell_openblas(number: int) -> None:
    """Tell the OpenBLAS that this process has loaded, where the system can say which that is."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for path in {line.split(maxsplit=5)[-1] for line in mapped.splitlines() if "openblas" in line}:
        try:
            library = ctypes.CDLL(path, mode=getattr(os, "RTLD_NOLOAD", 0))
        except OSError:
            continue
        setter = next((getattr(library, name) for name in _SETTERS if hasattr(library, name)), None)
        if setter is not None:
            setter.argtypes, setter.restype = [ctypes.c_int], None
            setter(number)
