"""Optax's gradient transformations as optimizers."""
