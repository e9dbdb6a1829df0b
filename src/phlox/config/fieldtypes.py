"""Field types: how the values of each annotation are checked, stored as JSON and read back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, cast

import numpy as np

from phlox.config.frozen import FrozenDict
from phlox.config.reading import INVALID, Reading, did_you_mean, join


class FieldType(ABC):
    """The type of a field; `name` is shown in messages."""

    name: str
    is_text = False
    """Whether values are stored as strings, and so can be keys of a JSON object."""

    @abstractmethod
    def read(self, value: object, path: str, reading: Reading) -> Any:
        """Convert `value` to the form that a config holds; for an error, add a problem at `path` and return INVALID."""

    def write(self, value: Any) -> Any:
        """Convert a value that `read` has accepted to a JSON value."""
        return value


class Scalar(FieldType):
    """A number, bool, str or None. `convert` raises ValueError, with a remark, for anything else."""

    def __init__(self, name: str, convert: Callable[[object], object]) -> None:
        self.name = name
        self.is_text = name == "str"
        self._convert = convert

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if isinstance(value, np.generic):
            value = cast(object, value.item())
        try:
            return self._convert(value)
        except ValueError as error:
            return reading.unfit(path, self.name, value, str(error))


def _none(value: object) -> None:
    if value is not None:
        raise ValueError


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _int(value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError
    return index(cast("SupportsIndex", value))


def _float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        return math.nan  # always the same object, so that tuples, dicts and configs with it compare equal
    if number != value:
        raise ValueError(", which is not exactly a float")
    return number


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    _require_unicode(value)
    return str.__str__(value)  # a plain str, even for a subclass that overrides `__str__`


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(", which is not valid Unicode") from None


NONE = Scalar("None", _none)
BOOL = Scalar("bool", _bool)
INT = Scalar("int", _int)
STR = Scalar("str", _str)


class FloatType(Scalar):
    """A float. JSON has no NaN or infinity: they are stored as the strings "nan", "inf" and "-inf"."""

    _texts = ("nan", "inf", "-inf")

    def __init__(self) -> None:
        super().__init__("float", _float)

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if reading.stored and value in self._texts:
            value = float(cast(str, value))
        return super().read(value, path, reading)

    def write(self, value: float) -> float | str:
        return value if math.isfinite(value) else str(value)


FLOAT = FloatType()


class PathType(FieldType):
    """A `pathlib.Path`, stored as a string with forward slashes."""

    name = "Path"
    is_text = True

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if reading.stored and isinstance(value, str):
            value = Path(value)
        if not isinstance(value, Path):
            return reading.unfit(path, self.name, value)
        try:
            _require_unicode(str(value))
        except ValueError as error:
            return reading.unfit(path, self.name, value, str(error))
        return value

    def write(self, value: Path) -> str:
        return value.as_posix()


class LiteralType(FieldType):
    """One of several given values of type str, int, bool or None."""

    def __init__(self, options: Sequence[str | int | None]) -> None:
        self.name = " | ".join(map(repr, options))
        self.is_text = all(isinstance(option, str) for option in options)
        self._options = options

    def read(self, value: object, path: str, reading: Reading) -> Any:
        for option in self._options:
            if type(option) is type(value) and option == value:
                return option
        texts = [option for option in self._options if isinstance(option, str)]
        if not isinstance(value, str) or not texts:
            return reading.unfit(path, self.name, value)
        return reading.problem(path, f"expected {self.name}, got {value!r}{did_you_mean(value, texts)}")


class EnumType(FieldType):
    """A member of an enumeration, stored by its name: names are unique strings, whatever the values are."""

    is_text = True

    def __init__(self, enumeration: type[Enum]) -> None:
        self.name = enumeration.__name__
        self._enumeration = enumeration

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if isinstance(value, self._enumeration):
            return value
        if not reading.stored or not isinstance(value, str):
            return reading.unfit(path, self.name, value)
        members = self._enumeration.__members__
        if value in members:
            return members[value]
        near = did_you_mean(value, members)
        return reading.problem(
            path, f"expected the name of one of {self.name} ({', '.join(members)}), got {value!r}{near}"
        )

    def write(self, value: Enum) -> str:
        return value.name


class SequenceType(FieldType):
    """Any number of values of one type, in a container that `build` makes."""

    def __init__(self, name: str, item: FieldType, build: Callable[[Iterable[Any]], Sequence[Any]]) -> None:
        self.name = name
        self._item = item
        self._build = build

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if not _is_sequence(value):
            return reading.unfit(path, self.name, value)
        items = [self._item.read(item, join(path, i), reading) for i, item in enumerate(cast(Sequence[object], value))]
        return INVALID if any(item is INVALID for item in items) else self._build(items)

    def write(self, value: Sequence[Any]) -> list[Any]:
        return [self._item.write(item) for item in value]


class TupleType(FieldType):
    """A tuple with one type per position."""

    def __init__(self, items: Sequence[FieldType]) -> None:
        self.name = f"tuple[{', '.join(item.name for item in items) or '()'}]"
        self._items = items

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if not _is_sequence(value):
            return reading.unfit(path, self.name, value)
        values = cast(Sequence[object], value)
        if len(values) != len(self._items):
            return reading.unfit(path, self.name, value, f", which has {len(values)} items")
        items = tuple(kind.read(values[i], join(path, i), reading) for i, kind in enumerate(self._items))
        return INVALID if any(item is INVALID for item in items) else items

    def write(self, value: tuple[Any, ...]) -> list[Any]:
        return [kind.write(item) for kind, item in zip(self._items, value, strict=True)]


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


class MappingType(FieldType):
    """A mapping with keys of one string-like type and values of one type, as a `FrozenDict` in the given order."""

    def __init__(self, name: str, key: FieldType, value: FieldType) -> None:
        self.name = name
        self._key = key
        self._value = value

    def read(self, value: object, path: str, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            return reading.unfit(path, self.name, value)
        result: dict[Any, Any] = {}
        sound = True
        for key, item in cast(Mapping[object, object], value).items():
            where = join(path, key)
            name, held = self._key.read(key, where, reading), self._value.read(item, where, reading)
            if name is not INVALID and name in result:
                name = reading.problem(where, "duplicates another key")
            sound = sound and name is not INVALID and held is not INVALID
            result[name] = held
        return FrozenDict(result) if sound else INVALID

    def write(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        return {self._key.write(key): self._value.write(item) for key, item in value.items()}


class UnionType(FieldType):
    """A union: the member that accepts a value unchanged, else the first that accepts it."""

    def __init__(self, members: Sequence[FieldType]) -> None:
        self.name = " | ".join(member.name for member in members)
        self.is_text = all(member.is_text for member in members)
        self._members = members

    def read(self, value: object, path: str, reading: Reading) -> Any:
        trials = [(member, reading.fork()) for member in self._members]
        results = [(member, member.read(value, path, trial)) for member, trial in trials]
        accepted = [(member, result) for member, result in results if result is not INVALID]
        if not accepted:
            return self._report(value, path, reading, [trial for _, trial in trials])
        exact = [pair for pair in accepted if _same(pair[1], value)]
        member, result = (exact or accepted)[0]
        if not reading.trusting:
            again = self.read(member.write(result), path, Reading(stored=True, trusting=True))
            if not _same(again, result):
                return reading.problem(path, f"as {self.name}, {result!r} would be read back from JSON as {again!r}")
        return result

    def _report(self, value: object, path: str, reading: Reading, trials: Sequence[Reading]) -> Any:
        # If only one member can be meant, the errors in its parts say more than that no member fits.
        meant = [t.problems for t in trials if not any(p.unfit and p.path == path for p in t.problems)]
        if len(meant) != 1:
            return reading.unfit(path, self.name, value)
        reading.problems += meant[0]
        return INVALID

    def write(self, value: Any) -> Any:
        for member in self._members:
            if _same(member.read(value, "", Reading(trusting=True)), value):
                return member.write(value)
        raise AssertionError(f"{value!r} was never read as {self.name}")


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and (left,) == (right,)  # in tuples, so that the same NaN is equal
