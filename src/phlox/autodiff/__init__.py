"""Floor 2: automatic differentiation as a decorator of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.autodiff.decorator import Autodiff
    from phlox.autodiff.tape import Node, Tracked, walk_back

__all__ = ["Autodiff", "Node", "Tracked", "walk_back"]

__getattr__, __dir__ = lazily(__name__, {"decorator": "Autodiff", "tape": "Node Tracked walk_back"})
