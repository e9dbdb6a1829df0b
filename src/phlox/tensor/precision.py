"""Functions of several steps at half precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from phlox.backend import Backend
from phlox.backend.contract.widening import each
from phlox.backend.element import HALF_ELEMENTS
from phlox.tensor.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def at_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """The function of tensors, its steps taken in f32 where they are of half precision, and the result rounded once.

    So the sum of squares of a loss does not overflow on the way to its mean, nor is a difference taken of numbers that
    have been rounded.
    """

    @wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        # One operand speaks for all: tensors that meet have floats of one type.
        if args and isinstance(args[0], Tensor) and not _is_half(args[0]):
            return function(*args, **kwargs)
        back: dict[Backend, Backend] = {}

        def grow(x: Any) -> Any:
            if not isinstance(x, Tensor) or not _is_half(x):
                return x
            wide = x.to_full_precision()
            back[wide.backend] = x.backend
            return wide

        found: Any = function(*each(grow, args), **{name: each(grow, x) for name, x in kwargs.items()})  # pyright: ignore[reportCallIssue]
        return each(lambda x: x.from_full_precision(back[x.backend]) if _is_of(x, back) else x, found)

    return operation


def _is_half(x: Tensor[Any, Any, Any]) -> bool:
    return x._ops.backend.float_element in HALF_ELEMENTS  # pyright: ignore[reportPrivateUsage]


def _is_of(x: Any, backends: dict[Backend, Backend]) -> bool:
    return isinstance(x, Tensor) and x.backend in backends
