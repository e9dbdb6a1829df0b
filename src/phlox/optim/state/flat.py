"""`FlatState`: an optimizer's states as a compiled function takes and returns them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Backend, Device, Float, Int
from phlox.backend.kind import KINDS
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import OptimizerError
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.module import ParamId
from phlox.module.records import read_onto
from phlox.optim.state.records import ARRAY
from phlox.optim.state.tree import (
    INTEGER,
    OBJECT,
    REAL,
    Skeleton,
    State,
    flatten,
    map_tensors,
    paths,
    unflatten,
    with_plain_numbers,
)
from phlox.record import LazyTensor
from phlox.tensor import Tensor, stack, tensor


class ArrayConstant:
    """A NumPy array that a program is compiled for, compared by its elements."""

    __slots__ = ("_key", "array")

    def __init__(self, array: Any) -> None:
        if array.dtype.hasobject:
            raise OptimizerError(f"a NumPy array of {array.dtype} in an optimizer's state cannot be compiled")
        self.array = np.array(array)
        self._key = array.dtype.str, array.shape, self.array.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayConstant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class StateForm:
    """The skeletons of the states of several parameters and their leaves. Interned: equal forms are one object."""

    __slots__ = ("__weakref__", "backends", "constants", "kinds", "positions", "skeletons", "sources")

    def __init__(
        self,
        skeletons: tuple[Skeleton, ...],
        positions: tuple[int, ...],
        backends: tuple[Backend | None, ...],
        sources: tuple[int, ...],
        constants: tuple[ArrayConstant, ...],
    ) -> None:
        self.skeletons = skeletons
        self.kinds = [kind for skeleton in skeletons for _, kind in paths(skeleton)]
        self.positions = positions
        """The position of every integer in the array of integers."""
        self.backends = backends
        """The backend of every leaf, None for a number: states can differ in precision."""
        self.sources = sources
        """The leaf of every tensor and of every real number."""
        self.constants = constants
        """NumPy arrays, in order."""


_forms: weakref.WeakValueDictionary[Any, StateForm] = weakref.WeakValueDictionary()


def form_of(
    skeletons: tuple[Skeleton, ...],
    positions: tuple[int, ...],
    backends: tuple[Backend | None, ...],
    sources: tuple[int, ...],
    constants: tuple[ArrayConstant, ...],
) -> StateForm:
    """The interned form with these skeletons, positions of integers, backends, sources and constants."""
    key = skeletons, positions, backends, sources, constants
    form = _forms.get(key)
    return _forms.setdefault(key, StateForm(*key)) if form is None else form


class FlatState(NamedTuple):
    """All states, flattened, as a compiled function takes and returns them; unpacked when they are needed."""

    ids: tuple[ParamId, ...]
    form: StateForm
    leaves: tuple[Any, ...]
    """Arrays of tensors and real numbers in order; the last array holds all integers, if there are any.

    One array for all integers, because every parameter counts its steps, and each argument makes a call slower.
    """
    device: Device

    def named_arrays(self, params: Mapping[ParamId, str]) -> Iterator[tuple[str, Any]]:
        """The arrays of tensors, each with its path in a parameter's state; `params` has the parameters' paths."""
        sources = iter(self.form.sources)
        for id, skeleton in zip(self.ids, self.form.skeletons, strict=True):
            for path, kind in paths(skeleton):
                if kind in (INTEGER, ARRAY):
                    continue
                source = next(sources)
                if self.form.backends[source] is not None:
                    yield f"{path} of {params.get(id, id)}", self.leaves[source]

    @staticmethod
    def of(states: dict[ParamId, State], device: Device, *, shared: bool = False, stay: bool = False) -> FlatState:
        """Flatten these states, with tensors on a device; with `shared`, equal numbers are one leaf.

        Tensors of the same engine keep their precision; with `stay`, all tensors in memory keep their device. Real
        numbers are one leaf only if they have the same path in their states: others may differ after the next step.
        """
        backend = device.backend
        flat: list[Any] = []
        on_engine = [_on_engine(state, device, stay) for state in states.values()]
        skeletons = tuple([with_plain_numbers(flatten(state, flat)) for state in on_engine])
        named = [path_and_kind for skeleton in skeletons for path_and_kind in paths(skeleton)]
        indices: dict[Any, int] = {}
        distinct: list[Any] = []
        sources: list[int] = []
        constants: list[ArrayConstant] = []
        for leaf, (path, kind) in zip(flat, named, strict=True):
            if kind == INTEGER:
                continue
            if kind == ARRAY:
                constants.append(ArrayConstant(leaf))
                continue
            if kind == OBJECT:
                raise OptimizerError(
                    f"an optimizer's state holds a {type(leaf).__name__} (at `{path}`), which cannot be an input or "
                    "output of a compiled function; use tensors, numbers and modules, or step outside of it"
                )
            key = _key(path, leaf) if shared and kind == REAL else len(sources)
            if key not in indices:
                indices[key] = len(distinct)
                distinct.append(leaf)
            sources.append(indices[key])
        leaves = [leaf.primitive if isinstance(leaf, Tensor) else _as_number(leaf, backend) for leaf in distinct]
        backends = tuple([leaf.backend if isinstance(leaf, Tensor) else None for leaf in distinct])
        integers = [leaf for leaf, (_, kind) in zip(flat, named, strict=True) if kind == INTEGER]
        # Integers by value; traced integers by identity, because they cannot be compared.
        keys = [x if isinstance(x, int) else ("", id(x)) for x in integers] if shared else range(len(integers))
        first_positions: dict[Any, int] = {}
        positions = tuple([first_positions.setdefault(key, len(first_positions)) for key in keys])
        counts = [integers[positions.index(position)] for position in range(len(first_positions))]
        form = form_of(skeletons, positions, backends, tuple(sources), tuple(constants))
        if counts and all(isinstance(count, int) for count in counts):
            array = backend.from_host(np.array(counts, np.int64), Int, device)
            tensors = (leaf.primitive for leaf in distinct if isinstance(leaf, Tensor))
            leaves.append(backend.replicate_like(array, next(tensors, array)))
        elif counts:
            leaves.append(stack([_as_tensor(count, device) for count in counts]).primitive)
        return FlatState(tuple(states), form, tuple(leaves), device)

    def unpack(self) -> dict[ParamId, State]:
        """The state of every parameter; a shared leaf is the same object in all states."""
        form, counts = self.form, iter(self._counts())
        kinds = [kind for kind in form.kinds if kind not in (INTEGER, ARRAY)]
        kind_of = dict(zip(form.sources, kinds, strict=True))
        unpacked = [
            self._leaf(kind_of[number], leaf, backend)
            for number, (leaf, backend) in enumerate(zip(self.leaves, form.backends, strict=False))
        ]
        others = iter([unpacked[source] for source in form.sources])
        arrays = (constant.array.copy() for constant in form.constants)
        by_kind = {INTEGER: counts, ARRAY: arrays}
        leaves = (next(by_kind.get(kind, others)) for kind in form.kinds)
        return {id: unflatten(skeleton, leaves) for id, skeleton in zip(self.ids, form.skeletons, strict=True)}

    def _counts(self) -> list[Any]:
        positions = self.form.positions
        if not positions:
            return []
        backend, array = self.device.backend, self.leaves[-1]
        if not backend.is_traced(array):
            counts = backend.to_host(array).tolist()
        else:
            integers = Tensor.from_primitive(array, backend, Int)
            counts = [integers[position].primitive for position in range(max(positions) + 1)]
        return [counts[position] for position in positions]

    def _leaf(self, kind: str, leaf: Any, backend: Backend | None) -> Any:
        if backend is not None:
            return Tensor.from_primitive(leaf, backend, KINDS[kind])
        return leaf if isinstance(leaf, float) else self.device.backend.concrete_scalar(leaf)


def _as_number(number: Any, backend: Backend) -> Any:
    """A number from an argument, at the precision of the numbers in states."""
    return number.as_operand(backend, Float) * 1.0 if isinstance(number, TracedScalar) else number


def _key(path: str, number: Any) -> tuple[str, Any]:
    """A key that is equal for equal real numbers: traced ones are compared by identity, and 0.0 differs from -0.0."""
    return path, float(number).hex() if isinstance(number, float) else id(number)


def _as_tensor(count: Any, device: Device) -> Tensor[Any, Any, Any]:
    if isinstance(count, TracedScalar):
        return tensor(0, device=device) + cast("Any", count)
    return tensor(count, device=device) if isinstance(count, int) else Tensor.from_primitive(count, device.backend, Int)


def move_state(state: State, work: Tensor[Any, Any, Any]) -> State:
    """Move a state, which may come from a record or another backend, to the device of the updated tensor."""
    device = work.device
    backend, array = device.backend, work.primitive

    def move(leaf: Any) -> Tensor[Any, Any, Any]:
        moved = _to_device(leaf, device)
        replicated = backend.replicate_like(moved.primitive, array)
        return moved if replicated is moved.primitive else Tensor.from_primitive(replicated, backend, moved.kind)

    return map_tensors(state, move)


def _on_engine(state: State, device: Device, stay: bool) -> State:
    """The state on a device of the engine of `device`; half precision stays if the backend of `device` has it."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, LazyTensor):
            half = leaf.dtype.itemsize == 2
        elif stay:
            return leaf
        else:
            half = leaf.backend.float_element in HALF_ELEMENTS
            if leaf.backend.full_precision() is full.backend and leaf.device.name == device.name:
                return leaf
        return _to_device(leaf, device if half else full)

    full = device.on(device.backend.full_precision())
    return map_tensors(state, move)


def _to_device(leaf: Any, device: Device) -> Tensor[Any, Any, Any]:
    if isinstance(leaf, LazyTensor):
        kind = KINDS[leaf.kind]
        return Tensor.from_primitive(read_onto(leaf, kind, device), device.backend, kind)
    return leaf if leaf.device == device else leaf.to_device(device)
