"""What a wrong argument makes Python or an engine say, said in our words: the function, the argument, what it takes.

Public functions and methods are guarded once, when they are imported. A call that succeeds pays for one more call of
Python; what is right or wrong is found out only once something has gone wrong, from the signature.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import update_wrapper
from operator import index
from types import FunctionType, ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from phlox.backend import Backend, as_device
from phlox.backend.out_of_memory import out_of_memory
from phlox.errors import KindError, PhloxError
from phlox.other_names import of_call
from phlox.tensor.base import TensorBase
from phlox.tensor.explain import shown

_MARK = "guarded"


def guard_functions(module: ModuleType, names: Iterable[str]) -> None:
    """Guard functions of Phlox that a module offers, there and where they are defined."""
    for name in names:
        function = vars(module).get(name)
        if isinstance(function, FunctionType) and function.__module__.startswith("phlox."):
            home = sys.modules[function.__module__]
            wrapped = guarded(function)
            setattr(module, name, wrapped)
            if vars(home).get(function.__name__) is function:
                setattr(home, function.__name__, wrapped)  # or it could not be pickled by its name


def guard_methods(cls: type[Any]) -> None:
    """Guard the public methods of a class and its bases that take arguments."""
    for owner in cls.__mro__:
        if owner.__module__.startswith("phlox."):
            for name, value in list(vars(owner).items()):
                if isinstance(value, FunctionType) and not name.startswith("_") and _takes_more(value):
                    setattr(owner, name, guarded(value))


def _takes_more(method: FunctionType) -> bool:
    return method.__code__.co_argcount + method.__code__.co_kwonlyargcount > 1 or bool(
        method.__code__.co_flags & inspect.CO_VARARGS
    )


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its own and the engines' failures turned into errors of Phlox."""
    if hasattr(function, _MARK):
        return function
    explain = complaint  # the wrapper must find everything in its closure

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            better = explain(function, arguments, options, error)
            if better is None:
                raise
            raise better from error

    # With the globals of the function it stands for, or doctest would take it for a function from elsewhere.
    wrapper = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    setattr(wrapper, _MARK, True)
    return update_wrapper(wrapper, function)


def complaint(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], error: Exception
) -> PhloxError | None:
    """What to raise in place of `error`; None if it says all there is to say."""
    values = [*arguments, *options.values()]
    if isinstance(error, PhloxError):
        return _on_one_line(error, values)
    if isinstance(error, (ZeroDivisionError, RecursionError, NotImplementedError)):
        return None
    for value in values:
        if isinstance(value, TensorBase) and value.backend.is_trace_error(error):
            return None
    name = function.__name__
    try:
        bound = inspect.signature(function).bind(*arguments, **options)
    except TypeError as wrong:  # the arguments are too few, too many or misnamed, which Python says well
        text = of_call(function, arguments, wrong)
        return None if text is None else KindError(text)
    if not isinstance(bound.arguments.get("self", values[0]), TensorBase) and "self" in bound.arguments:
        return KindError(f"{name} takes a tensor, got {shown(values[0])}")  # a method called as a function
    for place in _backends(bound.arguments):
        no_memory = out_of_memory(f"{name}({_told(bound.arguments)})", place, error)
        if no_memory is not None:
            return no_memory
    for name_of, value in bound.arguments.items():
        parameter = inspect.signature(function).parameters[name_of]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        wanted = _wanted(str(parameter.annotation), value) or _unfit(function, parameter, value)
        if wanted is not None:
            return KindError(f"{name}: {name_of} must be {wanted}, got {shown(value)}")
    return None  # the arguments are of the right types: whatever it is, it is not for the caller to mend


def _told(arguments: Mapping[str, Any]) -> str:
    return ", ".join(shown(value) for name, value in arguments.items() if name != "self")


def _backends(arguments: Mapping[str, Any]) -> Iterator[Backend]:
    """The backends that a function works on: of tensors it is given, or of the device."""
    for value in arguments.values():
        if isinstance(value, TensorBase):
            yield value.backend
    try:
        yield as_device(arguments.get("device")).backend
    except PhloxError:  # it is that which is wrong
        return


def _on_one_line(error: PhloxError, values: list[Any]) -> PhloxError | None:
    """The same error with tensors in a few words, where it shows their values; None if it does not."""
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


def _wanted(annotation: str, value: Any) -> str | None:
    """What an argument of this annotation has to be, if the value is not; None if it is, or who knows."""
    choices = [choice.strip() for choice in _outside_brackets(annotation).split("|")]
    if value is None:
        return None if "None" in choices or not _plain(choices[0]) else _plain(choices[0])
    if any(_plain(choice) is None for choice in choices if choice != "None"):
        return None
    for choice in choices:
        if _is(choice, value):
            kind = next((one for one in ("Int", "Bool") if f", {one}]" in annotation), None)
            if any(one.strip() == "Tensor" for one in annotation.split("|")):  # a Float one will do, too
                return None
            if isinstance(value, TensorBase) and kind and value.kind.__name__ not in annotation:
                return f"an {kind} tensor" if kind == "Int" else f"a {kind} tensor"
            return None
    return " or ".join(str(_plain(choice)) for choice in choices if choice != "None")


def _outside_brackets(annotation: str) -> str:
    kept: list[str] = []
    depth = 0
    for letter in annotation.strip("'\""):
        depth += (letter == "[") - (letter == "]")
        if depth == 0 and letter != "]":
            kept.append(letter)
    return "".join(kept)


_PLAIN = {
    "Tensor": "a tensor", "T": "a tensor", "Self": "a tensor", "TensorBase": "a tensor", "Number": "a number",
    "float": "a number", "int": "an integer", "bool": "True or False", "str": "a string",
    "builtins.float": "a number", "builtins.int": "an integer", "builtins.bool": "True or False",
}  # fmt: skip


def _plain(choice: str) -> str | None:
    return _PLAIN.get(choice)


def _is(choice: str, value: Any) -> bool:
    match _plain(choice):
        case "a tensor":
            return isinstance(value, TensorBase)
        case "a number":
            return isinstance(value, (int, float, np.number))
        case "an integer":
            try:
                index(value)
            except TypeError:
                return False
            return not isinstance(value, (bool, TensorBase))
        case "True or False":
            return isinstance(value, (bool, np.bool_))
        case "a string":
            return isinstance(value, str)
        case _:
            return False


def _unfit(function: Callable[..., Any], parameter: inspect.Parameter, value: Any) -> str | None:
    """What an argument has to be by the type that its parameter is declared with, if it is surely not."""
    told = parameter.annotation
    if told is parameter.empty:
        return None
    inner = inspect.unwrap(function)
    try:
        wanted = eval(told, vars(sys.modules[inner.__module__])) if isinstance(told, str) else told  # noqa: S307
    except Exception:  # names that only a type checker knows
        return None
    return None if _may_be(wanted, value) else " ".join(str(told).replace("typing.", "").split())


def _may_be(wanted: Any, value: Any) -> bool:
    """Might this be a value of the type? Wrong only where it surely is not."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if isinstance(wanted, TypeVar):
        return wanted.__bound__ is None or _may_be(wanted.__bound__, value)
    if wanted is None or wanted is type(None):
        return value is None
    if origin is Union or origin is UnionType:
        return any(_may_be(part, value) for part in parts)
    if origin is Literal:
        return isinstance(value, Hashable) and value in parts
    if wanted is int or wanted is float:  # or what stands for a number while a program is being traced
        is_tracer = getattr(value, "ndim", None) == 0 and not isinstance(value, (np.generic, TensorBase))
        return _is(wanted.__name__, value) or is_tracer
    if wanted is bool:
        return _is("bool", value)
    kind = origin or wanted
    if kind is type:
        return isinstance(value, type)
    if kind is Any or kind is object or not isinstance(kind, type):
        return True
    if issubclass(kind, TensorBase):
        return isinstance(value, TensorBase)
    if issubclass(kind, Callable):
        return callable(value)
    if issubclass(kind, Iterable) and not issubclass(kind, (str, bytes, Mapping)):
        if isinstance(value, (str, bytes, TensorBase)) or not isinstance(value, Iterable):
            return False
        each = [part for part in parts if part is not Ellipsis]
        return len(set(each)) != 1 or all(_may_be(each[0], one) for one in cast("Iterable[Any]", value))
    return isinstance(value, kind)
