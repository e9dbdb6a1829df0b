"""Clear errors for wrong arguments: the function, the argument, and the type that it takes.

Public functions and methods are wrapped once, on import. A successful call costs one more Python call. Arguments are
checked against the signature only after an error.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import update_wrapper
from operator import index
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from phlox.backend import Backend, Bool, Int, Kind, as_device
from phlox.backend.out_of_memory import out_of_memory
from phlox.errors import KindError, PhloxError
from phlox.other_names import of_call
from phlox.tensor.base import TensorBase
from phlox.tensor.explain import shown

_MARK = "guarded"


def guard_functions(module: ModuleType, names: Iterable[str]) -> None:
    """Wrap the functions of Phlox that a module exports; where they are defined, Phlox's own calls find them bare."""
    for name in names:
        function = vars(module).get(name)
        if isinstance(function, FunctionType) and function.__module__.startswith("phlox."):
            wrapped = guarded(function)
            if wrapped is not function:
                wrapped.__module__ = module.__name__  # so that it can be pickled by name
            setattr(module, name, wrapped)


def guard_methods(cls: type[Any]) -> None:
    """Wrap the public methods of a class and its bases that take arguments."""
    for owner in cls.__mro__:
        if owner.__module__.startswith("phlox."):
            for name, value in list(vars(owner).items()):
                if isinstance(value, FunctionType) and not name.startswith("_") and _has_parameters(value):
                    setattr(owner, name, guarded(value))


def _has_parameters(method: FunctionType) -> bool:
    return method.__code__.co_argcount + method.__code__.co_kwonlyargcount > 1 or bool(
        method.__code__.co_flags & inspect.CO_VARARGS
    )


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that errors of Python and of the engine become errors of Phlox."""
    if hasattr(function, _MARK):
        return function
    explain = better_error  # a closure variable, because the wrapper has the globals of another module

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            better = explain(function, arguments, options, error)
            if better is None:
                raise
            raise better from error

    # The wrapper has the globals of the wrapped function; otherwise doctest would skip it as imported.
    wrapper = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    setattr(wrapper, _MARK, True)
    return update_wrapper(wrapper, function)


def better_error(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], error: Exception
) -> PhloxError | None:
    """The error to raise in place of `error`; None if `error` is clear enough."""
    values = [*arguments, *options.values()]
    if isinstance(error, PhloxError):
        return _shorten_values(error, values)
    if isinstance(error, (ZeroDivisionError, RecursionError, NotImplementedError)):
        return None
    for value in values:
        if isinstance(value, TensorBase) and value.backend.is_trace_error(error):
            return None
    name = function.__name__
    try:
        bound = inspect.signature(function).bind(*arguments, **options)
    except TypeError as mismatch:  # wrong number or names of arguments: Python's own message is clear
        text = of_call(function, arguments, error if isinstance(error, TypeError) else mismatch)
        return None if text is None else KindError(text)
    if not isinstance(bound.arguments.get("self", values[0]), TensorBase) and "self" in bound.arguments:
        return KindError(f"{name} takes a tensor, got {shown(values[0])}")  # a method called as a function
    for backend in _backends(bound.arguments):
        no_memory = out_of_memory(f"{name}({_describe_arguments(bound.arguments)})", backend, error)
        if no_memory is not None:
            return no_memory
    for parameter_name, value in bound.arguments.items():
        parameter = inspect.signature(function).parameters[parameter_name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        expected = _expected_type(function, parameter, value)
        if expected is not None:
            return KindError(f"{name}: {parameter_name} must be {expected}, got {shown(value)}")
    return None  # the arguments have the right types


def _describe_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(shown(value) for name, value in arguments.items() if name != "self")


def _backends(arguments: Mapping[str, Any]) -> Iterator[Backend]:
    """The backends of the tensor arguments, and of the device argument."""
    for value in arguments.values():
        if isinstance(value, TensorBase):
            yield value.backend
    try:
        yield as_device(arguments.get("device")).backend
    except PhloxError:  # the device argument itself is invalid
        return


def _shorten_values(error: PhloxError, values: list[Any]) -> PhloxError | None:
    """The same error with short descriptions in place of the values of tensors; None if it has one line already."""
    text = str(error)
    if "\n" not in text:
        return None
    while values:
        value = values.pop()
        if isinstance(value, (tuple, list)):
            values += cast("list[Any]", value)
        elif isinstance(value, (TensorBase, np.ndarray)):
            text = text.replace(repr(cast(Any, value)), shown(value))
    return None if text == str(error) else type(error)(text)


def _expected_type(function: Callable[..., Any], parameter: inspect.Parameter, value: Any) -> str | None:
    """A description of a parameter's declared type; None if the value has that type, or if it is unknown."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return None
    module = vars(sys.modules[inspect.unwrap(function).__module__])
    try:
        declared = eval(annotation, module) if isinstance(annotation, str) else annotation  # noqa: S307
    except Exception:  # names that only a type checker knows
        return None
    if _matches(declared, value):
        return None
    return _type_in_words(declared) or " ".join(str(annotation).replace("typing.", "").split())


_WORDS = {float: "a number", int: "an integer", bool: "True or False", str: "a string"}
_TENSORS: dict[type[Kind], str] = {Int: "an Int tensor", Bool: "a Bool tensor", Kind: "a tensor"}


def _type_in_words(declared: Any) -> str | None:
    """A type in words, such as "a tensor or a number"; None for a type that is clearer as an annotation."""
    declared = _resolve_type(declared)
    if get_origin(declared) in (Union, UnionType):
        words = [_type_in_words(part) for part in get_args(declared) if part is not NoneType]
        if None in words:
            return None
        if "a number" in words:
            words = [word for word in words if word != "an integer"]
        return " or ".join(dict.fromkeys(map(str, words)))
    kind = _tensor_kind(declared)
    if kind is not None:
        return _TENSORS[kind]
    return _WORDS.get(declared) if isinstance(declared, type) else None


def _resolve_type(declared: Any) -> Any:
    """The bound of a type variable; `Self` is a tensor."""
    if isinstance(declared, TypeVar):
        return object if declared.__bound__ is None else declared.__bound__
    return TensorBase if declared is Self else declared


def _tensor_kind(declared: Any) -> type[Kind] | None:
    """The kind of a tensor type: Int, Bool, or `Kind` for any; None for other types."""
    base = get_origin(declared) or declared
    if not isinstance(base, type) or not issubclass(base, TensorBase):
        return None
    return next((part for part in get_args(declared) if part in (Int, Bool)), Kind)


def _matches(declared: Any, value: Any) -> bool:
    """Could this value have the declared type? False only if it certainly does not."""
    declared = _resolve_type(declared)
    origin, parts = get_origin(declared), get_args(declared)
    if declared is None or declared is NoneType:
        return value is None
    if origin is Union or origin is UnionType:
        return any(_matches(part, value) for part in parts)
    if origin is Literal:
        return isinstance(value, Hashable) and value in parts
    if declared is float:
        return isinstance(value, (int, float, np.number)) or _is_traced_scalar(value)
    if declared is int:
        return _is_integer(value) or _is_traced_scalar(value)
    if declared is bool:
        return isinstance(value, (bool, np.bool_))
    base = origin or declared
    if base is type:
        return isinstance(value, type)
    if base is Any or base is object or not isinstance(base, type):
        return True
    if issubclass(base, TensorBase):
        return isinstance(value, TensorBase) and issubclass(value.kind, _tensor_kind(declared) or Kind)
    if issubclass(base, Callable):
        return callable(value)
    if issubclass(base, Iterable) and not issubclass(base, (str, bytes, Mapping)):
        if isinstance(value, (str, bytes, TensorBase)) or not isinstance(value, Iterable):
            return False
        item_types = [part for part in parts if part is not Ellipsis]
        return len(set(item_types)) != 1 or all(_matches(item_types[0], item) for item in cast("Iterable[Any]", value))
    return isinstance(value, base)


def _is_integer(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, (bool, TensorBase))


def _is_traced_scalar(value: Any) -> bool:
    """Could this be an engine's tracer of a scalar?"""
    return getattr(value, "ndim", None) == 0 and not isinstance(value, (np.generic, TensorBase))
