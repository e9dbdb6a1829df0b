"""The schema of a config class: its fields, and binding, reading and writing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any

from phlox.config.annotations import Scope, field_type
from phlox.config.fieldtypes import FieldType
from phlox.config.nested import Structured
from phlox.config.reading import INVALID, Reading, join, nearest
from phlox.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field: its type, its default or default factory (MISSING for none), and whether it is keyword-only."""

    name: str
    type: FieldType
    default: Any
    factory: Callable[[], Any] | None
    keyword_only: bool


class Schema:
    """The fields of `cls`, in order."""

    def __init__(self, cls: type[Structured], fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self._cls = cls

    @staticmethod
    def of(owner: type[Structured], scope: Scope) -> Schema:
        """The schema of a class whose own annotations are resolved in `scope`.

        Raises `UnresolvedError` if an annotation has an undefined name, `ConfigError` if a config cannot hold the type
        of a field, or if a default does not have the type of its field.
        """
        fields: dict[str, Field] = {}
        for declared in dataclasses.fields(owner):  # pyright: ignore[reportArgumentType]  # it is made one when it is declared
            inherited = _inherited(owner, declared)
            fields[declared.name] = inherited if inherited is not None else _resolve(owner, declared, scope)
        return Schema(owner, fields)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object], reading: Reading) -> dict[str, object]:
        """Bind arguments to fields by name, as Python binds arguments to parameters."""
        positional = [field.name for field in self.fields.values() if not field.keyword_only]
        if len(args) > len(positional):
            names = f" ({', '.join(positional)})" if positional else ""
            reading.problem("", f"takes at most {len(positional)} positional values{names}, got {len(args)}")
        given = dict(zip(positional, args, strict=False))
        for name in given.keys() & kwargs.keys():
            reading.problem(name, "given twice, by position and by name")
        return {**given, **kwargs}

    def read(self, values: Mapping[Any, object], path: str, reading: Reading) -> Any:
        """Create a config from `values`, or add all problems and return INVALID."""
        return self.fill(self._cls.__new__(self._cls), values, path, reading)

    def fill(self, config: Structured, values: Mapping[Any, object], path: str, reading: Reading) -> Any:
        """Set the fields of the new `config`; otherwise like `read`."""
        before = len(reading.problems)
        meant: set[str | None] = set()
        for name in values:
            if name not in self.fields:
                reading.problem(join(path, name), self._cls.__phlox_unknown__(name))
                meant.add(nearest(name, self.fields))
        for name, field in self.fields.items():
            if name in values:
                vars(config)[name] = field.type.read(values[name], join(path, name), reading)
            elif name not in meant:  # otherwise one mistake would give two errors
                vars(config)[name] = self._default(field, join(path, name), reading)
        if len(reading.problems) == before:
            try:
                config.validate()
            except ValueError as error:  # ConfigError is one
                reading.problem(path, str(error))
        return config if len(reading.problems) == before else INVALID

    @staticmethod
    def _default(field: Field, path: str, reading: Reading) -> Any:
        if field.factory is not None:
            trial = Reading()
            value = field.type.read(field.factory(), path, trial)
            reading.problems += trial.problems
            return value
        if field.default is MISSING:
            return reading.problem(path, f"missing; expected {field.type.name}")
        return field.default

    def write(self, config: Structured) -> dict[str, Any]:
        """The JSON object that stores `config`."""
        return {name: field.type.write(getattr(config, name)) for name, field in self.fields.items()}


def _inherited(cls: type[Structured], declared: dataclasses.Field[Any]) -> Field | None:
    for base in cls.__mro__[1:]:
        if issubclass(base, Structured) and vars(base).get("__dataclass_fields__", {}).get(declared.name) is declared:
            return base.__phlox_schema__().fields[declared.name]
    return None


def _resolve(cls: type[Structured], declared: dataclasses.Field[Any], scope: Scope) -> Field:
    place = f"{cls.__name__}.{declared.name}"
    try:
        kind = field_type(scope.resolve(declared.type))
    except ConfigError as error:
        raise type(error)(f"{place}: {error}") from error
    factory = None if declared.default_factory is MISSING else declared.default_factory
    default: Any = declared.default
    if default is not MISSING:
        reading = Reading()
        default = kind.read(default, "", reading)
        reading.raise_problems(f"{place}, its default")
    return Field(declared.name, kind, default, factory, bool(declared.kw_only))
