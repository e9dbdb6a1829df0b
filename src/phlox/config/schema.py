"""The fields of a config class: their declaration, and their schema, which binds, reads and writes them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, cast

from phlox.config.annotations import Scope, field_type
from phlox.config.fieldtypes import FieldType
from phlox.config.frozen import freeze
from phlox.config.nested import TAG, Structured
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
        for declared in dataclasses.fields(owner):  # pyright: ignore[reportArgumentType]  # `declare_fields` makes it one
            inherited = _inherited(owner, declared)
            fields[declared.name] = inherited if inherited is not None else _resolve(owner, declared, scope)
        return Schema(owner, fields)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object], reading: Reading) -> dict[str, object]:
        """Bind arguments to fields by name, as Python binds arguments to parameters."""
        positional = [field.name for field in self.fields.values() if not field.keyword_only]
        if len(args) > len(positional):
            names = f" ({', '.join(positional)})" if positional else ""
            reading.problem("", f"takes at most {len(positional)} positional values{names}, got {len(args)}")
        values = dict(zip(positional, args, strict=False))
        for name in values.keys() & kwargs.keys():
            reading.problem(name, "given twice, by position and by name")
        return {**values, **kwargs}

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
    location = f"{cls.__name__}.{declared.name}"
    try:
        kind = field_type(scope.resolve(declared.type))
    except ConfigError as error:
        raise type(error)(f"{location}: {error}") from error
    factory = None if declared.default_factory is MISSING else declared.default_factory
    default: Any = declared.default
    if default is not MISSING:
        reading = Reading()
        default = kind.read(default, "", reading)
        reading.raise_problems(f"{location}, its default")
    return Field(declared.name, kind, default, factory, bool(declared.kw_only))


# --- declaration


def own_annotations(cls: type) -> dict[str, Any]:
    """The unresolved annotations in the body of `cls` itself."""
    return inspect.get_annotations(cls)


def declare_fields(cls: type[Structured]) -> None:
    """Make `cls` a dataclass without generated methods, so that `dataclasses.fields` works.

    Raises `ConfigError`, naming class and field, for an invalid field.
    """
    body = vars(cls)
    for name in ("__init__", "__new__", "__post_init__"):
        if name in body:
            raise ConfigError(
                f"{cls.__name__} defines {name}, but the constructor is derived from the fields: override validate"
            )
    inherited = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    annotations = own_annotations(cls)
    roots = [base for base in cls.__mro__ if issubclass(base, Structured) and base.__phlox_root__]
    for name in body.keys() & inherited - annotations.keys():
        raise ConfigError(f"{cls.__name__}.{name} is a field: to change its default, repeat its annotation")
    for name in annotations:
        if name == TAG:
            raise ConfigError(f"{cls.__name__}.{name}: JSON uses this key for the class of a config; call it `kind`")
        if any(hasattr(root, name) for root in roots):
            raise ConfigError(f"{cls.__name__}.{name}: every config has a method of this name; choose another name")
        if name in body:
            setattr(cls, name, _frozen_default(body[name]))
    undocumented = cls.__doc__ is None
    try:
        # Equality, hash and representation are inherited, so nothing is generated and the statement stays cheap.
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error
    signature = _signature(cls)
    cls.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]  # what `help` and completion show
    if undocumented:
        cls.__doc__ = f"{cls.__name__}{signature}"


def _frozen_default(value: object) -> object:
    if isinstance(value, dataclasses.Field):
        field = cast("dataclasses.Field[object]", value)
        field.default = freeze(field.default)
        return field
    return freeze(value)


def _signature(cls: type) -> inspect.Signature:
    parameters: list[inspect.Parameter] = []
    optional = ""
    fields = dataclasses.fields(cls)
    for field in sorted(fields, key=lambda field: bool(field.kw_only)):
        if not field.init:
            raise ConfigError(f"{cls.__name__}.{field.name}: every field of a config must be a constructor argument")
        default = field.default if field.default_factory is MISSING else ...
        kind = inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        if default is not MISSING:
            optional = optional or field.name
        elif optional and not field.kw_only:
            raise ConfigError(
                f"{cls.__name__}.{field.name} has no default but comes after `{optional}`, which has one: "
                "give it a default, or make it keyword-only, after `_: KW_ONLY`"
            )
        shown = inspect.Parameter.empty if default is MISSING else default
        parameters.append(inspect.Parameter(field.name, kind, default=shown, annotation=field.type))
    return inspect.Signature(parameters)
