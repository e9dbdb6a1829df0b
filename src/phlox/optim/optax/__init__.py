"""Optax's gradient transformations as optimizers."""

from __future__ import annotations
