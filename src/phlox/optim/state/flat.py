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


class Constant:
    """A NumPy array that a program is compiled for: equal to those of the same elements."""

    __slots__ = ("_key", "array")

    def __init__(self, array: Any) -> None:
        if array.dtype.hasobject:
            raise OptimizerError(f"a NumPy array of {array.dtype} in an optimizer's state cannot be compiled")
        self.array = np.array(array)
        self._key = array.dtype.str, array.shape, self.array.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Form:
    """The skeletons of the states of several parameters, interned: equal ones are one object."""

    __slots__ = ("__weakref__", "backends", "constants", "kinds", "places", "skeletons", "sources")

    def __init__(
        self,
        skeletons: tuple[Skeleton, ...],
        places: tuple[int, ...],
        backends: tuple[Backend | None, ...],
        sources: tuple[int, ...],
        constants: tuple[Constant, ...],
    ) -> None:
        self.skeletons = skeletons
        self.kinds = [kind for skeleton in skeletons for _, kind in paths(skeleton)]
        self.places = places
        """The position of every integer in the array of integers."""
        self.backends = backends
        """The backend of every leaf, None for a number: states can differ in precision."""
        self.sources = sources
        """The leaf of every tensor and of every real number."""
        self.constants = constants
        """NumPy arrays, in order."""


_forms: weakref.WeakValueDictionary[Any, Form] = weakref.WeakValueDictionary()


def form_of(
    skeletons: tuple[Skeleton, ...],
    places: tuple[int, ...],
    backends: tuple[Backend | None, ...],
    sources: tuple[int, ...],
    constants: tuple[Constant, ...],
) -> Form:
    """The one form of these skeletons with their integers at these places, and tensors of these backends."""
    key = skeletons, places, backends, sources, constants
    form = _forms.get(key)
    return _forms.setdefault(key, Form(*key)) if form is None else form


class FlatState(NamedTuple):
    """All states, flattened, as a compiled function takes and returns them; unpacked when they are needed."""

    ids: tuple[ParamId, ...]
    form: Form
    leaves: tuple[Any, ...]
    """Arrays of tensors and real numbers in order; at last one array of all integers, if there are any.

    Every parameter counts its steps, and a program takes longer to start with each array that it is given.
    """
    place: Device

    def named_arrays(self, params: Mapping[ParamId, str]) -> Iterator[tuple[str, Any]]:
        """The arrays of tensors, each with its place in the state of a parameter, whose path is in `params`."""
        sources = iter(self.form.sources)
        for id, skeleton in zip(self.ids, self.form.skeletons, strict=True):
            for path, kind in paths(skeleton):
                if kind in (INTEGER, ARRAY):
                    continue
                source = next(sources)
                if self.form.backends[source] is not None:
                    yield f"{path} of {params.get(id, id)}", self.leaves[source]

    @staticmethod
    def of(states: dict[ParamId, State], place: Device, *, shared: bool = False, stay: bool = False) -> FlatState:
        """Flatten these states, with tensors on a device; with `shared`, equal numbers are one leaf.

        Tensors of the same engine keep their precision, and with `stay` all that are in memory their device. Real
        numbers are one leaf only if they are at the same place in the states, because others may differ after the next
        step.
        """
        backend = place.backend
        flat: list[Any] = []
        near = [_near(state, place, stay) for state in states.values()]
        skeletons = tuple([with_plain_numbers(flatten(state, flat)) for state in near])
        named = [found for skeleton in skeletons for found in paths(skeleton)]
        chosen: dict[Any, int] = {}
        distinct: list[Any] = []
        sources: list[int] = []
        constants: list[Constant] = []
        for leaf, (path, kind) in zip(flat, named, strict=True):
            if kind == INTEGER:
                continue
            if kind == ARRAY:
                constants.append(Constant(leaf))
                continue
            if kind == OBJECT:
                raise OptimizerError(
                    f"an optimizer's state holds a {type(leaf).__name__} (at `{path}`), of which a compiled function "
                    "cannot make inputs and outputs; use tensors, numbers and modules, or step outside of it"
                )
            key = _key(path, leaf) if shared and kind == REAL else len(sources)
            if key not in chosen:
                chosen[key] = len(distinct)
                distinct.append(leaf)
            sources.append(chosen[key])
        leaves = [leaf.primitive if isinstance(leaf, Tensor) else _narrow(leaf, backend) for leaf in distinct]
        backends = tuple([leaf.backend if isinstance(leaf, Tensor) else None for leaf in distinct])
        every = [leaf for leaf, (_, kind) in zip(flat, named, strict=True) if kind == INTEGER]
        # Integers by value; traced ones, which cannot be compared, by identity.
        keys = [leaf if isinstance(leaf, int) else ("", id(leaf)) for leaf in every] if shared else range(len(every))
        found: dict[Any, int] = {}
        places = tuple([found.setdefault(key, len(found)) for key in keys])
        counts = [every[places.index(place)] for place in range(len(found))]
        form = form_of(skeletons, places, backends, tuple(sources), tuple(constants))
        if counts and all(isinstance(count, int) for count in counts):
            array = backend.from_host(np.array(counts, np.int64), Int, place)
            tensors = (leaf.primitive for leaf in distinct if isinstance(leaf, Tensor))
            leaves.append(backend.replicate_like(array, next(tensors, array)))
        elif counts:
            leaves.append(stack([_as_tensor(count, place) for count in counts]).primitive)
        return FlatState(tuple(states), form, tuple(leaves), place)

    def unpack(self) -> dict[ParamId, State]:
        """The state of every parameter; a shared leaf is the same object in all states."""
        form, counts = self.form, iter(self._counts())
        kinds = [kind for kind in form.kinds if kind not in (INTEGER, ARRAY)]
        kind_of = dict(zip(form.sources, kinds, strict=True))
        found = [
            self._leaf(kind_of[number], leaf, backend)
            for number, (leaf, backend) in enumerate(zip(self.leaves, form.backends, strict=False))
        ]
        others = iter([found[source] for source in form.sources])
        arrays = (constant.array.copy() for constant in form.constants)
        by_kind = {INTEGER: counts, ARRAY: arrays}
        leaves = (next(by_kind.get(kind, others)) for kind in form.kinds)
        return {id: unflatten(skeleton, leaves) for id, skeleton in zip(self.ids, form.skeletons, strict=True)}

    def _counts(self) -> list[Any]:
        places = self.form.places
        if not places:
            return []
        backend, array = self.place.backend, self.leaves[-1]
        if not backend.is_traced(array):
            counts = backend.to_host(array).tolist()
        else:
            together = Tensor.from_primitive(array, backend, Int)
            counts = [together[place].primitive for place in range(max(places) + 1)]
        return [counts[place] for place in places]

    def _leaf(self, kind: str, leaf: Any, backend: Backend | None) -> Any:
        if backend is not None:
            return Tensor.from_primitive(leaf, backend, KINDS[kind])
        return leaf if isinstance(leaf, float) else self.place.backend.concrete_scalar(leaf)


def _narrow(number: Any, backend: Backend) -> Any:
    """A number from an argument, at the precision of the numbers in states."""
    return number.as_operand(backend, Float) * 1.0 if isinstance(number, TracedScalar) else number


def _key(path: str, number: Any) -> tuple[str, Any]:
    """A key that is equal for equal real numbers: traced ones are compared by identity, and 0.0 differs from -0.0."""
    return path, float(number).hex() if isinstance(number, float) else id(number)


def _as_tensor(count: Any, place: Device) -> Tensor[Any, Any, Any]:
    if isinstance(count, TracedScalar):
        return tensor(0, device=place) + cast("Any", count)
    return tensor(count, device=place) if isinstance(count, int) else Tensor.from_primitive(count, place.backend, Int)


def move_state(state: State, work: Tensor[Any, Any, Any]) -> State:
    """Move a state, which may come from a record or another backend, to the device of the updated tensor."""
    place = work.device
    backend, array = place.backend, work.primitive

    def bring(leaf: Any) -> Tensor[Any, Any, Any]:
        there = _bring(leaf, place)
        beside = backend.replicate_like(there.primitive, array)
        return there if beside is there.primitive else Tensor.from_primitive(beside, backend, there.kind)

    return map_tensors(state, bring)


def _near(state: State, place: Device, stay: bool) -> State:
    """The state on a device of the engine of `place`, at the precision that it has, as far as the engine has it."""

    def bring(leaf: Any) -> Any:
        if isinstance(leaf, LazyTensor):
            half = leaf.dtype.itemsize == 2
        elif stay:
            return leaf
        else:
            half = leaf.backend.float_element in HALF_ELEMENTS
            if leaf.backend.full_precision() is full.backend and leaf.device.name == place.name:
                return leaf
        return _bring(leaf, place if half else full)

    full = place.on(place.backend.full_precision())
    return map_tensors(state, bring)


def _bring(leaf: Any, place: Device) -> Tensor[Any, Any, Any]:
    if isinstance(leaf, LazyTensor):
        kind = KINDS[leaf.kind]
        return Tensor.from_primitive(read_onto(leaf, kind, place), place.backend, kind)
    return leaf if leaf.device == place else leaf.to_device(place)
