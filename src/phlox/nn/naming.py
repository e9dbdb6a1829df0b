"""Errors that name the layer in which they were raised."""

from __future__ import annotations

from phlox.errors import KindError, PhloxError
from phlox.module import Module
from phlox.tensor import Tensor
from phlox.tensor.explain import shown


def name_layer(layer: Module, error: Exception, x: object) -> None:
    """Put the layer, with the shapes of its weights, into the error that `layer(x)` raised, which is then raised again.

    For the `except` of a layer's `__call__`: a call that succeeds pays nothing for it. Where x is no tensor, it raises
    `KindError` instead.
    """
    name = type(layer).__name__
    if not isinstance(x, Tensor):
        raise KindError(f"{name} takes a tensor, got {shown(x)}") from error
    if isinstance(error, PhloxError):
        shapes = [f"{path} {list(param.shape)}" for path, param in layer.named_params() if param.trainable]
        name_place(f"{name}({', '.join(shapes)})", error)


def name_place(place: str, error: PhloxError) -> None:
    """Put a place into an error."""
    error.args = (f"{place}: {error}",)
