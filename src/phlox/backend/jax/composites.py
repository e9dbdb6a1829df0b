"""Composites under JAX."""

from __future__ import annotations

from phlox.backend.contract import Backend


class Composites(Backend):
    """See `phlox.backend.contract.nn`."""
