"""The wrapper of each module's `__call__`: arrays as arguments, and errors that name the module.

The `__call__` of every class of modules is wrapped once. A successful call on tensors costs a tenth of a microsecond
more, or a quarter with other arguments than `x`. For calls on arrays, see `phlox.module.array_calls`. A
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
    if code is not None and _takes_only_x(code) and not getattr(call, "__defaults__", None):
        return _located_for_x(call)

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _have_no_array(map(type, args)) and (not kwargs or _have_no_array(map(type, kwargs.values()))):
                return call(self, *args, **kwargs)
            return _call_with_arrays(call, self, args, kwargs)
        except _ERRORS as error:
            _locate(self, error)
            raise

    return __call__


_ERRORS = (PhloxError, FloatingPointError)
"""The errors that name the module; the second is raised only on request, for example by `jax.debug_nans`."""

_have_no_array: Callable[[Iterable[type[Any]]], bool] = {Tensor, type(None), bool, int, float, str}.issuperset
"""Are all of these classes neither arrays nor containers?"""


def takes_arrays(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the `__call__` of a module that handles arrays itself and returns tensors."""
    _array_calls.add(call)
    return call


_array_calls: WeakSet[Callable[..., Any]] = WeakSet()


def _call_with_arrays(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if call in _array_calls:
        return call(module, *args, **kwargs)
    from phlox.module.array_calls import call_with_arrays

    return call_with_arrays(call, module, args, kwargs)


def _takes_only_x(code: CodeType) -> bool:
    """Are `self` and `x` the only parameters of a function?"""
    variable = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS) or code.co_posonlyargcount or code.co_kwonlyargcount
    return not variable and code.co_varnames[: code.co_argcount] == ("self", "x")


def _located_for_x(call: Callable[..., Any]) -> Callable[..., Any]:
    """`located` for a call with only `x`, as in most layers: `*args` and `**kwargs` would dominate the cost."""

    @wraps(call)
    def __call__(self: Any, x: Any) -> Any:
        try:
            _ = x._ops  # only tensors have it: the cheapest test
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


class _Location:
    """The module in which an error was raised, as far as it is known."""

    __slots__ = ("message", "module", "path")

    def __init__(self, module: Fields, message: str) -> None:
        self.module: Fields | None = module
        """The outermost module that the error has left; None if its path is not known."""
        self.path = ""
        self.message = message


def _locate(module: Fields, error: PhloxError | FloatingPointError) -> None:
    location: _Location | None = getattr(error, "_phlox_location", None)
    if location is None:
        text = str(error).removeprefix(f"{type(module).__name__}: ")  # some messages have the name already
        location = _Location(module, f"{_described(module)}: {text}")
        error._phlox_location = location  # pyright: ignore[reportAttributeAccessIssue]
    elif location.module is None or location.module is module:
        return
    else:
        path = _path_to(location.module, module, ())
        if path is None:
            location.module = None
            return
        location.path = f"{path}.{location.path}" if location.path else path
        location.module = module
    error.args = (f"{location.path}: {location.message}" if location.path else location.message,)


def _described(module: Fields) -> str:
    """The class, with the shapes of its own weights."""
    own = [(name, value) for name, value in fields_of(module).items() if isinstance(value, Param)]
    shapes = [f"{name} {list(param.shape)}" for name, param in own if param.trainable and param.has_shape]
    name = type(module).__name__
    shown = [*shapes[:_SHOWN], f"... and {len(shapes) - _SHOWN} more"] if len(shapes) > _SHOWN else shapes
    return f"{name}({', '.join(shown)})" if shown else name


def _path_to(target: Fields, value: Any, ancestors: tuple[Any, ...]) -> str | None:
    """The path from a module to one of its parts."""
    for key, part in _parts(value):
        if part is target:
            return str(key)
        if isinstance(part, (Fields, list, tuple, dict)) and not any(part is outer for outer in ancestors):
            path = _path_to(target, part, (*ancestors, value))
            if path is not None:
                return f"{key}.{path}"
    return None


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Fields):
        return fields_of(value).items()
    return cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
