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
        if args and isinstance(args[0], Tensor) and args[0].backend.float_element not in HALF_ELEMENTS:
            return function(*args, **kwargs)
        back: dict[Backend, Backend] = {}

        def grow(x: Any) -> Any:
            backend = _backend_of(x)
            if backend is None or backend.float_element not in HALF_ELEMENTS:
                return x
            wide = x.to_full_precision()
            back[wide.backend] = backend
            return wide

        def shrink(x: Any) -> Any:
            backend = _backend_of(x)
            return x.from_full_precision(back[backend]) if backend in back else x

        given: Any = each(grow, args)
        return each(shrink, function(*given, **{name: each(grow, x) for name, x in kwargs.items()}))

    return operation


def _backend_of(x: object) -> Backend | None:
    return x.backend if isinstance(x, Tensor) else None
