"""Resolve the annotation of a field to its field type."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from enum import Enum, Flag
from pathlib import Path
from typing import Any, Literal, NewType, Union, cast, get_args, get_origin, get_type_hints

from typing_extensions import TypeAliasType

from phlox.config import fieldtypes as ft
from phlox.config.frozen import FrozenList
from phlox.config.nested import ConfigType, Structured
from phlox.errors import ConfigError


class UnresolvedError(ConfigError):
    """An annotation has undefined names; they may be defined by the time the class is used."""


class Scope:
    """The namespace of annotations: the globals of a module, and local names that shadow them."""

    def __init__(self, module: dict[str, Any], names: Mapping[str, Any]) -> None:
        self._module = module
        self._names = dict(names)

    @staticmethod
    def of_class_statement(defined: type, annotations: Iterable[object], frame: types.FrameType | None) -> Scope:
        """The scope of the class statement that defines `defined` and is now running in `frame`.

        It keeps only the local names in `annotations`, so that no other object is kept alive.
        """
        while frame is not None and frame.f_code.co_name == "__init_subclass__":  # of a subclass that has its own
            frame = frame.f_back
        module: dict[str, Any] = vars(sys.modules[defined.__module__]) if defined.__module__ in sys.modules else {}
        if frame is None:
            return Scope(module, {defined.__name__: defined})
        if frame.f_globals.get("__name__") == defined.__module__:
            module = frame.f_globals
        return Scope(module, {**mentioned(annotations, frame.f_locals), defined.__name__: defined})

    def resolve(self, annotation: object) -> Any:
        """Evaluate `annotation`; raises `UnresolvedError` if a name is undefined."""
        holder = types.SimpleNamespace(__annotations__={"field": annotation})
        try:
            return get_type_hints(holder, self._module, self._names)["field"]
        except (NameError, AttributeError) as error:
            raise UnresolvedError(
                f"the annotation `{annotation}` cannot be resolved ({error}); define its names before the class or in "
                "its module, and at run time: not under TYPE_CHECKING"
            ) from error
        except Exception as error:  # an annotation is code: it can raise anything
            raise ConfigError(f"the annotation `{annotation}` is not valid: {error}") from error


def mentioned(annotations: Iterable[object], names: Mapping[str, Any]) -> dict[str, Any]:
    """The subset of `names` that occur in string annotations."""
    words = {word for text in annotations for word in re.findall(r"\w+", str(text))}
    return {name: names[name] for name in words if name in names}


_SIMPLE: dict[type, ft.FieldType] = {
    type(None): ft.NONE,
    bool: ft.BOOL,
    int: ft.INT,
    float: ft.FLOAT,
    str: ft.STR,
    Path: ft.PathType(),
}
_LISTS = (list, MutableSequence)
_SEQUENCES = (*_LISTS, Sequence)
_MAPPINGS = (dict, Mapping, MutableMapping)


def field_type(annotation: Any) -> ft.FieldType:
    """The field type of a resolved annotation; raises `ConfigError` if a config cannot hold such values."""
    if isinstance(annotation, NewType):
        return field_type(annotation.__supertype__)
    if isinstance(annotation, TypeAliasType):
        return field_type(annotation.__value__)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _literal(args)
    if origin is tuple:
        return _tuple(args)
    if origin in _SEQUENCES:
        item = field_type(args[0])
        return ft.SequenceType(f"{_name(origin)}[{item.name}]", item, FrozenList if origin in _LISTS else tuple)
    if origin in _MAPPINGS:
        return _mapping(_name(origin), *map(field_type, args))
    if isinstance(annotation, type) and origin is None:
        plain = cast(type[object], annotation)
        if issubclass(plain, Structured):
            return ConfigType((plain,))
        if issubclass(plain, Enum) and not issubclass(plain, Flag):
            return ft.EnumType(plain)
        if plain in _SIMPLE:
            return _SIMPLE[plain]
    raise ConfigError(
        f"a config cannot hold {_name(annotation)}; it can hold bool, int, float, str, None, Path, Literal, Enum, "
        "configs, and list[...], tuple[...], Sequence[...], dict[str, ...], Mapping[str, ...] and unions of these"
    )


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _union(args: tuple[Any, ...]) -> ft.FieldType:
    def is_config(arg: object) -> bool:
        return isinstance(arg, type) and issubclass(arg, Structured)

    configs = tuple(cast(type[Structured], arg) for arg in args if is_config(arg))
    members: list[ft.FieldType] = [ConfigType(configs)] if configs else []
    members += [field_type(arg) for arg in args if not is_config(arg)]
    return members[0] if len(members) == 1 else ft.UnionType(sorted(members, key=lambda member: member is ft.NONE))


def _literal(args: tuple[Any, ...]) -> ft.FieldType:
    for arg in args:
        if type(arg) not in (str, int, bool, type(None)):
            raise ConfigError(f"a Literal in a config must consist of str, int, bool or None, got {arg!r}")
    return ft.LiteralType(args)


def _tuple(args: tuple[Any, ...]) -> ft.FieldType:
    if len(args) == 2 and args[1] is Ellipsis:
        item = field_type(args[0])
        return ft.SequenceType(f"tuple[{item.name}, ...]", item, tuple)
    return ft.TupleType([field_type(arg) for arg in args])


def _mapping(name: str, key: ft.FieldType, value: ft.FieldType) -> ft.FieldType:
    if not key.is_text:
        raise ConfigError(f"the keys of a JSON object are strings, so {name}[{key.name}, ...] cannot be stored")
    return ft.MappingType(f"{name}[{key.name}, {value.name}]", key, value)
