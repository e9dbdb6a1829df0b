"""Layers of other libraries as modules: their arrays are parameters, and a call runs the library's own code."""

from __future__ import annotations

from phlox.interop.layers.wrapped import Form as Form
from phlox.interop.layers.wrapped import Leaf as Leaf
from phlox.interop.layers.wrapped import Wrapped as Wrapped
from phlox.interop.layers.wrapped import check_layer as check_layer

__all__ = ["Form", "Leaf", "Wrapped", "check_layer"]
