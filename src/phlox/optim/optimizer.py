"""`Optimizer`: what changes a module by its gradients, and keeps its state by parameter id."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from phlox.backend import Backend, Device, Int
from phlox.backend.kind import KINDS
from phlox.errors import CompileError, RecordError
from phlox.module import GradientsParams, Module, ParamId
from phlox.module.records import lazy
from phlox.module.structure import ByIdentity
from phlox.optim.state import (
    INTEGER,
    Skeleton,
    State,
    fits,
    flatten,
    from_plain,
    map_tensors,
    paths,
    to_plain,
    unflatten,
)
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.tensor import Tensor, stack, tensor

M = TypeVar("M", bound=Module)

recording: ContextVar[object | None] = ContextVar("phlox_recording", default=None)
"""The recording of a compiled function that is going on, if any."""


class Form:
    """The skeletons of the states of several parameters, interned: equal ones are one object."""

    __slots__ = ("__weakref__", "kinds", "places", "skeletons")

    def __init__(self, skeletons: tuple[Skeleton, ...], places: tuple[int, ...]) -> None:
        self.skeletons = skeletons
        self.kinds = [kind for skeleton in skeletons for _, kind in paths(skeleton)]
        self.places = places
        """Of every integer in the array of integers."""


_forms: weakref.WeakValueDictionary[tuple[tuple[Skeleton, ...], tuple[int, ...]], Form] = weakref.WeakValueDictionary()


def form_of(skeletons: tuple[Skeleton, ...], places: tuple[int, ...]) -> Form:
    """The one form of these skeletons with their integers at these places."""
    form = _forms.get((skeletons, places))
    return _forms.setdefault((skeletons, places), Form(skeletons, places)) if form is None else form


class Packed(NamedTuple):
    """All states taken apart, as a compiled function takes and returns them: unpacked when somebody looks."""

    ids: tuple[ParamId, ...]
    form: Form
    leaves: tuple[Any, ...]
    """Arrays of tensors and real numbers in order; at last one array of all integers, if there are any.

    Every parameter counts its steps, and a program takes longer to start with each array that it is given.
    """
    place: Device

    @staticmethod
    def of(states: dict[ParamId, State], place: Device, *, shared: bool = False) -> Packed:
        """These states taken apart, their tensors on a device; with `shared`, each count once, however many have it."""
        backend = place.backend
        flat: list[Any] = []
        skeletons = tuple([flatten(brought(state, place), flat) for state in states.values()])
        kinds = [kind for skeleton in skeletons for _, kind in paths(skeleton)]
        leaves = [
            leaf.primitive if isinstance(leaf, Tensor) else leaf
            for leaf, kind in zip(flat, kinds, strict=True)
            if kind != INTEGER
        ]
        every = [leaf for leaf, kind in zip(flat, kinds, strict=True) if kind == INTEGER]
        # Integers by value; the stand-ins of a compiled function, which cannot be compared, by identity.
        keys = [leaf if isinstance(leaf, int) else ("", id(leaf)) for leaf in every] if shared else range(len(every))
        found: dict[Any, int] = {}
        places = tuple([found.setdefault(key, len(found)) for key in keys])
        counts = [every[places.index(place)] for place in range(len(found))]
        form = form_of(skeletons, places)
        if counts and all(isinstance(count, int) for count in counts):
            leaves.append(backend.from_host(np.array(counts, np.int64), Int, place))
        elif counts:
            leaves.append(stack([_as_tensor(count, place) for count in counts]).primitive)
        return Packed(tuple(states), form, tuple(leaves), place)

    def unpack(self) -> dict[ParamId, State]:
        """The state of every parameter."""
        rest = iter(self.leaves)
        counts = iter(self._counts())
        leaves = (next(counts) if kind == INTEGER else self._leaf(kind, next(rest)) for kind in self.form.kinds)
        return {id: unflatten(skeleton, leaves) for id, skeleton in zip(self.ids, self.form.skeletons, strict=True)}

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

    def _leaf(self, kind: str, leaf: Any) -> Any:
        backend = self.place.backend
        if kind in KINDS:
            return Tensor.from_primitive(leaf, backend, KINDS[kind])
        return leaf if isinstance(leaf, float) else backend.python_number(leaf)


def _as_tensor(count: Any, place: Device) -> Tensor[Any, Any, Any]:
    return tensor(count, device=place) if isinstance(count, int) else Tensor.from_primitive(count, place.backend, Int)


class Optimizer(ABC):
    """Changes a module's parameters by their gradients; its state is kept by parameter id.

    The general interface: implement `step`. Most optimizers treat one parameter at a time and are easier to write as a
    `SimpleOptimizer`.
    """

    shares_counts: bool = False
    """Do parameters whose counts are equal keep them so? See `SimpleOptimizer.shares_counts`."""

    def __init__(self) -> None:
        self._states: dict[ParamId, State] = {}
        self._packed: Packed | None = None
        self._home = recording.get()

    @abstractmethod
    def step(self, lr: float, module: M, grads: GradientsParams) -> M:
        """A new module with the parameters after one step at learning rate `lr`; the state goes on in this object."""

    def init_state(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state of a parameter before its first step."""
        return None

    def settings(self) -> Hashable:
        """What must be equal for two optimizers to compute alike; by default, that they are one object."""
        return ByIdentity(self)

    @property
    def states(self) -> dict[ParamId, State]:
        """The state of every parameter that has taken a step.

        Raises `CompileError` inside a compiled function that this optimizer is no argument of.
        """
        within = recording.get()
        if within is not None and within is not self._home:
            raise CompileError(
                "an optimizer is used inside a compiled function that it is no argument of, so that its new state "
                "would end with the call; pass it to the function (for a loop of steps, phlox.compile(step, steps=n))"
            )
        if self._packed is not None:
            self._states, self._packed = self._packed.unpack(), None
        return self._states

    def packed_for(self, backend: Backend) -> Packed | None:
        """The states as a compiled function has left them, if they are on this backend, whatever the device."""
        packed = self._packed
        return packed if packed is not None and packed.place.backend is backend else None

    def pack(self, place: Device) -> Packed:
        """All states taken apart, their tensors on a device."""
        packed = self._packed
        return packed if packed is not None and packed.place == place else self.repack(place)

    def repack(self, place: Device) -> Packed:
        """As `pack`, from the states as they are, wherever their tensors are said to be."""
        return Packed.of(self.states, place, shared=self.shares_counts)

    def load_packed(self, packed: Packed, home: object | None = None) -> None:
        """Take over states as a compiled function has them; `home` is the recording whose placeholders they are."""
        self._states = {}
        self._packed = packed
        self._home = home

    def into_record(self) -> Record:
        """The state as a record; nothing is copied."""
        entries: dict[str, Any] = {}
        for id, state in self.states.items():
            leaves: list[Any] = []
            skeleton = flatten(state, leaves)
            entries[f"states.{id}.skeleton"] = to_plain(skeleton)
            for (path, kind), leaf in zip(paths(skeleton), leaves, strict=True):
                name = f"states.{id}.state.{path}" if path else f"states.{id}.state"
                if kind in KINDS:
                    held = leaf if isinstance(leaf, LazyTensor) else lazy(name, leaf)
                    entries[name] = TensorEntry(held, id)
                else:
                    entries[name] = leaf
        return Record(entries, {"optimizer": type(self).__name__})

    def load_record(self, record: Record) -> None:
        """Take the state from a record; tensors are read, and moved to the parameter's device, at its next step.

        Raises `RecordError` (the record is not an optimizer's, or damaged) and leaves the state as it was.
        """
        if record.positional:
            raise RecordError("a positional record has lost the names that an optimizer's state is kept by")
        states: dict[ParamId, State] = {}
        for path in record.values:
            if path.startswith("states.") and path.endswith(".skeleton"):
                id = path.removeprefix("states.").removesuffix(".skeleton")
                states[ParamId(id)] = _read_state(record, path, f"states.{id}.state")
        if len(record) and not states:
            raise RecordError("the record holds no optimizer state; was it made from a module?")
        self._states, self._packed = states, None


def _read_state(record: Record, path: str, prefix: str) -> State:
    leaves: list[Any] = []
    try:
        skeleton = from_plain(record[path])
        for name, kind in paths(skeleton):
            entry = record[f"{prefix}.{name}" if name else prefix]
            leaf = entry.tensor if isinstance(entry, TensorEntry) else entry
            if not fits(kind, leaf):
                raise RecordError(f"{prefix}.{name}: expected {kind}, found {leaf!r}")
            leaves.append(leaf)
        return unflatten(skeleton, iter(leaves))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise RecordError(f"{prefix}: the optimizer's state is incomplete or damaged ({error})") from error


def brought(state: State, place: Device) -> State:
    """The state on a device: it may come from a record or from another backend."""

    def bring(leaf: Any) -> Any:
        if isinstance(leaf, LazyTensor):
            kind = KINDS[leaf.kind]
            return Tensor.from_primitive(place.backend.from_host(leaf.read(), kind, place), place.backend, kind)
        return leaf if leaf.device == place else leaf.to_device(place)

    return map_tensors(state, bring)
