"""What one module is, besides its children and modes: the parts of its fields; and the fields made of these."""

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
from phlox.module.foreign_leaf import Foreign, alike, is_proper, looks_of
from phlox.module.param import Param, ParamId
from phlox.module.statics import Static, held, open_objects, static_key
from phlox.module.structure import Elsewhere
from phlox.module.template import LOOKUP, key_of_static, refuse_incomparable
from phlox.tensor.dispatch import Ops

Mark: TypeAlias = "tuple[Ops, bool, bool, bool]"
Mode: TypeAlias = "tuple[bool | None, tuple[Mark | None, ...]]"
"""What views of one model differ in: `training`, and for each place the mark of its parameter (of a module: None)."""
Path: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter or a module."""


@dataclass(frozen=True, slots=True)
class Again:
    """A parameter or a module that stands in an earlier place, too, where the tree has it."""


@dataclass(frozen=True, slots=True)
class Level:
    """A list, tuple or dict with parameters or modules in it."""

    cls: type[Any]
    keys: Path
    parts: tuple[Part, ...]
    native: bool
    """Does JAX itself take it apart? Else (something in it is static, or the keys of a dict are not sorted) `Mixed`."""

    def children(self, whole: Any) -> list[Any] | None:
        """What stands in the places of such a level; None if it is another object."""
        if not self.native:
            return list(whole.children) if whole.__class__ is Mixed and _fits(self, whole.level) else None
        if whole.__class__ is not self.cls or len(whole) != len(self.keys):
            return None
        return list(items_of(whole).values())


Part: TypeAlias = Place | Again | Level | Static
PLACE, AGAIN = Place(), Again()


def items_of(whole: Any) -> dict[Any, Any]:
    """What is in a module or a container, by key, in a dict of its own."""
    if isinstance(whole, Fields):
        return dict(fields_of(whole))
    return dict(cast("dict[Any, Any]", whole)) if isinstance(whole, dict) else dict(enumerate(cast("list[Any]", whole)))


def _fits(one: Level, other: Level) -> bool:
    return one is other or (one.cls is other.cls and one.keys == other.keys)


def places_in(part: Part) -> int:
    return sum(map(places_in, part.parts)) if isinstance(part, Level) else int(isinstance(part, Place))


def has_children(part: Part) -> bool:
    return isinstance(part, Place) or (isinstance(part, Level) and any(map(has_children, part.parts)))


class Layout:
    """What one module is, besides its children and modes: interned, so that equal ones are the same object."""

    __slots__ = ("__weakref__", "alone", "cls", "eager", "first", "keys", "modes", "parts", "paths", "text", "ties")

    def __init__(self, cls: type[Any], parts: dict[str, Part], ties: tuple[tuple[Path, Path], ...]) -> None:
        self.cls, self.parts, self.ties = cls, parts, ties
        self.keys = tuple([name for name, part in parts.items() if has_children(part)])
        self.paths = tuple([path for name, part in parts.items() for path in _paths(part, name)])
        self.first = next((n for n, name in enumerate(self.keys) if isinstance(parts[name], Place)), -1)
        """The first child that stands alone in its field; -1 if there is none."""
        self.alone = len(self.paths) == len(self.keys) and not any(isinstance(parts[name], Level) for name in self.keys)
        """Do all children stand alone in their fields?"""
        self.modes: dict[Mode, Mode] = {}
        self.text: str | None = None
        """Kept here by `phlox.module.serialization`."""
        hiding = [getattr(cls, name) for name in parts if hasattr(cls, name)]
        looked_up = any(getattr(cls, name) is not getattr(Fields, name) for name in LOOKUP)
        changing = any(open_objects(value) for _, value in statics(parts.items()))
        self.eager = looked_up or changing or not all(map(isdatadescriptor, hiding))
        """Are the fields needed at once? See `Template`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.cls, self.parts, self.ties)

    def integers(self, mode: Mode) -> tuple[str, ...]:
        """The paths of parameters that are not Float."""
        marked = zip(self.paths, mode[1], strict=True)
        return tuple([path for path, mark in marked if mark is not None and mark[0].kind is not Float])

    def levels(self) -> Iterator[Level]:
        """The containers in the fields."""
        found = [part for part in self.parts.values() if isinstance(part, Level)]
        for level in found:
            yield level
            found += [part for part in level.parts if isinstance(part, Level)]


def _paths(part: Part, path: str) -> Iterator[str]:
    if isinstance(part, Place):
        yield path
    elif isinstance(part, Level):
        for key, inner in zip(part.keys, part.parts, strict=True):
            yield from _paths(inner, f"{path}.{key}")


_layouts: weakref.WeakValueDictionary[Hashable, Layout] = weakref.WeakValueDictionary()


def live_layouts() -> list[Layout]:
    """Those of all existing modules."""
    return list(_layouts.values())


def layout_of(cls: type[Any], parts: dict[str, Part], ties: tuple[tuple[Path, Path], ...], at: str = "") -> Layout:
    """The interned one; `ModuleError`, with the path, for a static value that cannot be compared.

    `at` is the path of the module itself.
    """
    named = [(f"{at}.{name}" if at else name, part) for name, part in parts.items()]
    key = (cls, tuple(parts), tuple([key_of(part, path) for path, part in named]), ties)
    try:
        found = _layouts.get(key)
    except Exception as error:
        raise refuse_incomparable(statics(named), error) from error
    return found or _layouts.setdefault(key, Layout(cls, parts, ties))


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
    found: list[tuple[str, Any]] = []

    def visit(part: Part, path: str) -> None:
        if isinstance(part, Static):
            found.append((path, part.value))
        elif isinstance(part, Level):
            for key, inner in zip(part.keys, part.parts, strict=True):
                visit(inner, f"{path}.{key}")

    for path, part in parts:
        visit(part, path)
    return found


def described(layout: Layout, mode: Mode) -> str:
    """A structure on one line, for errors about differing ones."""
    training, marks = mode
    params: list[str] = []
    for path, mark in zip(layout.paths, marks, strict=True):
        params.append(path if mark is None or mark[1] else f"{path} (not trained)")
    fields = [f"{path}={' '.join(repr(value).split())[:60]}" for path, value in statics(layout.parts.items())]
    modes = [] if training is None else [f"training={training}"]
    return f"{layout.cls.__name__}[{'; '.join([', '.join(params), *fields, *modes])}]"


class Mixed:
    """A level that JAX does not know: a container in which something is static, or whose order JAX would change."""

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
        kept = [key for key, part in zip(level.keys, level.parts, strict=True) if has_children(part)]
        return [((kind, key), child) for key, child in zip(kept, self.children, strict=True)], MixedAux(level)


class MixedAux:
    """The structure of such a level."""

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


def in_places(layout: Layout, children: Sequence[Any]) -> list[Any]:
    """What stands in each place; None where a level is something else."""
    found: list[Any] = []

    def visit(part: Part, child: Any) -> None:
        if isinstance(part, Level):
            inner = part.children(child)
            if inner is None:
                found.extend([None] * places_in(part))
            else:
                for within, one in zip(filter(has_children, part.parts), inner, strict=True):
                    visit(within, one)
        else:
            found.append(child)

    for name, child in zip(layout.keys, children, strict=True):
        visit(layout.parts[name], child)
    return found


def at_path(whole: Any, path: Path) -> Any:
    for key in path:
        whole = (fields_of(whole) if isinstance(whole, Fields) else whole)[key]
    return whole


def part_at(whole: Any, path: Path, *others: type[Any]) -> Any:
    """The module or parameter at a path, or an object of another class; None if there is none."""
    try:
        found = at_path(whole, path)
    except (KeyError, IndexError, TypeError):
        return None
    return found if isinstance(found, (Fields, Param, *others)) else None


def fields_from(
    module: Any, layout: Layout, mode: Mode, ids: tuple[ParamId, ...], children: tuple[Any, ...], scope: Any
) -> dict[str, Any]:
    """The fields of a module of this layout; `scope` is the transformation that it was made in, as a weak reference."""
    training, marks = mode
    given = zip(layout.paths, marks, ids, strict=True)
    left = iter(children)
    odd = False

    def place(child: Any) -> Any:
        nonlocal odd
        known = next(given)
        odd = odd or (known[1] is None and not isinstance(child, Fields)) or child is None
        return in_place(child, known, scope)

    fields = {name: _made(part, left, place) for name, part in layout.parts.items()}
    if training is not None:
        fields["training"] = training
    if odd:
        set_slot(module, "_phlox_before", layout)
    if layout.ties:
        found = {target: part for target, source in layout.ties if (part := part_at(fields, source)) is not None}
        fields = replaced_in(fields, found, Elsewhere)
        if any(part_at(fields, place) is None for tie in layout.ties for place in tie):
            fields = _tied_again(fields, found)
    return fields


def _tied_again(fields: dict[str, Any], found: dict[Path, Any]) -> dict[str, Any]:
    """The fields, tied where a function over trees has put a module around what is tied, so that paths have changed."""
    parts = dict(_walk(fields))
    here = {id(part) for part in parts.values()}
    moved: dict[Path, Any] = {}
    for path, part in parts.items():
        if isinstance(part, Elsewhere):
            source = found.get(part.tied_at, part.tied_to if id(part.tied_to) in here else None)
            if source is not None:
                moved[path] = source
    return replaced_in(fields, moved)


def _walk(whole: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, whole
    if isinstance(whole, (Fields, dict, list, tuple)):
        for key, part in items_of(whole).items():
            yield from _walk(part, (*path, key))


def _made(part: Part, given: Iterator[Any], place: Callable[[Any], Any]) -> Any:
    """What a field holds: `given` are the children, and `place` says what stands in the place of one."""
    match part:
        case Static():
            return held(part)
        case Again():
            return Elsewhere()
        case Place():
            return place(next(given))
        case Level():
            if not has_children(part):
                return _level(part, iter(()), place)
            child = next(given)
            inner = part.children(child)
            if inner is None:  # a function over trees has put something else there
                for _ in range(places_in(part)):
                    place(None)
                return child
            made = _level(part, iter(inner), place)
            return child if part.native and _same(made, child) else made


def _same(one: Any, other: Any) -> bool:
    pairs = zip(items_of(one).values(), items_of(other).values(), strict=True)
    return all(mine is its for mine, its in pairs)


def _level(level: Level, given: Iterator[Any], place: Callable[[Any], Any]) -> Any:
    container = container_of_class(level.cls)
    assert container is not None
    return container.make(level.cls, level.keys, [_made(part, given, place) for part in level.parts])


def in_place(child: Any, known: tuple[str, Mark | None, ParamId], scope: Any) -> Any:
    """What stands in a place: a parameter around this child, unless a module stands there, or stood there."""
    path, mark, id = known
    if mark is None or isinstance(child, (Fields, Param)):
        return child
    ops, trained, able, full = mark
    try:
        proper = (child.__class__, child.dtype) in looks_of(ops) or is_proper(ops, child)
    except Exception:  # it has no element type, or one that cannot be compared
        proper = is_proper(ops, child)
    if not proper:
        other = alike(ops, child)
        if other is None:
            instead = child if isinstance(child, Donated) else Foreign(child, ops, path)
            return Param.without_array(instead, trained, able, id, full)
        ops = other
    if scope is not None and not trained and ops.kind is Float:
        child = backend_of_arrays(ops.backend).without_gradient(child)
    return Param.revive(ops, child, trained, able, id, full, scope)


def replaced_in(whole: Any, found: dict[Path, Any], only: type[Any] | None = None) -> Any:
    """A copy with other parts at these paths; what is not on the way there is the same. Of `only` a class, if given."""
    if () in found:
        return found[()] if only is None or whole.__class__ is only else whole
    items = items_of(whole)
    for head in dict.fromkeys(path[0] for path in found):
        if head in items:
            below = {path[1:]: part for path, part in found.items() if path[0] == head}
            items[head] = replaced_in(items[head], below, only)
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
