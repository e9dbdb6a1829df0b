"""What a module is made of, beside its parameters: the skeleton from which another one can be built.

A walk over a module finds its containers (modules, lists, tuples, dicts), its parameters, each once, and everything
else, which is static. The result is kept on the module and thrown away when a part of it changes: modules and
parameters say so themselves, plain lists and dicts are compared with what they were.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from phlox.errors import ModuleError
from phlox.module.fields import Fields, own_dict, postpone
from phlox.module.param import Param


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of the n-th parameter."""

    number: int


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is not a parameter and holds none."""

    value: Any


@dataclass(frozen=True, slots=True)
class Shared:
    """A module that stands elsewhere too: the n-th container."""

    number: int


@dataclass(frozen=True, slots=True)
class Container:
    """A module, list, tuple or dict."""

    cls: type[Any]
    keys: tuple[Any, ...]
    children: tuple[Part, ...]
    number: int


Part: TypeAlias = Leaf | Static | Shared | Container


class Structure:
    """A walk over one module: its skeleton, its parameters and their paths."""

    def __init__(self, root: Fields) -> None:
        walk = _Walk(root)
        self.skeleton: Container = walk.skeleton
        self.params: list[Param] = walk.params
        self.paths: list[str] = walk.paths
        self.aliases: dict[str, str] = walk.aliases
        """For a parameter that stands in several places: its further paths, and the first."""
        self.valid = True
        """Set to False by a part when it changes."""
        self.aux: Any = None
        """Kept here by `phlox.module.template.aux_of`."""
        self._plain = walk.plain
        for part in (*walk.modules, *walk.params):
            part.watch(self)

    def holds(self) -> bool:
        """Is the module still as it was?"""
        return self.valid and all(_same(_contents(whole), parts) for whole, parts in self._plain)

    def named(self) -> Iterator[tuple[str, Param]]:
        """Paths and parameters, each parameter once."""
        return zip(self.paths, self.params, strict=True)

    def build(self, params: list[Param]) -> Any:
        """A module of this structure around other parameters."""
        return build(self.skeleton, params)


def _contents(whole: list[Any] | dict[Any, Any]) -> tuple[Any, ...]:
    return (*whole, *whole.values()) if isinstance(whole, dict) else tuple(whole)


def _same(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def build(skeleton: Container, params: list[Param]) -> Any:
    """A module with this skeleton around these parameters."""
    made: dict[int, Any] = {}

    def part(of: Part) -> Any:
        match of:
            case Leaf(number):
                return params[number]
            case Static(value):
                return value
            case Shared(number):
                return made[number]
            case Container(cls, keys, children, number):
                parts = [part(child) for child in children]
                made[number] = whole = _assemble(cls, keys, parts)
                return whole

    return part(skeleton)


def _assemble(cls: type[Any], keys: tuple[Any, ...], parts: list[Any]) -> Any:
    if cls is list:
        return parts
    make: Any = cls
    if issubclass(cls, dict):
        return make(zip(keys, parts, strict=True))
    if issubclass(cls, tuple):
        return make(*parts) if hasattr(make, "_fields") else tuple(parts)
    module: Any = object.__new__(cls)
    postpone(module, None)
    own_dict(module).update(zip(keys, parts, strict=True))
    return module


class _Walk:
    """One pass over a module."""

    def __init__(self, root: Fields) -> None:
        self.params: list[Param] = []
        self.paths: list[str] = []
        self.aliases: dict[str, str] = {}
        self.modules: list[Fields] = []
        self.plain: list[tuple[list[Any] | dict[Any, Any], tuple[Any, ...]]] = []
        self._numbers: dict[int, int] = {}
        self._taken: set[str] = set()
        self._containers: dict[int, int] = {}
        self._open: set[int] = set()
        part = self._container(root, vars(root), ())
        assert isinstance(part, Container)
        self.skeleton = part

    def _part(self, value: Any, path: tuple[str, ...]) -> Part:
        if isinstance(value, Param):
            return self._param(value, path)
        fields = _fields_of(value)
        if fields is not None:
            return self._container(value, fields, path)
        if isinstance(value, (dict, list, set, frozenset, deque)):
            _refuse_hidden(cast("Any", value), path)
        return Static(value)

    def _param(self, param: Param, path: tuple[str, ...]) -> Leaf:
        name = ".".join(path)
        if name in self._taken:
            raise ModuleError(f"two parameters have the path `{name}`; rename a key or a field")
        self._taken.add(name)
        number = self._numbers.get(id(param))
        if number is None:
            number = self._numbers[id(param)] = len(self.params)
            self.params.append(param)
            self.paths.append(name)
        else:
            self.aliases[name] = self.paths[number]
        return Leaf(number)

    def _container(self, value: Any, fields: dict[Any, Any], path: tuple[str, ...]) -> Part:
        identity, cls = id(value), cast("type[Any]", type(value))
        if identity in self._open:
            raise ModuleError(f"`{'.'.join(path)}` contains itself; a module must be a tree")
        module = value if isinstance(value, Fields) else None
        shared = None if module is None else self._containers.get(identity)
        if type(value) is list or isinstance(value, dict):
            whole = cast("list[Any] | dict[Any, Any]", value)
            self.plain.append((whole, _contents(whole)))
        self._open.add(identity)
        # A module that stands elsewhere too is walked again for the further paths of its parameters.
        children = tuple(self._part(child, (*path, str(key))) for key, child in fields.items())
        self._open.discard(identity)
        if shared is not None:
            return Shared(shared)
        number = self._containers[identity] = len(self._containers)
        if module is not None:
            self.modules.append(module)
        return Container(cls, tuple(fields), children, number)


def _refuse_hidden(value: Any, path: tuple[str, ...]) -> None:
    elements: Any = value.values() if hasattr(value, "values") else value
    for element in elements:
        if isinstance(element, (Param, Fields)):
            raise ModuleError(
                f"`{'.'.join(path)}` holds a {type(element).__name__} in a {type(value).__name__}, "
                "where it would not be found; use a list, a tuple or a dict"
            )


def _fields_of(value: Any) -> dict[Any, Any] | None:
    """What a container holds, by key; None if the value is none."""
    if isinstance(value, Fields):
        return vars(value)
    kind = cast("type[Any]", type(value))
    if kind is dict or kind is OrderedDict:
        return dict(value)
    if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return dict(enumerate(cast("Iterable[Any]", value)))
    return None


class ByIdentity:
    """A static value that is compared by identity."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def static_key(value: Any) -> Hashable:
    """What is equal for static values that are alike: 1, 1.0 and True are not; `TypeError` for what has no hash."""
    if isinstance(value, float):
        return type(value), value.hex()  # 0.0 and -0.0 are not alike, NaN and NaN are
    if isinstance(value, set):
        value = frozenset(cast("set[Any]", value))
    hash(value)
    return cast("type[Any]", type(value)), value
