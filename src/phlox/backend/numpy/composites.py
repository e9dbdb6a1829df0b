"""Composites that NumPy does better than by their definitions: in blocks that stay in the cache, into private buffers."""

from __future__ import annotations

from phlox.backend.contract import Backend


class Composites(Backend):
    """See `phlox.backend.contract.nn`."""
