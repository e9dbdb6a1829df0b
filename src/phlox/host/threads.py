"""The engines' number of threads: set by environment variables, which engines read at their start, or by calls."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, MutableMapping

_ENGINE_VARIABLES: dict[str, tuple[str, ...]] = {
    "numpy": ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
    "torch": ("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    "jax": ("NPROC",),  # XLA reads it as the number of processors
}
"""The environment variables that each engine reads when it starts."""

VARIABLES = tuple({name: None for names in _ENGINE_VARIABLES.values() for name in names})
"""All of them."""

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
"""The names of OpenBLAS's function in the builds of different distributors."""


def cores() -> int:
    """The number of processors that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def own_threads(engine: str) -> int | None:
    """The number of threads in the engine's own environment variables; None if they say none."""
    return next((int(n) for n in map(os.environ.get, _ENGINE_VARIABLES[engine]) if n and n.isdecimal()), None) or None


def set_threads(number: int, environment: MutableMapping[str, str]) -> None:
    """Let every engine compute with this number of threads, except engines whose own variable is set."""
    already_set = {name for name in VARIABLES if environment.get(name)}
    unset = [engine for engine, names in _ENGINE_VARIABLES.items() if not already_set.intersection(names)]
    for engine in unset:
        environment[_ENGINE_VARIABLES[engine][0]] = str(number)
    # Engines that have started do not read the variables again.
    if "numpy" in unset and "numpy" in sys.modules:
        _set_openblas_threads(number)
    if "torch" in unset and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)


def _set_openblas_threads(number: int) -> None:
    """Set it in the OpenBLAS that this process has loaded, where the system says which that is."""
    from pathlib import Path  # slow to import, and seldom needed

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
