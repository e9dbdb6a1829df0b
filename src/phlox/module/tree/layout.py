"""The layout of one module: the parts of its fields, without children and modes; and how fields are built from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isdatadescriptor
from typing import Any, TypeAlias, cast

from phlox.backend import Float
from phlox.backend.contract.backend import backend_of_arrays
from phlox.backend.pytree import INDEX, ITEM, container_of_class
from phlox.module.donated import Donated
from phlox.module.fields import Fields, fields_of, own_dict, set_slot, set_up
from phlox.module.foreign_leaf import ForeignLeaf, accepted_classes, alike, is_proper
from phlox.module.param import Param, ParamId
from phlox.module.statics import Static, open_objects, static_key, static_value
from phlox.module.structure import Elsewhere
from phlox.module.template import LOOKUP, key_of_static, refuse_incomparable
from phlox.tensor.dispatch import Ops

Mark: TypeAlias = "tuple[Ops, bool, bool, bool]"
Mode: TypeAlias = "tuple[bool | None, tuple[Mark | None, ...]]"
"""What differs between views of a model: `training`, and the mark of each slot's parameter (None for a module)."""
Path: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter or a module: a child of the node."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A parameter or a module that is already in the tree, at an earlier path."""


@dataclass(frozen=True, slots=True)
class Level:
    """A list, tuple or dict with parameters or modules in it."""

    cls: type[Any]
    keys: Path
    parts: tuple[Part, ...]
    native: bool
    """Whether JAX itself flattens it. If not (a static item, or unsorted keys of a dict), it becomes a `Mixed`."""

    def children(self, whole: Any) -> list[Any] | None:
        """The children of such a level; None if `whole` is another object."""
        if not self.native:
            return list(whole.children) if whole.__class__ is Mixed and _fits(self, whole.level) else None
        if whole.__class__ is not self.cls or len(whole) != len(self.keys):
            return None
        return list(items_of(whole).values())


Part: TypeAlias = Slot | Repeated | Level | Static
SLOT, REPEATED = Slot(), Repeated()


def items_of(whole: Any) -> dict[Any, Any]:
    """The fields of a module or the items of a container, by key, in a new dict."""
    if isinstance(whole, Fields):
        return dict(fields_of(whole))
    return dict(cast("dict[Any, Any]", whole)) if isinstance(whole, dict) else dict(enumerate(cast("list[Any]", whole)))


def _fits(first: Level, second: Level) -> bool:
    return first is second or (first.cls is second.cls and first.keys == second.keys)


def count_slots(part: Part) -> int:
    return sum(map(count_slots, part.parts)) if isinstance(part, Level) else int(isinstance(part, Slot))


def has_children(part: Part) -> bool:
    return isinstance(part, Slot) or (isinstance(part, Level) and any(map(has_children, part.parts)))


class TreeLayout:
    """The structure of one module without children and modes: interned, so that equal layouts are the same object."""

    __slots__ = ("__weakref__", "alone", "cls", "eager", "first", "keys", "modes", "parts", "paths", "text", "ties")

    def __init__(self, cls: type[Any], parts: dict[str, Part], ties: tuple[tuple[Path, Path], ...]) -> None:
        self.cls, self.parts, self.ties = cls, parts, ties
        self.keys = tuple([name for name, part in parts.items() if has_children(part)])
        self.paths = tuple([path for name, part in parts.items() for path in _paths(part, name)])
        self.first = next((n for n, name in enumerate(self.keys) if isinstance(parts[name], Slot)), -1)
        """The index of the first child that is a field itself, not in a container; -1 if there is none."""
        self.alone = len(self.paths) == len(self.keys) and not any(isinstance(parts[name], Level) for name in self.keys)
        """Whether all children are fields themselves, not in containers."""
        self.modes: dict[Mode, Mode] = {}
        self.text: str | None = None
        """Set by `phlox.module.serialization`."""
        hiding = [getattr(cls, name) for name in parts if hasattr(cls, name)]
        looked_up = any(getattr(cls, name) is not getattr(Fields, name) for name in LOOKUP)
        changing = any(open_objects(value) for _, value in statics(parts.items()))
        self.eager = looked_up or changing or not all(map(isdatadescriptor, hiding))
        """Whether the fields must be built at once. See `Template`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.cls, self.parts, self.ties)

    def integers(self, mode: Mode) -> tuple[str, ...]:
        """The paths of parameters that are not Float."""
        marked = zip(self.paths, mode[1], strict=True)
        return tuple([path for path, mark in marked if mark is not None and mark[0].kind is not Float])

    def levels(self) -> Iterator[Level]:
        """The containers in the fields."""
        levels = [part for part in self.parts.values() if isinstance(part, Level)]
        for level in levels:
            yield level
            levels += [part for part in level.parts if isinstance(part, Level)]


def _paths(part: Part, path: str) -> Iterator[str]:
    if isinstance(part, Slot):
        yield path
    elif isinstance(part, Level):
        for key, inner in zip(part.keys, part.parts, strict=True):
            yield from _paths(inner, f"{path}.{key}")


_layouts: weakref.WeakValueDictionary[Hashable, TreeLayout] = weakref.WeakValueDictionary()


def live_layouts() -> list[TreeLayout]:
    """The layouts of all existing modules."""
    return list(_layouts.values())


def layout_of(cls: type[Any], parts: dict[str, Part], ties: tuple[tuple[Path, Path], ...], at: str = "") -> TreeLayout:
    """The interned layout; raises `ModuleError`, with the path, for a static value that cannot be compared.

    `at` is the path of the module itself.
    """
    named = [(f"{at}.{name}" if at else name, part) for name, part in parts.items()]
    key = (cls, tuple(parts), tuple([key_of(part, path) for path, part in named]), ties)
    try:
        layout = _layouts.get(key)
    except Exception as error:
        raise refuse_incomparable(statics(named), error) from error
    return layout or _layouts.setdefault(key, TreeLayout(cls, parts, ties))


def key_of(part: Part, path: str) -> Hashable:
    match part:
        case Static():
            return key_of_static(part, path)
        case Level(cls, keys, parts, native):
            named = zip(keys, parts, strict=True)
            is_dict = issubclass(cls, dict)
            kinds: Hashable = tuple(map(static_key, keys)) if is_dict else keys
            return cls, native, kinds, tuple([key_of(part, f"{path}.{key}") for key, part in named])
        case _:
            return part


def statics(parts: Iterable[tuple[str, Part]]) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []

    def visit(part: Part, path: str) -> None:
        if isinstance(part, Static):
            values.append((path, part.value))
        elif isinstance(part, Level):
            for key, inner in zip(part.keys, part.parts, strict=True):
                visit(inner, f"{path}.{key}")

    for path, part in parts:
        visit(part, path)
    return values


def described(layout: TreeLayout, mode: Mode) -> str:
    """A structure on one line, for errors about structures that differ."""
    training, marks = mode
    params: list[str] = []
    for path, mark in zip(layout.paths, marks, strict=True):
        params.append(path if mark is None or mark[1] else f"{path} (not trained)")
    fields = [f"{path}={' '.join(repr(value).split())[:60]}" for path, value in statics(layout.parts.items())]
    modes = [] if training is None else [f"training={training}"]
    return f"{layout.cls.__name__}[{'; '.join([', '.join(params), *fields, *modes])}]"


class Mixed:
    """A level that JAX cannot flatten itself: a container with static items, or whose order JAX would change."""

    __slots__ = ("children", "level")

    def __init__(self, level: Any, children: tuple[Any, ...]) -> None:
        self.level, self.children = level, children

    def flatten(self) -> tuple[tuple[Any, ...], Any]:
        """The children, and the structure."""
        return self.children, MixedAux(self.level) if isinstance(self.level, Level) else self.level

    def with_keys(self) -> tuple[list[tuple[tuple[str, Any], Any]], Any]:
        """The children with their keys, and the structure."""
        level = self.level
        kind = ITEM if issubclass(level.cls, dict) else INDEX
        keys = [key for key, part in zip(level.keys, level.parts, strict=True) if has_children(part)]
        return [((kind, key), child) for key, child in zip(keys, self.children, strict=True)], MixedAux(level)


class MixedAux:
    """The structure of a `Mixed`."""

    __slots__ = ("level",)

    def __init__(self, level: Level) -> None:
        self.level = level

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixedAux):
            return NotImplemented
        return self.level is other.level or key_of(self.level, "") == key_of(other.level, "")

    def __hash__(self) -> int:
        return hash((self.level.cls, self.level.keys))

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedAux, (self.level,)

    def __repr__(self) -> str:
        shown = [f"{path[1:]}={value!r}" for path, value in statics([("", self.level)])]
        return f"{self.level.cls.__name__}[{', '.join([*map(str, self.level.keys), *shown])}]"


def slot_values(layout: TreeLayout, children: Sequence[Any]) -> list[Any]:
    """The value of each slot; None if a level was replaced by another object."""
    values: list[Any] = []

    def visit(part: Part, child: Any) -> None:
        if isinstance(part, Level):
            inner = part.children(child)
            if inner is None:
                values.extend([None] * count_slots(part))
            else:
                for inner_part, inner_child in zip(filter(has_children, part.parts), inner, strict=True):
                    visit(inner_part, inner_child)
        else:
            values.append(child)

    for name, child in zip(layout.keys, children, strict=True):
        visit(layout.parts[name], child)
    return values


def at_path(whole: Any, path: Path) -> Any:
    for key in path:
        whole = (fields_of(whole) if isinstance(whole, Fields) else whole)[key]
    return whole


def part_at(whole: Any, path: Path, *others: type[Any]) -> Any:
    """The module or parameter at a path, or an object of another class; None if there is none."""
    try:
        part = at_path(whole, path)
    except (KeyError, IndexError, TypeError):
        return None
    return part if isinstance(part, (Fields, Param, *others)) else None


def fields_from(
    module: Any, layout: TreeLayout, mode: Mode, ids: tuple[ParamId, ...], children: tuple[Any, ...], scope: Any
) -> dict[str, Any]:
    """The fields of a module of this layout; `scope` is its transformation, as a weak reference."""
    training, marks = mode
    slots = zip(layout.paths, marks, ids, strict=True)
    remaining = iter(children)
    has_foreign = False

    def fill(child: Any) -> Any:
        nonlocal has_foreign
        slot = next(slots)
        has_foreign = has_foreign or (slot[1] is None and not isinstance(child, Fields)) or child is None
        return fill_slot(child, slot, scope)

    fields = {name: _field_value(part, remaining, fill) for name, part in layout.parts.items()}
    if training is not None:
        fields["training"] = training
    if has_foreign:
        set_slot(module, "_phlox_before", layout)
    if layout.ties:
        tied = {target: part for target, source in layout.ties if (part := part_at(fields, source)) is not None}
        fields = replace_at(fields, tied, Elsewhere)
        if any(part_at(fields, path) is None for tie in layout.ties for path in tie):
            fields = _retie_moved(fields, tied)
    return fields


def _retie_moved(fields: dict[str, Any], tied: dict[Path, Any]) -> dict[str, Any]:
    """The fields, tied again after a tree function put a module around tied parts, so that their paths changed."""
    parts = dict(_walk(fields))
    present_ids = {id(part) for part in parts.values()}
    moved: dict[Path, Any] = {}
    for path, part in parts.items():
        if isinstance(part, Elsewhere):
            source = tied.get(part.tied_at, part.tied_to if id(part.tied_to) in present_ids else None)
            if source is not None:
                moved[path] = source
    return replace_at(fields, moved)


def _walk(whole: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, whole
    if isinstance(whole, (Fields, dict, list, tuple)):
        for key, part in items_of(whole).items():
            yield from _walk(part, (*path, key))


def _field_value(part: Part, remaining: Iterator[Any], fill: Callable[[Any], Any]) -> Any:
    """The value of a field: `remaining` are the children, and `fill(child)` returns the value of a slot."""
    match part:
        case Static():
            return static_value(part)
        case Repeated():
            return Elsewhere()
        case Slot():
            return fill(next(remaining))
        case Level():
            if not has_children(part):
                return _build_level(part, iter(()), fill)
            child = next(remaining)
            inner = part.children(child)
            if inner is None:  # a tree function replaced the container
                for _ in range(count_slots(part)):
                    fill(None)
                return child
            container = _build_level(part, iter(inner), fill)
            return child if part.native and _same_items(container, child) else container


def _same_items(first: Any, second: Any) -> bool:
    pairs = zip(items_of(first).values(), items_of(second).values(), strict=True)
    return all(a is b for a, b in pairs)


def _build_level(level: Level, remaining: Iterator[Any], fill: Callable[[Any], Any]) -> Any:
    container = container_of_class(level.cls)
    assert container is not None
    return container.make(level.cls, level.keys, [_field_value(part, remaining, fill) for part in level.parts])


def fill_slot(child: Any, slot: tuple[str, Mark | None, ParamId], scope: Any) -> Any:
    """The value of a slot: a parameter around this child, or the child itself if it is or was a module."""
    path, mark, id = slot
    if mark is None or isinstance(child, (Fields, Param)):
        return child
    ops, trained, trainable, full_precision = mark
    try:
        is_accepted = (child.__class__, child.dtype) in accepted_classes(ops) or is_proper(ops, child)
    except Exception:  # no element type, or one that cannot be compared
        is_accepted = is_proper(ops, child)
    if not is_accepted:
        other_ops = alike(ops, child)
        if other_ops is None:
            placeholder = child if isinstance(child, Donated) else ForeignLeaf(child, ops, path)
            return Param.without_array(placeholder, trained, trainable, id, full_precision)
        ops = other_ops
    if scope is not None and not trained and ops.kind is Float:
        child = backend_of_arrays(ops.backend).without_gradient(child)
    return Param.revive(ops, child, trained, trainable, id, full_precision, scope)


def replace_at(whole: Any, replacements: dict[Path, Any], only: type[Any] | None = None) -> Any:
    """A copy with other parts at these paths. With `only`, it replaces only objects of that class."""
    if () in replacements:
        return replacements[()] if only is None or whole.__class__ is only else whole
    items = items_of(whole)
    for head in dict.fromkeys(path[0] for path in replacements):
        if head in items:
            deeper = {path[1:]: part for path, part in replacements.items() if path[0] == head}
            items[head] = replace_at(items[head], deeper, only)
    if isinstance(whole, Fields):
        return _with_fields(cast("type[Any]", type(whole)), items)
    cls = cast("type[Any]", type(whole))
    container = container_of_class(cls)
    assert container is not None
    return container.make(cls, tuple(items), list(items.values()))


def _with_fields(cls: type[Any], fields: dict[str, Any]) -> Any:
    module: Any = object.__new__(cls)
    set_up(module)
    own_dict(module).update(fields)
    return module
