"""Names of other libraries and their equivalents in Phlox, for hints in error messages.

They are in `names.json`, which is read after a failed lookup.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, update_wrapper
from opcode import opmap
from types import FunctionType
from typing import Any, TypeVar, cast

from phlox.errors import KindError


@cache
def answers(table: str) -> Mapping[str, str]:
    """By name of another library, as it is and without case and `_`: the equivalent in Phlox.

    There is a table for the names of each package (`"phlox.nn"`), for those of an object (`"Tensor"`), for options and
    for devices, in `names.json`. In an answer, `$name` stands for the name.

    >>> answers("phlox.nn")["Dense"], answers("phlox.nn")["dense"]
    ('phlox.nn.Linear', 'phlox.nn.Linear')
    """
    entries = _file().get(table, {}).items()
    found = {name: text.replace("$name", name) for names, text in entries for name in names.split()}
    return {_plain(name): text for name, text in found.items()} | found


@cache
def _file() -> dict[str, dict[str, str]]:
    import json  # with the others below only after an error: they are slow to import
    from pathlib import Path

    try:
        return json.loads(Path(__file__).with_name("names.json").read_text("utf-8"))
    except OSError:  # in a program that was bundled without data files
        return {}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def answer(name: str, table: str, otherwise: str | None = None) -> str | None:
    """The equivalent in Phlox of a name of another library.

    `otherwise` goes before the equivalent of a name that differs in case or `_`.
    """
    known = answers(table)
    return known.get(name) or otherwise or known.get(_plain(name))


def remark(name: str, table: str, known: Iterable[str] = (), otherwise: str | None = None) -> str:
    """`"; in Phlox: ..."` for a name of another library, the closest known name for a misspelling, or an empty text."""
    found = answer(name, table, otherwise)
    if found:
        return f"; in Phlox: {found}"
    from difflib import get_close_matches

    close = get_close_matches(name, [one for one in known if not one.startswith("_")], 1, 0.75)
    return f"; did you mean {close[0]!r}?" if close else ""


def missing(package: str, name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error for a missing name of a package, for its `__getattr__` to raise at once.

    `from package import name` tells nothing of an `AttributeError`, so it gets an `ImportError` of the same message.
    """
    text = in_module(package, name, known)
    asks = (frame := inspect.currentframe()) and frame.f_back and frame.f_back.f_back
    imports = asks is not None and asks.f_code.co_code[asks.f_lasti] == opmap.get("IMPORT_FROM")
    if imports and f"{package}.{name}" not in sys.modules:  # which Python takes where imports go in a circle
        return ImportError(text, name=package)
    return AttributeError(text)


def in_module(package: str, name: str, known: Iterable[str]) -> str:
    """The error message for a missing name of a package."""
    package = package.replace("phlox.tensor.", "phlox.")
    return f"module {package!r} has no attribute {name!r}{remark(name, package, known)}"


def of_object(owner: object, name: str, table: str, fields: Iterable[str] = (), *, otherwise: str | None = None) -> str:
    """The error message for a missing attribute of an object with these fields, besides the names of its class."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return text if name.startswith("_") else text + remark(name, table, [*fields, *dir(type(owner))], otherwise)


def described(value: object) -> str:
    """A value in the words of who wrote it: a text as it is, a class or a function by its name, another by its class.

    >>> described("adam"), described(int), described([1]), described(None)
    ("'adam'", 'the class int', 'a list', 'None')
    """
    if value is None or isinstance(value, str):
        return repr(value)
    is_named = isinstance(value, (type, FunctionType))
    named: Any = value if is_named else type(value)
    name, package = named.__qualname__.rpartition(".")[2], str(named.__module__).partition(".")[0]
    text = f"the {'class' if isinstance(value, type) else 'function'} {name}" if is_named else with_article(name)
    if package not in ("phlox", "builtins", "__main__"):
        text += f" of {package}"
    shape = None if is_named else getattr(value, "shape", None)
    return text if shape is None else f"{text}, of shape {tuple(shape)}"


def with_article(name: str) -> str:
    """The name after "a" or "an"."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def class_of(value: object) -> str:
    """The class of a value, with an article."""
    return with_article(type(value).__name__)


def equivalent(value: object, table: str, known: Iterable[str] = ()) -> str:
    """The `remark` for a value that stands where another belongs: for the text, or for the name of its class."""
    name = value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
    return remark(name, table, known)


def refuse_options(cls: type[Any], given: Iterable[str]) -> None:
    """Raise `KindError` for an option that is not in the constructor of this class."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            raise KindError(_no_option(cls.__name__, name, parameters))


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def of_call(function: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError) -> str | None:
    """A better message than Python's for arguments that a function does not accept; None if Python's is clear.

    It covers options of other libraries, misspelled options, and a shape given as several arguments.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    name, text = function.__qualname__.removesuffix(".__init__").rpartition(".")[2], str(error)
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        return _no_option(name, unexpected.group(1), parameters)
    if "positional argument" in text and (instead := answer(name, "positional")) is not None:
        return f"{name} takes one positional argument; write {instead}"
    shape = next(iter(parameters), "") == "shape" and all(isinstance(x, int) for x in arguments)
    if shape and len(arguments) > 1 and "positional argument" in text:
        return f"{name}: the shape is one argument: {name}({arguments})"
    return None


F = TypeVar("F", bound=Callable[..., Any])


def answering(function: F) -> F:
    """Decorate a function so that an option of another library is answered by Phlox's; for what is called seldom."""
    answer = _answer  # the wrapper must find everything in its closure

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            better = answer(function, arguments, error)
            if better is None:
                raise
            raise better from None

    # The wrapper has the globals of the wrapped function; otherwise doctest would skip it as imported.
    wrapper = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    return cast("F", update_wrapper(wrapper, function))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError) -> KindError | None:
    """What to raise for an error of the call itself; None for one that was raised inside of the function."""
    trace = error.__traceback__
    text = of_call(function, arguments, error) if trace is not None and trace.tb_next is None else None
    return None if text is None else KindError(text)


def option_remark(name: str, known: Mapping[str, object]) -> str:
    """The hint for an option of another library: a text, or one of the known options."""
    instead = next((one for one in (answer(name, "option") or "").split("|") if " " in one or one in known), "")
    return f"; in Phlox: {instead}" if instead else ""


def _no_option(called: str, name: str, parameters: Mapping[str, object]) -> str:
    hint = option_remark(name, parameters) or remark(name, "", parameters)
    taken = ", ".join(one for one in parameters if one != "self")
    return f"{called} has no option {name!r}{hint or f' (it has {taken})'}"
