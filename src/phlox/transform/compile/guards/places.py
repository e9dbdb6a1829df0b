"""Values from outside of a function, and the places where they were found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import Any, NamedTuple, TypeAlias, cast, final


@final
class Absent:
    """What is found where there is nothing."""

    def __repr__(self) -> str:
        return "not there"


ABSENT = Absent()


class Place(NamedTuple):
    """How a value is found again."""

    get: Callable[[], Any]
    value: Any
    key: tuple[Hashable, ...]
    """Equal for the same place; it begins with the id of what the place is in."""

    @classmethod
    def item(cls, of: Any, key: Any) -> Place:
        """`of[key]`, also of the dict of a module or an object."""
        return cls(partial(getitem, of, key), of[key], (id(of), key))

    @classmethod
    def no_item(cls, of: Any, key: Any) -> Place:
        """A key that a dict does not have."""
        return cls(partial(of.get, key, ABSENT), ABSENT, (id(of), key))

    @classmethod
    def attribute(cls, of: Any, name: str) -> Place | None:
        """`of.name`, as Python looks it up; None if there is none."""
        value = attribute_of(of, name, ABSENT)
        return None if value is ABSENT else cls(partial(getattr, of, name), value, (id(of), "attribute", name))


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A value, and the places on the way to it, each of which could hold another one: those of `a.b` are `a` and `b`.

    Without places it is a constant of the function.
    """

    value: Any
    text: str
    """How it is written."""
    where: str = ""
    """The function that reads it, and the line."""
    places: tuple[Place, ...] = ()

    def at(self, place: Place, text: str, where: str = "") -> Found:
        """A part of it."""
        return Found(place.value, text, self.where or where, (*self.places, place))

    @property
    def label(self) -> str:
        """What it is called in explanations."""
        return f"{self.text}, read in {self.where}"

    @property
    def mark(self) -> Hashable:
        """Equal for the same value from the same place."""
        return id(self.value), self.text, self.where, len(self.places)


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of which only the class matters: what it holds is compared as an argument."""

    cls: type[Any]

    @property
    def mark(self) -> Hashable:
        """Equal for the same class."""
        return self.cls


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A method and its object."""

    function: Any
    """A `FunctionType`, which type checkers would take for a method of this class."""
    owner: Found | Instance
    name: str

    @property
    def mark(self) -> Hashable:
        """Equal for the same method of the same object."""
        return self.function, self.owner.mark


Source: TypeAlias = Found | Instance | Bound


def class_of(owner: Found | Instance) -> type[Any]:
    """The class of an object."""
    return owner.cls if isinstance(owner, Instance) else cast("type[Any]", type(owner.value))


def in_class(cls: type[Any], name: str) -> Any:
    """What a class has by a name, before it is bound to an object; `ABSENT` if there is nothing."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return ABSENT


def attribute_of(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object; the default if it has none, or fails to say."""
    try:
        return getattr(value, name, default)
    except Exception:  # it is the user's own code that runs
        return default


def inside_of(value: Any) -> dict[str, Any]:
    """The attributes that an object keeps in a dict."""
    found = attribute_of(value, "__dict__")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def fields_of(value: Any) -> Iterator[str]:
    """The names of what an object holds."""
    yield from inside_of(value)
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        yield from [names] if isinstance(names, str) else names
