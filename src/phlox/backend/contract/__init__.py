"""The contract between Phlox and an engine: what a backend must provide, and what follows from it."""

from __future__ import annotations

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.decorator import Decorator
from phlox.backend.contract.engine import EngineBackend
from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, RandomOps, ShapeOps
from phlox.lazy import lend

lend(["phlox.backend.contract.taping", "phlox.backend.device", "phlox.backend.registry"], Backend=Backend)

__all__ = ["Backend", "BoolOps", "Decorator", "EngineBackend", "FloatOps", "IntOps", "RandomOps", "ShapeOps"]
