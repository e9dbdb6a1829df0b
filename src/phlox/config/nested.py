"""Fields that hold other configs: of a class, of its subclasses, or of one of several classes."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from phlox.config.fieldtypes import FieldType
from phlox.config.reading import Reading, did_you_mean, join
from phlox.errors import ConfigError
from phlox.lazy import import_all

if TYPE_CHECKING:
    from phlox.config.schema import Schema

TAG = "type"
"""The JSON key for the class of a config, where the annotation does not determine it."""


class Structured:
    """The interface of a config class that fields and schemas need; `BaseConfig` adds the rest."""

    __phlox_root__: ClassVar[bool] = True
    """Whether this is one of our own base classes, which have no instances."""

    @classmethod
    def __phlox_schema__(cls) -> Schema:
        """The fields, with resolved annotations; raises `ConfigError` if one cannot be resolved."""
        raise NotImplementedError

    @classmethod
    def __phlox_unknown__(cls, name: object) -> str:
        """The message for `name`, which is not a field."""
        raise NotImplementedError

    def validate(self) -> None:
        """Check what types cannot express."""


class ConfigType(FieldType):
    """A config of one of `bases` or of their subclasses.

    It is stored as a JSON object. If its class is not the only one in the annotation, the object names it under the key
    "type". Without that key it is a config of the annotated class.
    """

    def __init__(self, bases: tuple[type[Structured], ...]) -> None:
        self.name = " | ".join(base.__name__ for base in bases)
        self._bases = bases
        only = bases[0] if len(bases) == 1 else None
        self._only = None if only is None or only.__phlox_root__ or inspect.isabstract(only) else only

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if isinstance(value, self._bases):
            return value
        if not reading.stored:
            return reading.unfit(path, self.name, value)
        if not isinstance(value, Mapping):
            return reading.unfit(path, f"an object ({self.name})", value)
        data = dict(cast(Mapping[object, object], value))
        if TAG not in data:
            if self._only is None:
                return reading.problem(join(path, TAG), f"missing; expected {_one_of(self._classes())}")
            return self._only.__phlox_schema__().read(data, path, reading)
        classes = self._classes(tag := data.pop(TAG))
        if not isinstance(tag, str) or tag not in classes:
            message = f"unknown class {tag!r}{did_you_mean(tag, classes)}; expected {_one_of(classes)}"
            return reading.problem(join(path, TAG), message)
        if len(classes[tag]) > 1:
            return reading.problem(join(path, TAG), _ambiguous(tag, classes[tag]))
        return classes[tag][0].__phlox_schema__().read(data, path, reading)

    def write(self, value: Structured) -> dict[str, Any]:
        data, cls = value.__phlox_schema__().write(value), type(value)
        if cls is self._only:
            return data
        namesakes = self._classes(cls.__name__)[cls.__name__]
        if len(namesakes) > 1:
            raise ConfigError(f"{cls.__name__} cannot be stored: {_ambiguous(cls.__name__, namesakes)}")
        return {TAG: cls.__name__, **data}

    def _classes(self, name: object = None) -> dict[str, list[type[Structured]]]:
        """The classes that are alive, by their names; those called `name` without garbage."""
        import_all()  # another process may have stored a class that this one has not imported yet
        if isinstance(name, str) and len(self._alive().get(name, ())) > 1:
            gc.collect()  # classes defined in a function that has returned survive in reference cycles
        return self._alive()

    def _alive(self) -> dict[str, list[type[Structured]]]:
        # The interpreter's list of subclasses is weak, so nothing leaks.
        unique: dict[object, type[Structured]] = {}
        for base in self._bases:
            for cls in _with_subclasses(base):
                local = "<locals>" in cls.__qualname__
                unique[id(cls) if local else (cls.__module__, cls.__qualname__)] = cls  # a later definition replaces
        classes: dict[str, list[type[Structured]]] = {}
        for cls in unique.values():
            classes.setdefault(cls.__name__, []).append(cls)
        return classes


def _with_subclasses(base: type[Structured]) -> Iterator[type[Structured]]:
    # A class that `config_of` creates has no instances: only its subclasses have.
    if base.__name__.isidentifier() and not base.__phlox_root__ and not inspect.isabstract(base):
        yield base
    for cls in base.__subclasses__():
        yield from _with_subclasses(cls)


def _one_of(classes: Mapping[str, object]) -> str:
    return "one of " + ", ".join(sorted(classes)) if classes else "a subclass, but there are none"


def _ambiguous(name: str, classes: list[type[Structured]]) -> str:
    paths = ", ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)
    return f"{name} names {len(classes)} classes ({paths}); rename all but one"
