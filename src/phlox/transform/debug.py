"""The old name of `phlox.debug`."""

from __future__ import annotations

from typing import Any
from warnings import warn

from phlox.backend.registry import load

_MOVED = ("Change", "Recompile", "checks", "explain_recompiles", "find_nonfinite")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"`phlox.transform.debug.{name}` is `phlox.debug.{name}` now; the old name goes with 0.3.0"
    warn(text, DeprecationWarning, stacklevel=2)
    return load(f"phlox.debug:{name}")  # by location, because it stands on a higher floor
