"""Gradients of functions: the tape in functional dress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from phlox.errors import AutodiffError
from phlox.module import GradientsParams, Module
from phlox.tensor import Tensor


def value_and_grad(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value together with its gradient towards the first argument.

    The first argument is a module on a device with a tape (the gradient is then a `GradientsParams`) or a Float tensor
    (the gradient is a tensor on the inner backend; a tensor without a tape is given one). `fn` returns one number as a
    tensor, or a tuple whose first entry is that; the rest is passed on. Raises `AutodiffError` for anything else.

    >>> import phlox as px
    >>> value, gradient = value_and_grad(lambda x: x.square().sum())(px.tensor([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """

    def evaluate(target: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        if isinstance(target, Tensor):
            given = cast("Tensor[Any, Any, Any]", target)
            # One that another tape follows must not lose it: the gradient's own derivative may be asked for.
            follows = given.backend.differentiates and not given.is_require_grad()
            leaf = (given if follows else Tensor.from_inner(given)).require_grad()
            value = fn(leaf, *arguments, **options)
            return value, leaf.grad(_loss(value).backward())
        if not isinstance(target, Module):
            raise AutodiffError(
                f"value_and_grad: the first argument must be a module or a tensor, got {type(target).__name__}"
            )
        value = fn(target, *arguments, **options)
        return value, GradientsParams.from_grads(_loss(value).backward(), target)

    return evaluate


def _loss(value: Any) -> Tensor[Any, Any, Any]:
    if isinstance(value, tuple) and value:
        value = cast("tuple[Any, ...]", value)[0]
    if not isinstance(value, Tensor):
        got = type(cast("object", value)).__name__
        raise AutodiffError(f"value_and_grad: the function must return a tensor, got {got}")
    found = cast("Tensor[Any, Any, Any]", value)
    if not found.backend.differentiates:
        raise AutodiffError(
            f"value_and_grad: the result is on {found.backend!r}, which records no tape; "
            "move the module there: model.train()"
        )
    return found


def grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gradient of `fn` towards its first argument; see `value_and_grad`."""
    both = value_and_grad(fn)

    def evaluate(target: Any, *arguments: Any, **options: Any) -> Any:
        return both(target, *arguments, **options)[1]

    return evaluate
