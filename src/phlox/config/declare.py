"""Find the fields of a config class, and reject declarations that would not work as written."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING
from typing import Any, cast

from phlox.config.frozen import freeze
from phlox.config.nested import TAG, Structured
from phlox.errors import ConfigError


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
    known = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    annotations = own_annotations(cls)
    roots = [base for base in cls.__mro__ if issubclass(base, Structured) and base.__phlox_root__]
    for name in body.keys() & known - annotations.keys():
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
