"""Floor 2: automatic differentiation as a decorator of backends."""

from __future__ import annotations

from phlox.autodiff.decorator import Autodiff
from phlox.autodiff.tape import Node, Tracked, backpropagate

__all__ = ["Autodiff", "Node", "Tracked", "backpropagate"]
