"""Modules and parameters as JAX flattens and unflattens them."""

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
from phlox.module.foreign_leaf import ForeignLeaf, is_marker, is_proper
from phlox.module.param import Param, ParamId, new_id
from phlox.module.statics import static_part
from phlox.module.structure import Container, Elsewhere, Leaf, Shared, Structure, contents_of, path_of
from phlox.module.template import is_passing, leaked_tracer, plain_values
from phlox.module.tree.aux_data import NodeAux
from phlox.module.tree.layout import (
    REPEATED,
    SLOT,
    Level,
    Mark,
    Mixed,
    MixedAux,
    Part,
    Path,
    TreeLayout,
    at_path,
    count_slots,
    fill_slot,
    has_children,
    items_of,
    layout_of,
    part_at,
    replace_at,
    slot_values,
    statics,
)
from phlox.tensor.tensor import history_lost


class FlattenPlan:
    """How one module is flattened; kept in its structure until a part changes."""

    __slots__ = ("cached_aux", "layout", "params", "training", "values")

    def __init__(self, module: Fields, structure: Structure) -> None:
        fields = contents_of(module) or {}
        ties = _ties_of(structure)
        before = layout_before(module)
        if ties:
            repeated = {target: Elsewhere(at_path(fields, source), target) for target, source in ties}
            fields = replace_at(fields, repeated)
        if before is not None:  # some paths hold an `Elsewhere` whose other path is gone
            ties_kept = [
                tie for tie in before.ties if tie in ties or part_at(fields, tie[0], Elsewhere).__class__ is Elsewhere
            ]
            ties = (*ties_kept, *[tie for tie in ties if tie not in ties_kept])
        self.training: bool | None = fields.get("training")
        self.params: list[Param | None] = []
        parts: dict[str, Part] = {}
        for name, value in fields.items():
            if name != "training":
                parts[name] = _part_of(value, self.params, before and before.parts.get(name))
        try:
            self.layout = layout_of(type(module), parts, ties)
        except ModuleError:
            module_path = path_of(module)
            if not module_path:
                raise
            self.layout = layout_of(type(module), parts, ties, module_path)
        self.values = [_emitted(self.layout.parts[name], fields[name]) for name in self.layout.keys]
        self.cached_aux: NodeAux | None = None

    def children(self) -> tuple[Any, ...]:
        """Arrays, modules and levels."""
        return tuple([value if isinstance(value, Fields) else _child(value) for value in self.values])

    def aux(self) -> NodeAux:
        """The structure; kept until a parameter changes its kind."""
        aux = self.cached_aux
        if aux is None or aux.traced:
            marks = tuple([None if param is None else param.mark for param in self.params])
            ids = tuple([ParamId("") if param is None else param.id for param in self.params])
            aux = NodeAux(self.layout, (self.training, marks), ids)
            # A module created in a trace has a structure for each position in the result, which counts the calls.
            is_lasting = not any(is_passing(path, value) for path, value in statics(self.layout.parts.items()))
            if is_lasting and not aux.born:
                self.cached_aux = aux
        return aux


class _Emitted(NamedTuple):
    """A container that is rebuilt for JAX."""

    level: Level
    whole: Any


def _emitted(part: Part, whole: Any) -> Any:
    """The value itself if JAX can flatten it, or else the data to rebuild it."""
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
"""Not empty after a parameter was given to JAX as a node."""


def _leaf(param: Param) -> Any:
    tensor = param._tensor  # pyright: ignore[reportPrivateUsage]
    if tensor is None:
        if param.is_deferred:
            param.init()
        elif isinstance(param._deferred, ForeignLeaf) and is_marker(param._deferred.leaf):  # pyright: ignore[reportPrivateUsage]
            _as_nodes.add(True)
            return param  # a tool looks for the parameter
        return param.leaf
    backend = tensor._ops.backend  # pyright: ignore[reportPrivateUsage]
    return backend.strip(tensor.primitive) if backend.differentiates else tensor.primitive


_LISTS = frozenset({list, tuple, dict, OrderedDict})


def _part_of(value: Any, params: list[Param | None], before: Part | None) -> Part:
    """The part for a value of a field; adds its parameters, and None for its modules, to `params`.

    `before` is the part before a tree function replaced it.
    """
    cls = cast("type[Any]", type(value))
    if isinstance(value, Fields) or cls is Param:
        params.append(value if isinstance(value, Param) else None)
        return SLOT
    if cls is Elsewhere:
        return REPEATED
    container = container_of_class(cls)
    if container is not None and (cls in _LISTS or container is NAMED_TUPLE):
        items = items_of(value)
        keys = tuple(items)
        parts_before = before.parts if isinstance(before, Level) and before.keys == keys else [None] * len(keys)
        parts = tuple([_part_of(item, params, part) for item, part in zip(items.values(), parts_before, strict=True)])
        native = all(map(has_children, parts)) and (cls is not dict or _is_sorted(keys))
        return Level(cls, keys, parts, native)
    if before is not None and has_children(before):
        params.extend([None] * count_slots(before))
        return before
    return static_part(value)


def _is_sorted(keys: tuple[Any, ...]) -> bool:
    try:
        return list(keys) == sorted(keys)
    except TypeError:
        return False


def _is_its_own(level: Level, whole: Any) -> bool:
    """Can JAX get the container itself, and not a copy? Then its identity is kept, too."""
    if whole.__class__ is not level.cls:
        return True  # a tree function replaced the container
    if not level.native:
        return False
    for part, item in zip(level.parts, items_of(whole).values(), strict=True):
        if not (_is_its_own(part, item) if isinstance(part, Level) else isinstance(item, Fields)):
            return False
    return True


def _ties_of(structure: Structure) -> tuple[tuple[Path, Path], ...]:
    """Pairs of a repeated path of a part and its first path, if no inner module contains both paths."""
    first: dict[Any, Path] = {}
    modules: set[Path] = set()
    ties: list[tuple[Path, Path]] = []

    def visit(part: Any, path: Path) -> None:
        if isinstance(part, (Leaf, Shared)):
            key = (Leaf if isinstance(part, Leaf) else Container, part.number)
            if first.setdefault(key, path) != path:
                ties.append((path, first[key]))
        elif isinstance(part, Container):
            first[Container, part.number] = path
            if issubclass(part.cls, Fields):
                modules.add(path)
            for key, child in zip(part.keys, part.children, strict=True):
                visit(child, (*path, key))

    visit(structure.skeleton, ())
    return tuple([(target, source) for target, source in ties if not _share_inner_module(target, source, modules)])


def _share_inner_module(first: Path, second: Path, modules: set[Path]) -> bool:
    """Does a module, other than the whole, contain both paths?"""
    for length in range(1, min(len(first), len(second))):
        if first[:length] != second[:length]:
            return False
        if first[:length] in modules:
            return True
    return False


def flatten(module: Any) -> tuple[tuple[Any, ...], NodeAux]:
    """The children and the structure of one module, for JAX.

    Raises `ModuleError`, with the path, for a tracer leaked from a transformation that has ended.
    """
    pending = module._phlox_pending
    if pending.__class__ is tuple:
        aux, children, _ = pending
        if aux.__class__ is not NodeAux:  # the structure comes from a file
            return children, aux
        if aux.layout.ties and not _keeps_ties(aux.layout, children):
            fields_of(module)  # this ties parts again that have moved
            return flatten(module)
        if aux.traced or aux.origin is not None:
            untraced = aux.untraced
            aux = aux.for_flattening() if untraced is None or untraced.traced or keeping else untraced
        if aux.born:
            aux = NodeAux(aux.layout, aux.mode, aux.ids)
    else:
        plan = plan_of(module)
        children, aux = plan.children(), plan.aux()
    layout = aux.layout
    if layout.first >= 0 and children[layout.first].__class__ not in plain_values:
        _check_leaked(module, aux, children)
    aux.source = weakref.ref(module)
    if aux.integers and is_differentiating():
        names = [f"`{name}`" for name in aux.integers]
        verb = "is an integer" if len(names) == 1 else "are integers"
        raise KindError(
            f"jax.grad differentiates towards every parameter, and {', '.join(names)} of the {type(module).__name__} "
            f"{verb}; use phlox.grad, which finds the gradients of Float parameters, or jax.grad(..., allow_int=True)"
        )
    return children, aux


def _keeps_ties(layout: TreeLayout, children: tuple[Any, ...]) -> bool:
    """Are the tied parts at their old paths? A tree function may have put modules around them."""
    fields = dict(zip(layout.keys, children, strict=True))
    for path in [path for tie in layout.ties for path in tie]:
        whole: Any = fields
        for key in path:
            if isinstance(whole, Fields):
                pending: Any = whole._phlox_pending  # pyright: ignore[reportPrivateUsage]
                parts: Any = fields_of(whole) if pending.__class__ is not tuple else pending[0].layout.parts
                if key not in parts:
                    return False
                break
            if isinstance(whole, Mixed):
                whole = dict(zip(whole.level.keys, whole.children, strict=False))
            try:
                whole = whole[key]
            except (KeyError, IndexError, TypeError):
                break
    return True


def plan_of(module: Any) -> FlattenPlan:
    fields_of(module)
    structure: Structure = module.structure()
    plan = structure.tree
    if plan is None:
        plan = structure.tree = FlattenPlan(module, structure)
    if levels():
        for path, param in zip(plan.layout.paths, plan.params, strict=True):
            if param is not None and is_followed(param.val().backend, param.val().primitive):
                raise history_lost(f"`{path}`")
    return plan


def flatten_with_keys(module: Any) -> tuple[list[tuple[tuple[str, Any], Any]], NodeAux]:
    """As `flatten`, with the name of the field beside each child."""
    children, aux = flatten(module)
    return [((FIELD, name), child) for name, child in zip(aux.layout.keys, children, strict=True)], aux


def _check_leaked(module: Fields, aux: NodeAux, children: Sequence[Any]) -> None:
    for path, mark, leaf in zip(aux.layout.paths, aux.mode[1], slot_values(aux.layout, children), strict=True):
        if mark is None or leaf is None:
            continue
        engine = backend_of_arrays(mark[0].backend)
        if isinstance(leaf, Donated):
            leaf.to_tensor()
        elif not engine.is_traced(leaf):
            if is_proper(mark[0], leaf):
                plain_values.add(leaf.__class__)
        elif engine.is_leaked(leaf, surely=True):
            module_path = path_of(module)
            raise leaked_tracer(f"{module_path}.{path}" if module_path else path)


def unflatten(aux: Any, children: Any) -> Any:
    """A module of this structure around other children; never validates, since JAX passes objects of any kind."""
    if aux.__class__ is not NodeAux:  # the structure comes from a file
        aux = aux.local_structure()
    layout: TreeLayout = aux.layout
    children = tuple(children)
    first = layout.first
    scope = None
    if (first >= 0 and children[first].__class__ in plain_values) or (scope := transformation()) is None:
        if aux.moves:
            aux = aux.out_of_trace()
        elif aux.origin is not None:
            aux = aux.origin.out_of_trace()
        elif aux.source is not None:
            aux = _with_new_ids(aux, children)
    else:
        aux = (aux if aux.source is None else _with_new_ids(aux, children)).into_trace()
    module: Any = object.__new__(layout.cls)
    # If parameters were nodes for a tool, the fields are built at once, so that the next flattening gives arrays.
    if layout.eager or (_as_nodes and any(child.__class__ is Param for child in slot_values(layout, children))):
        set_up(module)
        own_dict(module).update(aux.fields(module, children, scope))
    else:
        set_pending(module, (aux, children, scope))
    return module


def _with_new_ids(aux: NodeAux, children: tuple[Any, ...]) -> NodeAux:
    """The structure with new ids for parameters whose shape differs from the flattened module's.

    So the members that a tree function cuts from a stacked model are models of their own, and so is a model that it
    stacks from members.
    """
    source = aux.source and aux.source()
    if source is None or not aux.mode[1]:
        return aux
    pending: Any = source._phlox_pending  # pyright: ignore[reportPrivateUsage]
    old_children = pending[1] if pending.__class__ is tuple else plan_of(source).children()
    layout = aux.layout
    if layout.alone:
        before, after = old_children, children
    else:
        before, after = slot_values(layout, old_children), slot_values(layout, children)
    is_other = [_is_other(*slot) for slot in zip(aux.mode[1], before, after, strict=True)]
    if True not in is_other:
        return aux
    ids = [new_id() if changed and id else id for changed, id in zip(is_other, aux.ids, strict=True)]
    return NodeAux(aux.layout, aux.mode, tuple(ids))


def _is_other(mark: Mark | None, first: Any, second: Any) -> bool:
    if mark is None or first is second or isinstance(first, Param) or isinstance(second, Param):
        return False
    old_shape, new_shape = getattr(first, "shape", None), getattr(second, "shape", None)
    if not isinstance(old_shape, tuple) or not isinstance(new_shape, tuple) or old_shape == new_shape:
        return False
    engine = backend_of_arrays(mark[0].backend)
    # An example of a batch inside `vmap` or `scan` is the same parameter, and so is their result.
    if engine.is_traced(first) or engine.is_traced(second):
        return not engine.outlives(first, second) and not engine.outlives(second, first)
    return True


def unflatten_mixed(aux: Any, children: Any) -> Mixed:
    """A level around other children."""
    return Mixed((aux if aux.__class__ is MixedAux else aux.local_structure()).level, tuple(children))


PARAM = TreeLayout(Param, {"leaf": SLOT}, ())
"""The layout of a parameter by itself: a node with its array as the only child."""


def flatten_param(param: Param) -> tuple[tuple[Any], NodeAux]:
    """The array and the structure of a parameter."""
    return (param.leaf,), NodeAux(PARAM, (None, (param.mark,)), (param.id,))


def flatten_param_with_keys(param: Param) -> tuple[list[tuple[tuple[str, str], Any]], NodeAux]:
    """As `flatten_param`, with the name of the attribute."""
    (leaf,), aux = flatten_param(param)
    return [((FIELD, "leaf"), leaf)], aux


def unflatten_param(aux: Any, children: Any) -> Any:
    """A parameter around another array."""
    aux = aux if aux.__class__ is NodeAux else aux.local_structure()
    (child,) = children
    scope = None if child.__class__ in plain_values else transformation()
    if scope is not None:
        aux = aux.into_trace()
    elif aux.moves or aux.origin is not None:
        aux = (aux.origin or aux).out_of_trace()
    return fill_slot(child, ("the parameter", aux.mode[1][0], aux.ids[0]), scope)
