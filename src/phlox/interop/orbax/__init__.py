"""Orbax checkpoints, as Flax, MaxText and other users of JAX write them: saved from records and models, and loaded."""

from __future__ import annotations

from phlox.interop.orbax.bridge import load as load
from phlox.interop.orbax.bridge import save as save
from phlox.lazy import lazily

__all__ = ["load", "save"]

__getattr__, __dir__ = lazily(__name__, {})
