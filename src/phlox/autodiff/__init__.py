"""Floor 2: automatic differentiation as a decorator of backends."""

from __future__ import annotations

from phlox.autodiff.backward import backpropagate
from phlox.autodiff.decorator import Autodiff
from phlox.autodiff.tape import Node, Tracked

__all__ = ["Autodiff", "Node", "Tracked", "backpropagate"]
