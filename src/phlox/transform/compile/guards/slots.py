"""Values from outside of a function, and the slots that hold them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import Any, NamedTuple, TypeAlias, cast, final


@final
class Absent:
    """The value of an empty slot."""

    def __repr__(self) -> str:
        return "not there"


ABSENT = Absent()


class Slot(NamedTuple):
    """A slot that holds a value: how to read it again."""

    get: Callable[[], Any]
    value: Any
    key: tuple[Hashable, ...]
    """Equal for the same slot; it begins with the id of the object that has the slot."""

    @classmethod
    def item(cls, of: Any, key: Any) -> Slot:
        """`of[key]`, also of the dict of a module or an object."""
        return cls(partial(getitem, of, key), of[key], (id(of), key))

    @classmethod
    def no_item(cls, of: Any, key: Any) -> Slot:
        """A key that a dict does not have."""
        return cls(partial(of.get, key, ABSENT), ABSENT, (id(of), key))

    @classmethod
    def attribute(cls, of: Any, name: str) -> Slot | None:
        """`of.name`, as Python looks it up; None if there is none."""
        value = attribute_of(of, name, ABSENT)
        return None if value is ABSENT else cls(partial(getattr, of, name), value, (id(of), "attribute", name))


@dataclass(frozen=True, slots=True, eq=False)
class Outside:
    """A value from outside, and the slots on the way to it, which could hold other objects: for `a.b`, `a` and `b`.

    Without slots it is a constant of the function.
    """

    value: Any
    text: str
    """Its expression in the code."""
    where: str = ""
    """The function that reads it, and the line."""
    slots: tuple[Slot, ...] = ()

    def at(self, place: Slot, text: str, where: str = "") -> Outside:
        """A part of it."""
        return Outside(place.value, text, self.where or where, (*self.slots, place))

    @property
    def label(self) -> str:
        """Its name in explanations."""
        return f"{self.text}, read in {self.where}"

    @property
    def mark(self) -> Hashable:
        """Equal for the same value from the same slot."""
        return id(self.value), self.text, self.where, len(self.slots)


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of which only the class matters: its contents are compared as an argument."""

    cls: type[Any]

    @property
    def mark(self) -> Hashable:
        """Equal for the same class."""
        return self.cls


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A method and its object."""

    function: Any
    """A `FunctionType`; with that annotation, type checkers would see a method of this class."""
    owner: Outside | Instance
    name: str

    @property
    def mark(self) -> Hashable:
        """Equal for the same method of the same object."""
        return self.function, self.owner.mark


Source: TypeAlias = Outside | Instance | Bound


def class_of(owner: Outside | Instance) -> type[Any]:
    """The class of an object."""
    return owner.cls if isinstance(owner, Instance) else cast("type[Any]", type(owner.value))


def class_attribute(cls: type[Any], name: str) -> Any:
    """The attribute of a class, not bound to an object; `ABSENT` if there is none."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return ABSENT


def attribute_of(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object; the default if there is none, or if reading it fails."""
    try:
        return getattr(value, name, default)
    except Exception:  # this may run the user's code
        return default


def instance_dict(value: Any) -> dict[str, Any]:
    """The attributes that an object keeps in a dict."""
    attributes = attribute_of(value, "__dict__")
    return cast("dict[str, Any]", attributes) if isinstance(attributes, dict) else {}


def fields_of(value: Any) -> Iterator[str]:
    """The names of an object's attributes."""
    yield from instance_dict(value)
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        yield from [names] if isinstance(names, str) else names
