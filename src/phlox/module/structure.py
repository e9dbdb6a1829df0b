"""What a module is made of, beside its parameters: the skeleton from which another one can be built.

A walk over a module finds its containers (modules, lists, tuples, dicts), its parameters, each once, and everything
else, which is static. The result is kept on the module and thrown away when a part of it changes: modules and
parameters say so themselves, plain lists and dicts are compared with what they were.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.errors import ModuleError
from phlox.module.param import Param, ParamId, revive
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops

if TYPE_CHECKING:
    from phlox.module.module import Module


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


class Watcher:
    """Set to invalid by a part of a module when it changes."""

    __slots__ = ("valid",)

    def __init__(self) -> None:
        self.valid = True


class Structure:
    """A walk over one module: its skeleton, its parameters and their paths."""

    def __init__(self, root: Module) -> None:
        walk = _Walk(root)
        self.skeleton: Container = walk.skeleton
        self.params: list[Param] = walk.params
        self.paths: list[str] = walk.paths
        self.aliases: dict[str, str] = walk.aliases
        """For a parameter that stands in several places: its further paths, and the first."""
        self._watcher = Watcher()
        self._plain = walk.plain
        self._key: Hashable | None = None
        for part in (*walk.modules, *walk.params):
            part._watchers.append(self._watcher)  # pyright: ignore[reportPrivateUsage]

    def holds(self) -> bool:
        """Is the module still as it was?"""
        if not self._watcher.valid:
            return False
        for container, elements in self._plain:
            now = container.values() if type(container) is dict else container
            if len(now) != len(elements) or not all(map(operator.is_, now, elements)):
                return False
        return True

    def key(self) -> Hashable:
        """What must be equal for two modules to be built alike: structure, static values, what holds each parameter.

        Raises `ModuleError`, with the path, for a static value that cannot be compared.
        """
        if self._key is None:
            leaves = tuple((param.ops, param.trained) for param in self.params)
            self._key = (_key_of(self.skeleton, ()), leaves)
        return self._key

    def build(self, params: list[Param]) -> Any:
        """A module of this structure around other parameters."""
        return build(self.skeleton, params)


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
                if cls is list:
                    whole: Any = [part(child) for child in children]
                elif cls is dict:
                    whole = {key: part(child) for key, child in zip(keys, children, strict=True)}
                elif issubclass(cls, tuple):
                    elements = [part(child) for child in children]
                    whole = cls(*elements) if hasattr(cls, "_fields") else tuple(elements)
                else:
                    whole = object.__new__(cls)
                    whole._adopt({key: part(child) for key, child in zip(keys, children, strict=True)})
                made[number] = whole
                return whole

    return part(skeleton)


def _is_container(value: Any) -> bool:
    from phlox.module.module import Module

    kind = type(value)
    return (
        kind in (list, dict, tuple)
        or isinstance(value, Module)
        or (isinstance(value, tuple) and hasattr(kind, "_fields"))
    )


class _Walk:
    """One pass over a module."""

    def __init__(self, root: Module) -> None:
        self.params: list[Param] = []
        self.paths: list[str] = []
        self.aliases: dict[str, str] = {}
        self.modules: list[Module] = []
        self.plain: list[tuple[Any, tuple[Any, ...]]] = []
        self._numbers: dict[int, int] = {}
        self._taken: set[str] = set()
        self._containers: dict[int, int] = {}
        self._open: set[int] = set()
        self._count = 0
        part = self._part(root, ())
        assert isinstance(part, Container)
        self.skeleton = part

    def _part(self, value: Any, path: tuple[str, ...]) -> Part:
        if type(value) is Param:
            return self._param(value, path)
        return self._container(value, path) if _is_container(value) else Static(value)

    def _param(self, param: Param, path: tuple[str, ...]) -> Leaf:
        name = ".".join(path)
        if name in self._taken:
            raise ModuleError(f"two different parameters have the path `{name}`; rename a key or a field")
        self._taken.add(name)
        number = self._numbers.get(id(param))
        if number is None:
            number = self._numbers[id(param)] = len(self.params)
            self.params.append(param)
            self.paths.append(name)
        else:
            self.aliases[name] = self.paths[number]
        return Leaf(number)

    def _container(self, value: Any, path: tuple[str, ...]) -> Part:
        from phlox.module.module import Module

        identity = id(value)
        if identity in self._open:
            raise ModuleError(f"`{'.'.join(path)}` contains itself; a module must be a tree")
        shared = isinstance(value, Module) and identity in self._containers
        fields: dict[Any, Any]
        if isinstance(value, Module):
            fields = value._fields()  # pyright: ignore[reportPrivateUsage]
        elif type(value) is dict:
            fields = value  # pyright: ignore[reportUnknownVariableType]
            self.plain.append((value, tuple(fields.values())))
        else:
            fields = dict(enumerate(value))
            if type(value) is list:
                self.plain.append((value, tuple(fields.values())))
        self._open.add(identity)
        children = tuple(self._part(child, (*path, str(key))) for key, child in fields.items())
        self._open.discard(identity)
        if shared:
            return Shared(self._containers[identity])
        number = self._containers[identity] = self._count
        self._count += 1
        if isinstance(value, Module):
            self.modules.append(value)
        return Container(type(value), tuple(fields), children, number)


class ByIdentity:
    """A static value that is compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _key_of(part: Part, path: tuple[str, ...]) -> Hashable:
    match part:
        case Static(value):
            if isinstance(value, Tensor):
                return ByIdentity(value)
            try:
                hash(value)
            except TypeError:
                raise ModuleError(
                    f"the static field `{'.'.join(path)}` is of type {type(value).__name__}, which cannot be compared "
                    "and so cannot pass through a transformation; make it a tuple, a frozen dataclass, or a Param of a "
                    "tensor"
                ) from None
            return (type(value), value)
        case Container(cls, keys, children, _):
            parts = zip(keys, children, strict=True)
            return (cls, keys, tuple(_key_of(child, (*path, str(key))) for key, child in parts))
        case _:
            return part


class Template:
    """An interned structure: modules built alike share one, so comparing structures is comparing identities.

    It holds what a module is built from when only arrays are given, and no id of any parameter.
    """

    __slots__ = ("__weakref__", "eager", "leaves", "paths", "plain", "skeleton")

    def __init__(self, structure: Structure) -> None:
        self.skeleton = structure.skeleton
        self.paths = tuple(structure.paths)
        self.leaves: tuple[tuple[Ops, bool], ...] = tuple((param.ops, param.trained) for param in structure.params)
        self.plain = not any(ops.backend.differentiates for ops, _ in self.leaves)
        # A field that hides an attribute of the class would be missed by an object that is built on first access.
        self.eager = any(hasattr(self.skeleton.cls, str(name)) for name in self.skeleton.keys)

    def build(self, arrays: Any, ids: tuple[ParamId, ...]) -> Any:
        """A module around these arrays."""
        marks = zip(self.leaves, arrays, ids, strict=True)
        return build(self.skeleton, [revive(ops, array, trained, id) for (ops, trained), array, id in marks])


def each_path(structure: Structure) -> Iterator[tuple[str, Param]]:
    """Paths and parameters, each parameter once."""
    return zip(structure.paths, structure.params, strict=True)
