"""Modules and parameters taken apart for JAX, and put together by it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from phlox.backend.contract.backend import backend_of_arrays
from phlox.backend.levels import is_followed, levels
from phlox.backend.pytree import FIELD, NAMED_TUPLE, container_of_class, is_differentiating, keeping, transformation
from phlox.errors import KindError, ModuleError
from phlox.module.donated import Donated
from phlox.module.fields import Fields, fields_of, layout_before, own_dict, set_pending, set_up
from phlox.module.foreign_leaf import Foreign, is_marker, is_proper
from phlox.module.param import Param, ParamId, new_id
from phlox.module.statics import static_part
from phlox.module.structure import Container, Elsewhere, Leaf, Shared, Structure, contents_of, place_of
from phlox.module.template import is_passing, leaked_tracer, plain_values
from phlox.module.tree.aux_data import NodeAux
from phlox.module.tree.layout import (
    AGAIN,
    PLACE,
    Layout,
    Level,
    Mark,
    Mixed,
    MixedAux,
    Part,
    Path,
    at_path,
    has_children,
    in_place,
    in_places,
    items_of,
    layout_of,
    part_at,
    places_in,
    replaced_in,
    statics,
)
from phlox.tensor.tensor import history_lost


class Plan:
    """How one module is taken apart, as long as its parts stay: kept in its structure."""

    __slots__ = ("known", "layout", "params", "training", "values")

    def __init__(self, module: Fields, structure: Structure) -> None:
        fields = contents_of(module) or {}
        ties = _ties_of(structure)
        before = layout_before(module)
        if ties:
            found = {target: Elsewhere(at_path(fields, source), target) for target, source in ties}
            fields = replaced_in(fields, found)
        if before is not None:  # some stand where what they were tied to is not
            kept = [
                tie for tie in before.ties if tie in ties or part_at(fields, tie[0], Elsewhere).__class__ is Elsewhere
            ]
            ties = (*kept, *[tie for tie in ties if tie not in kept])
        self.training: bool | None = fields.get("training")
        self.params: list[Param | None] = []
        parts: dict[str, Part] = {}
        for name, value in fields.items():
            if name != "training":
                parts[name] = _part_of(value, self.params, before and before.parts.get(name))
        try:
            self.layout = layout_of(type(module), parts, ties)
        except ModuleError:
            at = place_of(module)
            if not at:
                raise
            self.layout = layout_of(type(module), parts, ties, at)
        self.values = [_emitted(self.layout.parts[name], fields[name]) for name in self.layout.keys]
        self.known: NodeAux | None = None

    def children(self) -> tuple[Any, ...]:
        """Arrays, modules and levels."""
        return tuple([value if isinstance(value, Fields) else _child(value) for value in self.values])

    def aux(self) -> NodeAux:
        """The structure; kept until a parameter changes its kind."""
        known = self.known
        if known is None or known.traced:
            marks = tuple([None if param is None else param.mark for param in self.params])
            ids = tuple([ParamId("") if param is None else param.id for param in self.params])
            known = NodeAux(self.layout, (self.training, marks), ids)
            # One that is made in a trace has a structure for each place of the result, which counts the calls.
            stays = not any(is_passing(path, value) for path, value in statics(self.layout.parts.items()))
            if stays and not known.born:
                self.known = known
        return known


class _Emitted(NamedTuple):
    """A container that is made anew for JAX."""

    level: Level
    whole: Any


def _emitted(part: Part, whole: Any) -> Any:
    """The value itself, if JAX can be given it; else what says how it is made anew."""
    return _Emitted(part, whole) if isinstance(part, Level) and not _is_its_own(part, whole) else whole


def _child(value: Any) -> Any:
    if value.__class__ is Param:
        return _leaf(value)
    if value.__class__ is not _Emitted:
        return value
    level, whole = value
    items = items_of(whole).values()
    inner = [_child(_emitted(part, item)) for part, item in zip(level.parts, items, strict=True) if has_children(part)]
    if not level.native:
        return Mixed(level, tuple(inner))
    container = container_of_class(level.cls)
    assert container is not None
    return container.make(level.cls, level.keys, inner)


_as_nodes: set[bool] = set()
"""Not empty once a parameter was given to JAX as a node."""


def _leaf(param: Param) -> Any:
    tensor = param._tensor  # pyright: ignore[reportPrivateUsage]
    if tensor is None:
        if param.is_deferred:
            param.init()
        elif isinstance(param._deferred, Foreign) and is_marker(param._deferred.leaf):  # pyright: ignore[reportPrivateUsage]
            _as_nodes.add(True)
            return param  # which a tool will look for
        return param.leaf
    backend = tensor._ops.backend  # pyright: ignore[reportPrivateUsage]
    return backend.strip(tensor.primitive) if backend.differentiates else tensor.primitive


_LISTS = frozenset({list, tuple, dict, OrderedDict})


def _part_of(value: Any, params: list[Param | None], before: Part | None) -> Part:
    """What a value in a field is; the parameters and (as None) modules in it are added to `params`.

    `before` is what was there until a function over trees has put something else in its place.
    """
    cls = cast("type[Any]", type(value))
    if isinstance(value, Fields) or cls is Param:
        params.append(value if isinstance(value, Param) else None)
        return PLACE
    if cls is Elsewhere:
        return AGAIN
    container = container_of_class(cls)
    if container is not None and (cls in _LISTS or container is NAMED_TUPLE):
        items = items_of(value)
        keys = tuple(items)
        known = before.parts if isinstance(before, Level) and before.keys == keys else [None] * len(keys)
        parts = tuple([_part_of(item, params, part) for item, part in zip(items.values(), known, strict=True)])
        native = all(map(has_children, parts)) and (cls is not dict or _is_sorted(keys))
        return Level(cls, keys, parts, native)
    if before is not None and has_children(before):
        params.extend([None] * places_in(before))
        return before
    return static_part(value)


def _is_sorted(keys: tuple[Any, ...]) -> bool:
    try:
        return list(keys) == sorted(keys)
    except TypeError:
        return False


def _is_its_own(level: Level, whole: Any) -> bool:
    """Can JAX be given the container itself? So it can be found by its identity, too."""
    if whole.__class__ is not level.cls:
        return True  # a function over trees has put something else there
    if not level.native:
        return False
    for part, item in zip(level.parts, items_of(whole).values(), strict=True):
        if not (_is_its_own(part, item) if isinstance(part, Level) else isinstance(item, Fields)):
            return False
    return True


def _ties_of(structure: Structure) -> tuple[tuple[Path, Path], ...]:
    """Where what stands in an earlier place stands again, and that place: those pairs that have no nearer module."""
    first: dict[Any, Path] = {}
    modules: set[Path] = set()
    found: list[tuple[Path, Path]] = []

    def visit(part: Any, path: Path) -> None:
        if isinstance(part, (Leaf, Shared)):
            key = (Leaf if isinstance(part, Leaf) else Container, part.number)
            if first.setdefault(key, path) != path:
                found.append((path, first[key]))
        elif isinstance(part, Container):
            first[Container, part.number] = path
            if issubclass(part.cls, Fields):
                modules.add(path)
            for key, child in zip(part.keys, part.children, strict=True):
                visit(child, (*path, key))

    visit(structure.skeleton, ())
    return tuple([(target, source) for target, source in found if not _within_one(target, source, modules)])


def _within_one(one: Path, other: Path, modules: set[Path]) -> bool:
    """Is there a module, besides the whole, that both are in?"""
    for length in range(1, min(len(one), len(other))):
        if one[:length] != other[:length]:
            return False
        if one[:length] in modules:
            return True
    return False


def flatten(module: Any) -> tuple[tuple[Any, ...], NodeAux]:
    """The children and the structure of one module, for JAX.

    Raises `ModuleError`, with the path, for a tracer leaked from a transformation that has ended.
    """
    pending = module._phlox_pending
    if pending.__class__ is tuple:
        aux, children, _ = pending
        if aux.__class__ is not NodeAux:  # it comes from a file
            return children, aux
        if aux.layout.ties and not _keeps_ties(aux.layout, children):
            fields_of(module)  # which ties again what has moved
            return flatten(module)
        if aux.traced or aux.origin is not None:
            again = aux.again
            aux = aux.taken() if again is None or again.traced or keeping else again
        if aux.born:
            aux = NodeAux(aux.layout, aux.mode, aux.ids)
    else:
        plan = plan_of(module)
        children, aux = plan.children(), plan.aux()
    layout = aux.layout
    if layout.first >= 0 and children[layout.first].__class__ not in plain_values:
        _check_left_over(module, aux, children)
    aux.source = weakref.ref(module)
    if aux.integers and is_differentiating():
        which = [f"`{name}`" for name in aux.integers]
        are = "is an integer" if len(which) == 1 else "are integers"
        raise KindError(
            f"jax.grad differentiates towards every parameter, and {', '.join(which)} of the {type(module).__name__} "
            f"{are}; use phlox.grad, which finds the gradients of Float parameters, or jax.grad(..., allow_int=True)"
        )
    return children, aux


def _keeps_ties(layout: Layout, children: tuple[Any, ...]) -> bool:
    """Are the tied parts where they were? A function over trees may have put modules around them."""
    given = dict(zip(layout.keys, children, strict=True))
    for path in [path for tie in layout.ties for path in tie]:
        whole: Any = given
        for key in path:
            if isinstance(whole, Fields):
                pending: Any = whole._phlox_pending  # pyright: ignore[reportPrivateUsage]
                known: Any = fields_of(whole) if pending.__class__ is not tuple else pending[0].layout.parts
                if key not in known:
                    return False
                break
            if isinstance(whole, Mixed):
                whole = dict(zip(whole.level.keys, whole.children, strict=False))
            try:
                whole = whole[key]
            except (KeyError, IndexError, TypeError):
                break
    return True


def plan_of(module: Any) -> Plan:
    fields_of(module)
    structure: Structure = module.structure()
    plan = structure.tree
    if plan is None:
        plan = structure.tree = Plan(module, structure)
    if levels():
        for path, param in zip(plan.layout.paths, plan.params, strict=True):
            if param is not None and is_followed(param.val().backend, param.val().primitive):
                raise history_lost(f"`{path}`")
    return plan


def flatten_with_keys(module: Any) -> tuple[list[tuple[tuple[str, Any], Any]], NodeAux]:
    """As `flatten`, with the name of the field beside each child."""
    children, aux = flatten(module)
    return [((FIELD, name), child) for name, child in zip(aux.layout.keys, children, strict=True)], aux


def _check_left_over(module: Fields, aux: NodeAux, children: Sequence[Any]) -> None:
    for path, mark, leaf in zip(aux.layout.paths, aux.mode[1], in_places(aux.layout, children), strict=True):
        if mark is None or leaf is None:
            continue
        engine = backend_of_arrays(mark[0].backend)
        if isinstance(leaf, Donated):
            leaf.taken()
        elif not engine.is_traced(leaf):
            if is_proper(mark[0], leaf):
                plain_values.add(leaf.__class__)
        elif engine.is_leaked(leaf, surely=True):
            at = place_of(module)
            raise leaked_tracer(f"{at}.{path}" if at else path)


def unflatten(aux: Any, children: Any) -> Any:
    """A module of this structure around other children; never validates, since JAX passes objects of any kind."""
    if aux.__class__ is not NodeAux:  # it comes from a file
        aux = aux.here()
    layout: Layout = aux.layout
    children = tuple(children)
    first = layout.first
    scope = None
    if (first >= 0 and children[first].__class__ in plain_values) or (scope := transformation()) is None:
        if aux.moves:
            aux = aux.out_of_trace()
        elif aux.origin is not None:
            aux = aux.origin.out_of_trace()
        elif aux.source is not None:
            aux = _told_apart(aux, children)
    else:
        aux = (aux if aux.source is None else _told_apart(aux, children)).into_trace()
    module: Any = object.__new__(layout.cls)
    # Where parameters were nodes for once, the fields are made at once: from them come arrays again.
    if layout.eager or (_as_nodes and any(child.__class__ is Param for child in in_places(layout, children))):
        set_up(module)
        own_dict(module).update(aux.fields(module, children, scope))
    else:
        set_pending(module, (aux, children, scope))
    return module


def _told_apart(aux: NodeAux, children: tuple[Any, ...]) -> NodeAux:
    """With ids of their own for parameters of another shape than the module's that was taken apart.

    So the members that are cut from a stacked model by a function over trees are models of their own, and so is what
    is stacked of members.
    """
    source = aux.source and aux.source()
    if source is None or not aux.mode[1]:
        return aux
    pending: Any = source._phlox_pending  # pyright: ignore[reportPrivateUsage]
    whole = pending[1] if pending.__class__ is tuple else plan_of(source).children()
    layout = aux.layout
    if layout.alone:
        before, after = whole, children
    else:
        before, after = in_places(layout, whole), in_places(layout, children)
    other = [_is_other(*each) for each in zip(aux.mode[1], before, after, strict=True)]
    if True not in other:
        return aux
    ids = [new_id() if it and id else id for it, id in zip(other, aux.ids, strict=True)]
    return NodeAux(aux.layout, aux.mode, tuple(ids))


def _is_other(mark: Mark | None, one: Any, two: Any) -> bool:
    if mark is None or one is two or isinstance(one, Param) or isinstance(two, Param):
        return False
    before, after = getattr(one, "shape", None), getattr(two, "shape", None)
    if not isinstance(before, tuple) or not isinstance(after, tuple) or before == after:
        return False
    engine = backend_of_arrays(mark[0].backend)
    # An example of a batch, as `vmap` and `scan` see it, is the same parameter; so is what they return.
    if engine.is_traced(one) or engine.is_traced(two):
        return not engine.outlives(one, two) and not engine.outlives(two, one)
    return True


def unflatten_mixed(aux: Any, children: Any) -> Mixed:
    """A level around other children."""
    return Mixed((aux if aux.__class__ is MixedAux else aux.here()).level, tuple(children))


PARAM = Layout(Param, {"leaf": PLACE}, ())
"""A parameter by itself is a node, too, with its array as the one child."""


def flatten_param(param: Param) -> tuple[tuple[Any], NodeAux]:
    """The array and the structure of a parameter."""
    return (param.leaf,), NodeAux(PARAM, (None, (param.mark,)), (param.id,))


def flatten_param_with_keys(param: Param) -> tuple[list[tuple[tuple[str, str], Any]], NodeAux]:
    """As `flatten_param`, with the name of the attribute."""
    (leaf,), aux = flatten_param(param)
    return [((FIELD, "leaf"), leaf)], aux


def unflatten_param(aux: Any, children: Any) -> Any:
    """A parameter around another array."""
    aux = aux if aux.__class__ is NodeAux else aux.here()
    (child,) = children
    scope = None if child.__class__ in plain_values else transformation()
    if scope is not None:
        aux = aux.into_trace()
    elif aux.moves or aux.origin is not None:
        aux = (aux.origin or aux).out_of_trace()
    return in_place(child, ("the parameter", aux.mode[1][0], aux.ids[0]), scope)
