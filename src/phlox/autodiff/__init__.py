"""Floor 2: automatic differentiation as a decorator of backends."""

from __future__ import annotations

from typing import Any
from warnings import warn

from phlox.autodiff.decorator import Autodiff
from phlox.autodiff.tape import Node, Tracked, backpropagate

__all__ = ["Autodiff", "Node", "Tracked", "backpropagate"]


def __getattr__(name: str) -> Any:
    if name == "walk_back":
        text = "`phlox.autodiff.walk_back` is called `backpropagate` now; the old name goes with 0.3.0"
        warn(text, DeprecationWarning, stacklevel=2)
        return backpropagate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
