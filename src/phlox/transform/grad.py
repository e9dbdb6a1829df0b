"""Gradients of functions: the tape in functional dress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.errors import AutodiffError
from phlox.module import GradientsParams, Module
from phlox.tensor import Tensor


def value_and_grad(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value together with its gradient towards the first argument.

    The first argument is a module on a device with a tape (the gradient is then a `GradientsParams`) or a Float tensor
    (the gradient is a tensor on the inner backend; a tensor without a tape is given one). `fn` returns one number as a
    tensor, or a tuple whose first entry is that; the rest is passed on.

    >>> import phlox as px
    >>> value, gradient = value_and_grad(lambda x: x.square().sum())(px.tensor([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """

    def evaluate(target: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        if isinstance(target, Tensor):
            target = (target if target.backend.differentiates else Tensor.from_inner(target)).require_grad()  # pyright: ignore
        elif not isinstance(target, Module):
            raise AutodiffError(
                f"value_and_grad: the first argument must be a module or a tensor, got {type(target).__name__}"
            )
        value = fn(target, *arguments, **options)
        loss = value[0] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(loss, Tensor):
            raise AutodiffError(f"value_and_grad: the function must return a tensor, got {type(loss).__name__}")  # pyright: ignore
        if not loss.backend.differentiates:
            raise AutodiffError(
                f"value_and_grad: the result is on {loss.backend!r}, which records no tape; "
                f"move the module there: model.train()"
            )
        grads = loss.backward()
        if isinstance(target, Module):
            return value, GradientsParams.from_grads(grads, target)
        return value, target.grad(grads)

    return evaluate


def grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gradient of `fn` towards its first argument; see `value_and_grad`."""
    both = value_and_grad(fn)
    return lambda target, *arguments, **options: both(target, *arguments, **options)[1]
