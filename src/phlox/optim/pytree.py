"""Optimizers as PyTrees: the arrays of their states are leaves, everything else is structure.

A tree knows a parameter by its path in the module, as in `.states['layers.0.weight']['moment_1']`, and not by its id:
all models of one architecture have one structure. So when an optimizer that comes out of a tree takes its next step,
its states are given to the parameters at their paths (`Optimizer.bind`). The states are flattened as for compiled
functions, see `phlox.optim.state.flat`.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from phlox.backend import Backend, Device, Float, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import KINDS, Kind
from phlox.backend.pytree import FIELD
from phlox.errors import OptimizerError
from phlox.module import ParamId
from phlox.module.foreign_leaf import alike, is_proper
from phlox.module.statics import static_key
from phlox.module.tree.aux_data import ids_for_calls, ids_of_call
from phlox.optim.state.flat import FlatState, StateForm, form_of
from phlox.optim.state.records import ARRAY
from phlox.optim.state.tree import INTEGER, REAL, State, flatten, paths
from phlox.other_names import class_of
from phlox.tensor import Tensor, tensor
from phlox.tensor.dispatch import ops_of

if TYPE_CHECKING:
    from phlox.optim.optimizer import Optimizer


class NodeLayout:
    """The structure of an optimizer without its arrays: interned, so that equal layouts are the same object."""

    __slots__ = ("__weakref__", "bare", "device", "form", "key", "leaves", "names")

    def __init__(self, bare: Optimizer, key: Hashable, names: tuple[str, ...], form: StateForm, device: Device) -> None:
        self.bare = bare
        """An optimizer of these settings without states."""
        self.key, self.names, self.form, self.device = key, names, form, device
        self.leaves: list[tuple[str, str, str]] = []
        """For each array of `states`: the name of the parameter, the path in its state, and the kind."""
        for name, skeleton in zip(names, form.skeletons, strict=True):
            pairs = [(path or "state", kind) for path, kind in paths(skeleton) if kind not in (INTEGER, ARRAY)]
            self.leaves += [
                (name, path, kind) for path, (_, kind) in zip(_numbered(p for p, _ in pairs), pairs, strict=True)
            ]


_layouts: weakref.WeakValueDictionary[Hashable, NodeLayout] = weakref.WeakValueDictionary()


def layout_of(bare: Optimizer, names: tuple[str, ...], form: StateForm, device: Device) -> NodeLayout:
    """The interned layout."""
    key = tree_key(bare)
    full_key = type(bare), key, names, form, device.backend
    return _layouts.get(full_key) or _layouts.setdefault(full_key, NodeLayout(bare, key, names, form, device))


class OptimizerAux:
    """The structure of an optimizer as JAX keeps it. Two are equal if they have the same layout, whatever their ids."""

    __slots__ = ("ids", "layout", "traced")

    def __init__(self, layout: NodeLayout, ids: tuple[ParamId, ...], traced: tuple[ParamId, ...] | None = None) -> None:
        self.layout, self.ids, self.traced = layout, ids, traced
        """`traced` are the ids in the trace, if the optimizer is a result of a compiled function."""

    def __eq__(self, other: object) -> bool:
        return self.layout is other.layout if isinstance(other, OptimizerAux) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.layout)

    def __reduce__(self) -> tuple[Any, ...]:
        layout, form = self.layout, self.layout.form
        parts = (form.skeletons, form.positions, form.backends, form.sources, form.constants)
        return _restored, (layout.bare, layout.names, parts, layout.device, tuple(map(str, self.ids)))

    def __repr__(self) -> str:
        return f"{self.layout.bare!r}[{', '.join(self.layout.names) or 'no states'}]"


def _restored(bare: Any, names: tuple[str, ...], form: Any, device: Device, ids: tuple[str, ...]) -> OptimizerAux:
    return OptimizerAux(layout_of(bare, names, form_of(*form), device), tuple(map(ParamId, ids)))


class TreeStates(NamedTuple):
    """The states of an optimizer rebuilt from a tree, in which anything may stand in place of arrays."""

    aux: OptimizerAux
    children: tuple[Any, ...]

    @property
    def ids(self) -> tuple[ParamId, ...]:
        """The ids of the parameters that the states belonged to."""
        return self.aux.ids

    def entries(self) -> Iterator[tuple[str, str, Any]]:
        """The path in the state, the kind and the leaf of each entry, without constants."""
        for name, path, kind in self.aux.layout.leaves:
            yield path, kind, _array_at(self.children[0], name, path)

    def unpack(self) -> dict[ParamId, State]:
        """The state of each parameter; raises `OptimizerError`, with the path, for a leaf of another kind."""
        layout, form, device = self.aux.layout, self.aux.layout.form, self.aux.layout.device
        backends = list(form.backends)
        leaves: list[Any] = []
        for number, (name, path, kind) in enumerate(layout.leaves):
            where = f"states['{name}']['{path}']"
            leaf = _array_at(self.children[0], name, path)
            backend = backends[number]
            if backend is not None:
                leaf, backends[number] = _check_array(leaf, ops_of(backend, KINDS[kind]), where)
            else:
                _check_number(leaf, where, device, 0)
            leaves.append(leaf)
        if form.positions:
            counts = self.children[1]
            _check_number(counts, "counts", device, 1)
            leaves.append(counts)
        form = form_of(form.skeletons, form.positions, tuple(backends), form.sources, form.constants)
        return FlatState(self.ids, form, tuple(leaves), device).unpack()


def _array_at(states: Any, name: str, path: str) -> Any:
    try:
        return states[name][path]
    except (KeyError, TypeError, IndexError):
        raise _not_an_array(f"states['{name}']", states) from None


def _not_an_array(where: str, leaf: Any) -> OptimizerError:
    return OptimizerError(
        f"{where} of the optimizer: a PyTree function (jax.tree.map, tree_unflatten) gave it {class_of(leaf)}; to "
        "take a step with the optimizer, it must give an array for each array"
    )


def _check_array(leaf: Any, ops: Any, where: str) -> tuple[Any, Backend]:
    """An array of a state, and its backend."""
    engine = ops.backend
    if isinstance(leaf, np.ndarray):  # as jax.device_get gives them
        host = cast("np.ndarray[Any, Any]", leaf)
        leaf = engine.from_host(host, ops.kind, engine.device()) if host.dtype == engine.host_dtype(ops.kind) else host
    if is_proper(ops, leaf):
        return leaf, engine
    other = alike(ops, leaf)
    if other is None:
        raise _not_an_array(where, leaf)
    return leaf, other.backend


def _check_number(leaf: Any, where: str, device: Device, axes: int) -> None:
    shape = getattr(leaf, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(leaf, "dtype"):
        raise _not_an_array(where, leaf)
    if len(cast("tuple[int, ...]", shape)) > axes:
        raise OptimizerError(
            f"{where} of the optimizer is of shape {shape}: these are the states of several models together; step them "
            "inside jax.vmap, or select one model with jax.tree.map(lambda x: x[0], optimizer)"
        )


# --- taking an optimizer apart, and putting one together


def flatten_optimizer(optimizer: Optimizer) -> tuple[tuple[Any, ...], OptimizerAux]:
    """The arrays of the states by path, the counts in one array if there are any, and the structure.

    Raises `OptimizerError`, with the path, for a tracer leaked from a transformation that has ended.
    """
    pending = optimizer._packed  # pyright: ignore[reportPrivateUsage]
    if isinstance(pending, TreeStates):
        layout = pending.aux.layout
        if layout.key != tree_key(optimizer):  # a setting has changed since
            layout = layout_of(optimizer.bare(), layout.names, layout.form, layout.device)
            return pending.children, OptimizerAux(layout, pending.ids)
        ids = ids_for_calls(pending.ids, pending.aux.traced)
        return pending.children, pending.aux if ids is pending.ids else OptimizerAux(layout, ids)
    states = dict(optimizer.states)
    device = _device_of(states.values())
    flat = FlatState.of(states, device, stay=True)
    names_by_id = optimizer._names  # pyright: ignore[reportPrivateUsage]
    names = tuple(_numbered(names_by_id.get(id, str(id)) for id in states))
    layout = layout_of(optimizer.bare(), names, flat.form, device)
    arrays: dict[str, dict[str, Any]] = {name: {} for name, _, _ in layout.leaves}
    for (name, path, kind), leaf in zip(layout.leaves, flat.leaves, strict=False):
        array = _as_array(leaf, device) if kind == REAL else leaf
        if device.backend.is_traced(array) and device.backend.is_leaked(array, surely=True):
            raise OptimizerError(
                f"states['{name}']['{path}'] of the optimizer is a tracer of a JAX transformation that has "
                "ended; pass the optimizer to the transformed function as an argument, and return it"
            )
        arrays[name][path] = array
    counts = flat.leaves[-1:] if flat.form.positions else ()
    return (arrays, *counts), OptimizerAux(layout, ids_for_calls(flat.ids, None))


def flatten_with_keys(optimizer: Optimizer) -> tuple[list[tuple[tuple[str, Any], Any]], OptimizerAux]:
    """As `flatten_optimizer`, with a key for each child."""
    children, aux = flatten_optimizer(optimizer)
    return [((FIELD, key), child) for key, child in zip(("states", "counts"), children, strict=False)], aux


def unflatten_optimizer(aux: OptimizerAux, children: Iterable[Any]) -> Any:
    """An optimizer around other children; never validates, since JAX passes objects of any kind."""
    ids = ids_of_call(aux.ids)
    own_aux = aux if ids is aux.ids else OptimizerAux(aux.layout, ids, aux.ids)
    return aux.layout.bare.around(TreeStates(own_aux, tuple(children)), aux.layout.names)


def tree_key(optimizer: Optimizer) -> Hashable:
    """A key that is equal for optimizers that compute the same."""
    try:
        return optimizer.structure_key()
    except TypeError as error:
        raise OptimizerError(
            f"{type(optimizer).__name__} cannot be flattened as a PyTree: {error}; keep what changes from step to "
            "step in `states`, and let fields be hashable"
        ) from None


def fields_key(fields: dict[str, Any]) -> Hashable:
    """A key of fields; raises `TypeError`, with the name, for a field that cannot be compared."""
    keys: list[Hashable] = []
    for name, value in fields.items():
        try:
            keys.append((name, _key(value)))
        except TypeError as error:
            raise TypeError(f"its field {name} is {class_of(value)}, which cannot be compared ({error})") from None
    return tuple(keys)


def _key(value: Any) -> Hashable:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return dict, tuple([(static_key(key), _key(part)) for key, part in items])
    if isinstance(value, (list, tuple)):
        return type(cast("object", value)), tuple([_key(part) for part in cast("Sequence[Any]", value)])
    return static_key(value)


def _device_of(states: Iterable[State]) -> Device:
    """The device of the first tensor, without a tape; of states without tensors, JAX's."""
    for state in states:
        leaves: list[Any] = []
        flatten(state, leaves)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensor_ = cast("Tensor[Any, Any, Any]", leaf)
                return tensor_.device.on(engine_of(tensor_.backend))
    device = as_device("jax")
    return device.on(engine_of(device.backend))


def _as_array(number: Any, device: Device) -> Any:
    """A real number as an array of the backend's precision, as it is after each step."""
    kind: type[Kind] = Float
    if isinstance(number, float):
        return tensor(number, device=device, kind=kind).primitive
    return (tensor(1.0, device=device, kind=kind) * number).primitive


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Unique names: a name that occurred before gets a number."""
    seen: set[str] = set()
    for name in names:
        number, unique = 1, name
        while unique in seen:
            number += 1
            unique = f"{name}~{number}"
        seen.add(unique)
        yield unique
