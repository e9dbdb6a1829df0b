"""The wrapper of each module's `__call__`: arrays as arguments, and errors that name the module.

The `__call__` of every class of modules is wrapped once. A successful call on tensors costs a tenth of a microsecond
more, or a quarter with other arguments than `x`. A call on arrays is one on tensors, see `phlox.module.array_calls`. A
failed call names the module, and then its path in each outer module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, cast
from weakref import WeakSet

from phlox.errors import PhloxError
from phlox.module.fields import Fields, fields_of
from phlox.module.param import Param
from phlox.tensor import Tensor

_SHOWN = 6


def located(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the `__call__` of a class of modules so that it takes arrays and that errors name the module."""

    code = getattr(call, "__code__", None)
    if code is not None and _is_of_x(code) and not getattr(call, "__defaults__", None):
        return _located_of_x(call)

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _hold_no_array(map(type, args)) and (not kwargs or _hold_no_array(map(type, kwargs.values()))):
                return call(self, *args, **kwargs)
            return _call_with_arrays(call, self, args, kwargs)
        except _ERRORS as error:
            _locate(self, error)
            raise

    return __call__


_ERRORS = (PhloxError, FloatingPointError)
"""The errors that name the module; the second is raised where somebody has asked for it, as by `jax.debug_nans`."""

_hold_no_array: Callable[[Iterable[type[Any]]], bool] = {Tensor, type(None), bool, int, float, str}.issuperset
"""Are all of these classes such as are neither arrays nor containers?"""


def takes_arrays(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the `__call__` of a module that takes arrays by itself and returns tensors."""
    _taking_arrays.add(call)
    return call


_taking_arrays: WeakSet[Callable[..., Any]] = WeakSet()


def _call_with_arrays(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if call in _taking_arrays:
        return call(module, *args, **kwargs)
    from phlox.module.array_calls import call_with_arrays

    return call_with_arrays(call, module, args, kwargs)


def _is_of_x(code: CodeType) -> bool:
    """Are `self` and `x` all that a function takes?"""
    variable = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS) or code.co_posonlyargcount or code.co_kwonlyargcount
    return not variable and code.co_varnames[: code.co_argcount] == ("self", "x")


def _located_of_x(call: Callable[..., Any]) -> Callable[..., Any]:
    """As most layers are called, with only `x`: passing any number of arguments would dominate the cost."""

    @wraps(call)
    def __call__(self: Any, x: Any) -> Any:
        try:
            _ = x._ops  # which only tensors have: no question is cheaper
            return call(self, x)
        except _ERRORS as error:
            _locate(self, error)
            raise
        except AttributeError:
            if isinstance(x, Tensor):
                raise
        try:
            return _call_with_arrays(call, self, (x,), {})
        except _ERRORS as error:
            _locate(self, error)
            raise

    return __call__


class _Place:
    """The place where an error was raised, as far as it is known."""

    __slots__ = ("message", "module", "path")

    def __init__(self, module: Fields, message: str) -> None:
        self.module: Fields | None = module
        """The outermost one that has been left; None once it is not known where that stands."""
        self.path = ""
        self.message = message


def _locate(module: Fields, error: PhloxError | FloatingPointError) -> None:
    place: _Place | None = getattr(error, "_phlox_place", None)
    if place is None:
        text = str(error).removeprefix(f"{type(module).__name__}: ")  # some say so themselves
        place = _Place(module, f"{_described(module)}: {text}")
        error._phlox_place = place  # pyright: ignore[reportAttributeAccessIssue]
    elif place.module is None or place.module is module:
        return
    else:
        found = _path_to(place.module, module, ())
        if found is None:
            place.module = None
            return
        place.path = f"{found}.{place.path}" if place.path else found
        place.module = module
    error.args = (f"{place.path}: {place.message}" if place.path else place.message,)


def _described(module: Fields) -> str:
    """The class, with the shapes of its own weights."""
    own = [(name, value) for name, value in fields_of(module).items() if isinstance(value, Param)]
    shapes = [f"{name} {list(param.shape)}" for name, param in own if param.trainable and param.has_shape]
    name = type(module).__name__
    shown = [*shapes[:_SHOWN], f"... and {len(shapes) - _SHOWN} more"] if len(shapes) > _SHOWN else shapes
    return f"{name}({', '.join(shown)})" if shown else name


def _path_to(wanted: Fields, value: Any, within: tuple[Any, ...]) -> str | None:
    """The path from a module to one of its parts."""
    for key, part in _parts(value):
        if part is wanted:
            return str(key)
        if isinstance(part, (Fields, list, tuple, dict)) and not any(part is outer for outer in within):
            rest = _path_to(wanted, part, (*within, value))
            if rest is not None:
                return f"{key}.{rest}"
    return None


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Fields):
        return fields_of(value).items()
    return cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
