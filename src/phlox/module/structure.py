"""The structure of a module without its parameters: a skeleton from which another module can be built.

A walk over a module finds its containers (modules, lists, tuples, dicts), its parameters, each once, and everything
else, which is static. The result is cached on the module until a part of it changes: modules and parameters notify it,
and plain lists, dicts and sets, small arrays and objects of the user's own are compared with their old contents.
"""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import RLock
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend.pytree import NAMED_TUPLE, container_of_class
from phlox.errors import ModuleError
from phlox.module.fields import RESERVED, Fields, fields_of, may_change_unseen, own_dict, reserved, set_slot, set_up
from phlox.module.foreign_layer import foreign, refuse_foreign
from phlox.module.misplaced_params import AnyFunction, functions_in, refuse_holders
from phlox.module.own_records import Child, saves_itself
from phlox.module.param import Param, ParamId, new_id
from phlox.module.statics import (
    Static,
    StaticArray,
    StaticSet,
    constant_key,
    key_or_none,
    open_objects,
    static_part,
    static_value,
)

Plain: TypeAlias = "list[Any] | dict[Any, Any] | set[Any]"
_PLAIN = frozenset({list, tuple, dict, OrderedDict})
"""Containers in modules, besides named tuples; it is not known how to rebuild containers of other classes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands for the n-th parameter."""

    number: int


@dataclass(frozen=True, slots=True)
class Shared:
    """A module that is at several paths: a reference to the n-th container."""

    number: int


@dataclass(frozen=True, slots=True)
class Container:
    """A module, list, tuple or dict."""

    cls: type[Any]
    keys: tuple[Any, ...]
    children: tuple[Part, ...]
    number: int


Part: TypeAlias = Leaf | Static | Shared | Container


class Elsewhere:
    """Stands for a parameter or module at its second and further paths, in a tree that was taken apart.

    The nearest module above all its paths replaces this with the part at the first path. Until then, in a tree that was
    just taken apart, this acts like that part; in a tree that was built around other leaves, it cannot.
    """

    __slots__ = ("tied_at", "tied_to")

    def __init__(self, source: Any = None, path: tuple[Any, ...] = ()) -> None:
        self.tied_to = source
        self.tied_at = path
        """Its path in the module above both."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._original(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original()(*args, **kwargs)

    def _original(self) -> Any:
        if self.tied_to is None:
            raise ModuleError(
                "this parameter or module is also at an earlier path of the model, and this part was built "
                "without that path; put the part back into the tree of the whole model, and use the model"
            )
        return self.tied_to

    def __repr__(self) -> str:
        return "the part at an earlier path"


class Structure:
    """A walk over one module: its skeleton, its parameters and their paths.

    All parameters have different ids: copies in one module get new ones. `before` is the structure of the module before
    it changed.
    """

    def __init__(self, root: Fields, before: Structure | None = None) -> None:
        walk = _Walk(root)
        self.skeleton: Container = walk.skeleton
        self.params: list[Param] = walk.params
        self.paths: list[str] = walk.paths
        self.unsaved = walk.unsaved
        """The paths of modules that are left out of the record."""
        self.children: list[Child] = walk.children
        """The children that save and load themselves."""
        self.aliases: dict[str, str] = walk.aliases
        """The further paths of parameters that are at several paths, each with the first path."""
        self.were_one_leaf: list[tuple[Param, str, str]] = []
        """Parameters that shared a leaf of the tape with another one, and the paths of both."""
        self.owners = owners_of(walk.params, walk.paths, before, self.were_one_leaf)
        self.ids_differ = True
        """A parameter sets this to False when its id changes."""
        self.valid = True
        """A part sets this to False when it changes."""
        self.aux: Any = None
        """Set by `phlox.module.template.aux_of`; reset when a parameter changes its kind."""
        self.tree: Any = None
        """Set by `phlox.module.tree`; reset at the same time."""
        self._root = weakref.ref(root)
        self._plain = walk.plain
        self._arrays = walk.arrays
        self._objects = list(walk.objects.values())
        self._modes: dict[bool | None, Container] = {}
        self._repeats = not walk.functions and not walk.has_copies
        """Whether a module that is built from this structure can reuse it without another walk."""
        for part in (*walk.modules, *walk.params):
            part.watch(self)

    def is_unchanged(self) -> bool:
        """Is the module unchanged since the walk?"""
        if not self.valid:
            return False
        for whole, parts in self._plain:
            if not _are_same(cast("list[Any]", whole) if whole.__class__ is list else _contents(whole), parts):
                return False
        if self._arrays and any(array.tobytes() != old_content for array, old_content in self._arrays):
            return False
        if self._objects and any(key_or_none(value) != old_content for value, old_content in self._objects):
            return False
        if not self.ids_differ:
            self.owners = owners_of(self.params, self.paths, self, self.were_one_leaf)
            self.ids_differ = True
        return True

    def named(self) -> Iterator[tuple[str, Param]]:
        """Paths and parameters, each parameter once."""
        return zip(self.paths, self.params, strict=True)

    def build(self, params: list[Param]) -> Any:
        """A module of this structure around other parameters."""
        containers: dict[int, Any] = {}
        module = build(self.skeleton, params, containers)
        owners = {param.id: param for param in params}
        if self._repeats and len(owners) == len(params) == len(self.params):
            modules = [build_part for build_part in containers.values() if isinstance(build_part, Fields)]
            if not any(map(may_change_unseen, modules)):
                set_slot(module, "_phlox_structure", self._of_built(params, owners, modules, containers))
        return module

    def _of_built(
        self, params: list[Param], owners: dict[ParamId, Param], modules: list[Fields], containers: dict[int, Any]
    ) -> Structure:
        """The structure of a module that was just built from this one, without another walk."""
        other = object.__new__(Structure)
        other.skeleton, other.paths, other.aliases = self.skeleton, self.paths, self.aliases
        other.params, other.owners, other.were_one_leaf = params, owners, []
        other.unsaved = self.unsaved
        other.children = [c if c.number is None else c._replace(part=containers[c.number]) for c in self.children]
        other.valid, other.ids_differ, other.aux, other.tree = True, True, None, None
        plain = cast("list[Plain]", [whole for whole in containers.values() if isinstance(whole, (list, dict))])
        other._plain = [(whole, _contents(whole)) for whole in plain]
        other._modes, other._repeats = self._modes, True
        other._root = weakref.ref(modules[0])
        other._arrays, other._objects = [], self._objects
        for part in (*modules, *params):
            part.watch(other)
        return other

    def path_of(self, module: Fields) -> str:
        """The path of a module in the module that was walked; empty if it is not in it."""
        root = self._root()
        return "" if root is None else _Walk(root).parts.get(id(module), "")

    def in_mode(self, training: bool | None) -> Container:
        """The skeleton with `training` set in every module; with None, in none."""
        if training not in self._modes:
            self._modes[training] = cast("Container", _with_field(self.skeleton, "training", training))
        return self._modes[training]


def path_of(module: Fields) -> str:
    """The path of a module in the largest module that is known to hold it; empty if none is known."""
    walks = [it for ref in module._phlox_watchers if isinstance(it := ref(), Structure) and it.valid]  # pyright: ignore[reportPrivateUsage]
    return max([it.path_of(module) for it in walks], key=len, default="")


_owners_lock = RLock()


def owners_of(
    params: list[Param], paths: list[str], before: Structure | None, shared: list[tuple[Param, str, str]]
) -> dict[ParamId, Param]:
    """The parameters by id, in order; a parameter with the id of another one gets its own id.

    Copies of a parameter (by `copy.deepcopy`, `map`, pickle, or loaded from one record) have its id, because a copy of
    a whole model continues it. In one module each copy needs its own id: gradients and optimizer states are kept by id.
    The parameter that had the id before keeps it, or else the first one. Each other one takes the id of the parameter
    that was at its path before, if that is gone (so a target network that is copied at every update keeps its ids).
    """
    owners = {param.id: param for param in params}
    if len(owners) == len(params):
        return owners
    with _owners_lock:  # two threads must not give one parameter two ids
        owned = {} if before is None else before.owners
        owners = {param.id: param for param in reversed(params)}
        owners |= {param.id: param for param in params if owned.get(param.id) is param}
        by_path = {} if before is None else dict(zip(before.paths, zip(owned, before.params, strict=True), strict=True))
        for path, param in zip(paths, params, strict=True):
            if owners[param.id] is not param:
                id, old_param = by_path.get(path, (None, None))
                takes_old_id = id is not None and id not in owners and _is_alike(param, old_param)
                owner = owners[param.id]
                if param.tell_apart(owner, id if takes_old_id and id is not None else new_id()):
                    shared.append((owner, next(p for p, o in zip(paths, params, strict=True) if o is owner), path))
                owners[param.id] = param
        return {param.id: param for param in params}


def _is_alike(param: Param, other: Param | None) -> bool:
    return other is not None and param.has_shape and other.has_shape and param.shape == other.shape


def _with_field(part: Part, name: str, value: Any) -> Part:
    if not isinstance(part, Container):
        return part
    children = [_with_field(child, name, value) for child in part.children]
    fields = list(zip(part.keys, children, strict=True))
    if issubclass(part.cls, Fields):
        fields = [field for field in fields if field[0] != name]
        if value is not None:
            fields.append((name, Static(value)))
    return Container(part.cls, tuple([key for key, _ in fields]), tuple([child for _, child in fields]), part.number)


def _contents(whole: Plain) -> tuple[Any, ...]:
    return (*whole, *whole.values()) if isinstance(whole, dict) else tuple(whole)


def _are_same(contents: Sequence[Any], before: tuple[Any, ...]) -> bool:
    return len(contents) == len(before) and all(map(operator.is_, contents, before))


def build(skeleton: Container, params: list[Param], containers: dict[int, Any] | None = None) -> Any:
    """A module with this skeleton around these parameters; adds its new containers to `containers`, by number."""
    built: dict[int, Any] = {} if containers is None else containers

    def build_part(part: Part) -> Any:
        match part:
            case Leaf(number):
                return params[number]
            case Static():
                return static_value(part)
            case Shared(number):
                return built[number]
            case Container(cls, keys, children, number):
                parts = [params[child.number] if type(child) is Leaf else build_part(child) for child in children]
                built[number] = whole = _assemble(cls, keys, parts)
                return whole

    return build_part(skeleton)


def _assemble(cls: type[Any], keys: tuple[Any, ...], parts: list[Any]) -> Any:
    container = None if issubclass(cls, Fields) else container_of_class(cls)  # a module may be a dataclass
    if container is not None:
        return container.make(cls, keys, parts)
    module: Any = object.__new__(cls)
    set_up(module)
    own_dict(module).update(zip(keys, parts, strict=True))
    return module


class _Walk:
    """One pass over a module."""

    def __init__(self, root: Fields) -> None:
        self.params: list[Param] = []
        self.paths: list[str] = []
        self.aliases: dict[str, str] = {}
        self.modules: list[Fields] = []
        self.plain: list[tuple[Plain, tuple[Any, ...]]] = []
        self.arrays: list[tuple[np.ndarray[Any, Any], bytes]] = []
        self.objects: dict[int, tuple[Any, Hashable]] = {}
        self._numbers: dict[int, int] = {}
        self._identities: dict[str, int] = {}
        self._containers: dict[int, int] = {}
        self._open: dict[int, str] = {}
        self.parts: dict[int, str] = {}
        self.functions: list[tuple[str, AnyFunction]] = []
        self.foreign: list[tuple[str, Any]] = []
        self.children: list[Child] = []
        self.unsaved: list[str] = []
        self.has_copies = False
        self._is_in_child = False  # whether the walk is in such a child
        part = self._container(root, contents_of(root) or {}, "")
        assert isinstance(part, Container)
        self.skeleton = part
        if self.functions:
            refuse_holders(self.functions, self.parts)
        if self.foreign:
            refuse_foreign(self.foreign, {self.parts[id(module)]: module for module in self.modules})

    def _part(self, value: Any, name: str) -> Part:
        if isinstance(value, Param):
            return self._param(value, name)
        fields = contents_of(value)
        if fields is not None:
            return self._container(value, fields, name)
        if not self._is_in_child and saves_itself(cast("type[Any]", type(value))):
            self._note_child(value, name)
        if type(value) is Elsewhere:
            return Static(value)
        if foreign(cast("type[Any]", type(value))) is not None:
            self.foreign.append((name, value))
        self.functions += [(name, function) for function in functions_in(value, name)]
        part = static_part(value)
        if isinstance(part, StaticSet):
            self.has_copies = True
            self.plain.append((value, _contents(value)))
        elif isinstance(part, StaticArray):
            self.has_copies = True
            self.arrays.append((value, value.tobytes()))
        for item in open_objects(value):
            if id(item) not in self.objects and (key := key_or_none(item)) is not None:
                self.objects[id(item)] = item, key
        return part

    def _note_child(self, value: Any, name: str) -> None:
        for index, child in enumerate(self.children):
            if child.part is value:
                self.children[index] = child._replace(others=(*child.others, name))
                return
        self.children.append(Child(name, value, len(self.params)))

    def _param(self, param: Param, name: str) -> Leaf:
        identity = id(param)
        if self._identities.setdefault(name, identity) != identity:
            raise ModuleError(f"two parameters have the path `{name}`; rename a key or a field")
        number = self._numbers.get(identity)
        if number is None:
            number = self._numbers[identity] = len(self.params)
            self.params.append(param)
            self.paths.append(name)
            self.parts[identity] = name
        elif name != self.paths[number]:
            self.aliases[name] = self.paths[number]
        return Leaf(number)

    def _container(self, value: Any, fields: dict[Any, Any], name: str) -> Part:
        identity, cls = id(value), cast("type[Any]", type(value))
        if identity in self._open:
            whole = f"`{self._open[identity]}`" if self._open[identity] else "the module"
            raise ModuleError(
                f"`{name}` contains itself: it is {whole}, and also a part of it; a module must be a tree, so keep "
                "only the needed parts of it, or pass it to the method that needs it"
            )
        module = value if isinstance(value, Fields) else None
        shared = None if module is None else self._containers.get(identity)
        if module is None and not isinstance(value, tuple):
            plain = cast("Plain", value)
            self.plain.append((plain, _contents(plain)))
        self._open[identity] = name
        if name and getattr(cls, "_phlox_may_be_unsaved", False) and fields.get("saved") is False:
            self.unsaved.append(name)
        is_child = module is not None and name != "" and not self._is_in_child and saves_itself(cls)
        if is_child:
            self._is_in_child = True
            self._note_child(value, name)
        # A module at several paths is walked again, for the further paths of its parameters.
        prefix = f"{name}." if name else ""
        children = tuple([self._part(child, f"{prefix}{key}") for key, child in fields.items()])
        del self._open[identity]
        self._is_in_child = self._is_in_child and not is_child
        if shared is not None:
            return Shared(shared)
        number = self._containers[identity] = len(self._containers)
        if is_child:
            index = next(i for i, child in enumerate(self.children) if child.part is value)
            self.children[index] = self.children[index]._replace(number=number)
        if module is not None:
            self.modules.append(module)
            self.parts.setdefault(identity, name)
            if may_change_unseen(module):
                own = fields_of(module)
                self.plain.append((own, _contents(own)))
        return Container(cls, tuple(fields), children, number)


def contents_of(value: Any) -> dict[Any, Any] | None:
    """The contents of a container, by key; None if the value is not a container."""
    if isinstance(value, Fields):
        fields, cached = fields_of(value), _cached(type(value))
        if not RESERVED.isdisjoint(fields):
            cls = cast("type[Any]", type(value))
            raise reserved(cls, min(RESERVED & fields.keys()))
        return {name: field for name, field in fields.items() if name not in cached} if cached else fields
    kind = cast("type[Any]", type(value))
    container = container_of_class(kind)
    if container is NAMED_TUPLE or kind in _PLAIN:
        assert container is not None
        return dict(container.items(value))
    return None


@lru_cache(maxsize=4096)
def _cached(cls: type[Any]) -> frozenset[str]:
    """The names of a class's cached properties; a copy computes them again, because it has other parameters."""
    return frozenset(name for base in cls.__mro__ for name, x in vars(base).items() if isinstance(x, cached_property))


def difference(first: Part, second: Part, path: str = "") -> tuple[str, str, str] | None:
    """The path where two skeletons first differ, and the two parts there; None if they are equal.

    Static values that cannot be compared are equal if they are the same object.
    """
    if isinstance(first, Container) and isinstance(second, Container) and first.cls is second.cls:
        if first.keys == second.keys:
            parts = zip(first.keys, first.children, second.children, strict=True)
            differences = (difference(a, b, f"{path}.{key}" if path else str(key)) for key, a, b in parts)
            return next((d for d in differences if d is not None), None)
        a, b = (dict(zip(part.keys, part.children, strict=True)) for part in (first, second))
        key = next((key for key in {**a, **b} if (key in a) != (key in b)), None)
        if key is not None:
            part_path = f"{path}.{key}" if path else str(key)
            return part_path, _described(a.get(key)), _described(b.get(key))
        return path, f"in the order {', '.join(map(str, a))}", f"in the order {', '.join(map(str, b))}"
    if isinstance(first, Static) and isinstance(second, Static):
        return None if _are_equal(first.value, second.value) else (path, repr(first.value), repr(second.value))
    return None if first == second else (path, _described(first), _described(second))


def _are_equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    try:
        return bool(constant_key(first) == constant_key(second))
    except Exception:
        return False


def _described(part: Part | None) -> str:
    match part:
        case None:
            return "missing"
        case Container(cls, _, _, _):
            return f"a {cls.__name__}"
        case Static(value):
            return repr(value)
        case Leaf(number):
            return f"parameter {number}"
        case Shared(number):
            return f"part {number} once more"
