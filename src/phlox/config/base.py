"""`Config`: hyper-parameters as an immutable value that is checked and can be stored."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import dataclass_transform

from phlox.config.annotations import Scope, UnresolvedError
from phlox.config.nested import ConfigType, Structured
from phlox.config.reading import Reading, did_you_mean
from phlox.config.schema import Schema, declare_fields, own_annotations
from phlox.config.storage import format_json, parse_json, read_text, write_text
from phlox.errors import ConfigError
from phlox.host.text import html_by
from phlox.other_names import option_remark


class BaseConfig(Structured):
    """Base class of all configs, with declared (`Config`) or derived (`config_of`) fields.

    Use it as the static type of "any config". To declare a config, subclass `Config`.
    """

    __phlox_scope__: ClassVar[Scope]
    __phlox_by_name__: ClassVar[str] = ""
    """If fields can only be given by name, the error for a positional one; else empty."""
    _schema: ClassVar[Schema]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__phlox_root__ = "__phlox_root__" in vars(cls)
        if cls.__phlox_root__:
            return
        if "__phlox_scope__" not in vars(cls):
            frame = inspect.currentframe()
            statement = None if frame is None else frame.f_back
            cls.__phlox_scope__ = Scope.of_class_statement(cls, own_annotations(cls).values(), statement)
        declare_fields(cls)
        try:
            cls.__phlox_schema__()
        except UnresolvedError:
            pass  # the name may be defined later in the module: it is resolved on first use

    @classmethod
    def __phlox_schema__(cls) -> Schema:
        if cls.__phlox_root__:
            raise ConfigError(f"{cls.__name__} has no fields, so it has no instances: declare a subclass")
        if "_schema" not in vars(cls):  # a base class may have one
            cls._schema = Schema.of(cls, cls.__phlox_scope__)
        return cls._schema

    @classmethod
    def __phlox_unknown__(cls, name: object) -> str:
        fields = cls.__phlox_schema__().fields
        return f"unknown key{option_remark(str(name), fields) or did_you_mean(name, fields)}"

    if not TYPE_CHECKING:  # type checkers know better constructors, and that nothing can be set or deleted

        def __init__(self, *args: object, **kwargs: object) -> None:
            if args and self.__phlox_by_name__:
                name = type(self).__name__
                raise ConfigError(f"{name}: give fields by name, got {args[0]!r}; {self.__phlox_by_name__}")
            schema, reading = type(self).__phlox_schema__(), Reading()
            schema.fill(self, schema.bind(args, kwargs, reading), "", reading)
            reading.raise_problems(type(self).__name__)

        def __setattr__(self, name: str, value: object) -> None:
            raise ConfigError(f"{type(self).__name__} is immutable: make a new one with `config.replace({name}=...)`")

        def __delattr__(self, name: str) -> None:
            raise ConfigError(f"{type(self).__name__} is immutable: `{name}` cannot be deleted")

    def validate(self) -> None:
        """Override this to check what types cannot express; raise `ConfigError` or ValueError.

        It runs whenever a config is created, with all fields set. The message is reported with the config's path.
        """

    def replace(self, **changes: Any) -> Self:
        """A copy of this config with some fields changed; raises `ConfigError` like the constructor.

        >>> import phlox as px
        >>> class MlpConfig(px.Config):
        ...     d_input: int
        ...     dropout: float = 0.1
        >>> MlpConfig(64).replace(dropout=0.0)
        MlpConfig(d_input=64, dropout=0.0)
        """
        return type(self)(**{**vars(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The fields as new JSON values: dicts, lists, strings, finite numbers, bools and None."""
        return type(self).__phlox_schema__().write(self)

    def to_json(self) -> str:
        """The fields as indented JSON, in the order of declaration. Equal configs give equal text."""
        return format_json(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the config to a JSON file, atomically; raises `ConfigError` if that fails."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a config from the result of `to_dict`; raises `ConfigError`, which lists all errors with their paths.

        >>> import phlox as px
        >>> class MlpConfig(px.Config):
        ...     d_input: int
        ...     dropout: float = 0.1
        >>> MlpConfig.from_dict({"d_inputt": 64, "dropout": "high"})
        Traceback (most recent call last):
        ...
        phlox.errors.ConfigError: MlpConfig has 2 errors:
          d_inputt: unknown key; did you mean `d_input`?
          dropout: expected float, got str 'high'
        """
        return cls._from_stored(data, cls.__name__)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create a config from the result of `to_json`; raises `ConfigError` for invalid JSON, or like `from_dict`."""
        return cls._from_stored(parse_json(text, f"the text for {cls.__name__}"), cls.__name__)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Create a config from a file that `save` wrote; raises `ConfigError`, naming the file, like `from_json`."""
        file = Path(path)
        return cls._from_stored(parse_json(read_text(file), str(file)), f"{cls.__name__} from {file}")

    @classmethod
    def _from_stored(cls, data: object, subject: str) -> Self:
        reading = Reading(stored=True)
        try:
            config = ConfigType((cls,)).read(data, "", reading)
        except RecursionError as error:
            raise ConfigError(f"{subject} is nested too deeply") from error
        reading.raise_problems(subject)
        return config

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    _repr_html_ = html_by("phlox.config.pages", "page_of_config")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), vars(self))


def _restore(cls: type[BaseConfig], values: dict[str, Any]) -> BaseConfig:
    return cls(**values)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Config(BaseConfig):
    """Hyper-parameters, declared once by annotations: an immutable value that is checked, compared and stored.

    Fields are declared as in a dataclass (including `dataclasses.field` and `KW_ONLY`) and are inherited. Their types
    can be bool, int, float (accepts an int too), str, None, `Path`, `Literal`, `Enum`, other configs, and `list`,
    `tuple`, `Sequence`, `dict[str, ...]`, `Mapping[str, ...]` and unions of these. Lists and dicts are stored as
    immutable lists and dicts. NumPy scalars are converted to Python scalars. A wrong call, like a wrong file, raises
    `ConfigError`, which lists every wrong value with its path.

    In JSON, paths and the names of `Enum` members are strings, and so are the floats "nan", "inf" and "-inf". A nested
    config is an object. It names its class under "type" if the annotation does not determine it: for a union of
    configs, or a value of a subclass of the annotated class. So no field can be called "type".

    The annotations of fields are resolved where the class is defined, even inside a function. Annotations of methods
    are never resolved.

    >>> import phlox as px
    >>> class HeadConfig(px.Config):
    ...     classes: int
    >>> class MlpConfig(px.Config):
    ...     d_input: int
    ...     hidden: list[int] = [32, 32]
    ...     dropout: float = 0.1
    ...     head: HeadConfig | None = None
    ...
    ...     def validate(self) -> None:
    ...         if not 0 <= self.dropout < 1:
    ...             raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
    >>> config = MlpConfig(64, head=HeadConfig(10))
    >>> config
    MlpConfig(d_input=64, hidden=[32, 32], dropout=0.1, head=HeadConfig(classes=10))
    >>> MlpConfig.from_json(config.to_json()) == config
    True
    >>> config.replace(dropout=1.5)
    Traceback (most recent call last):
    ...
    phlox.errors.ConfigError: MlpConfig: dropout must lie in [0, 1), got 1.5
    """

    __phlox_root__ = True
