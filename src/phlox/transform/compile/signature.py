"""The arguments of a compiled function: arrays on one side, structure on the other.

`CallArguments` flattens the arguments of a call into arrays and a key, which is equal for calls that can use the same
program; `Rebuilder` rebuilds them from tracers. Parameter ids are in no key: a parameter is identified by its position
among the arguments, so that two models of one architecture share a program and keep their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import Backend, Device
from phlox.backend.contract.backend import backend_of_arrays, engine_of
from phlox.backend.levels import has_history
from phlox.backend.processes import processes
from phlox.backend.pytree import DICT
from phlox.backend.tracing.lifetime_errors import donated
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import CompileError
from phlox.module import GradientsParams, Module, ParamId
from phlox.module.statics import static_key
from phlox.module.template import Aux, flatten, kept, unflatten
from phlox.optim import LrSchedule, Optimizer
from phlox.optim.state.flat import FlatState
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops
from phlox.transform.tree import container_of, map_parts

if TYPE_CHECKING:
    from phlox.transform.compile.donation import DonationScope

Ids: TypeAlias = tuple[ParamId, ...]
IdPosition: TypeAlias = tuple[int, int]
"""The number of an argument with ids, and the position of an id in it."""


class GradientIds(NamedTuple):
    """The ids of gradients among the arguments."""

    ids: Ids


class StateIds(NamedTuple):
    """The ids of an optimizer's state, without its arrays."""

    ids: Ids


class ModuleArg(NamedTuple):
    """A module among the arguments."""

    module: Module
    owner: int
    """The number of the owner that has its ids."""
    path: str
    leaves: list[Any]
    """The list that has its arrays, as one tuple."""
    position: int
    """The position of the tuple in that list."""


class OptimizerArg(NamedTuple):
    """An optimizer among the arguments, and its state."""

    optimizer: Optimizer
    packed: FlatState
    leaves: list[Any]
    """The list that has its arrays, as one tuple."""
    position: int
    """The position of the tuple in that list."""
    ready: Optimizer
    """A twin with the states that its first step creates, if there are any; else the optimizer."""


class StepScalars:
    """One argument with a scalar for each step of a loop."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values


class _StepScalarsLeaf(tuple[Any, ...]):
    """The scalars of all steps as a leaf; other tuples have the arrays of modules and states."""

    __slots__ = ()


IdSource: TypeAlias = Aux | FlatState | GradientIds | StateIds
"""The objects that hold the ids of an argument."""

_INT_RANGE = range(-(2**63), 2**63)


def arrays_of(leaves: Iterable[Any]) -> list[Any]:
    """The arrays among leaves; a leaf can be an array, a tuple of arrays, or a number."""
    parts = [part for leaf in leaves for part in _parts(leaf)]
    return [part for part in parts if hasattr(part, "shape") and not isinstance(part, np.ndarray)]


def _parts(leaf: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,)


def first_backend(values: Iterable[Any]) -> Backend | None:
    """The backend of the first module or tensor; a backend with slices has precedence. None if there is none."""
    backends = _backends(values)
    first = next(backends, None)
    if first is None or processes().size == 1:
        return first
    return next((backend for backend in (first, *backends) if backend.has_slices), first)


def _backends(values: Iterable[Any]) -> Iterator[Backend]:
    for value in values:
        if isinstance(value, Tensor):
            yield backend_of_arrays(cast("Tensor[Any, Any, Any]", value).backend)
        elif isinstance(value, Module):
            pending = kept(value)
            if pending is None:
                backends = [param.backend for param in value.structure().params[:1]]
            else:
                backends = [ops.backend for ops, *_ in pending[0].template.marks[:1]]
            if backends:
                yield backend_of_arrays(backends[0])
        elif (container := container_of(value)) is not None:
            yield from _backends(part for _, part in container.items(value))


def _is_number(value: Any) -> bool:
    """Is this a NumPy number? An array without axes counts as one."""
    if not isinstance(value, (np.generic, np.ndarray)):
        return False
    array = cast("np.ndarray[Any, Any]", value)
    return array.ndim == 0 and array.dtype.kind in "fiu"


def _is_whole(number: Any) -> bool:
    return number.dtype.kind in "iu"


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a NumPy array of shape {cast('np.ndarray[Any, Any]', value).shape}"
    return f"a {type(value).__name__}"


def _remedy(value: Any) -> str:
    if hasattr(value, "__array__"):
        return "make it a tensor with phlox.tensor(...)"
    if is_dataclass(value):
        return "a dataclass that holds no tensors must be frozen, and so hashable"
    return "make it a tensor, or something hashable"


class FirstStates:
    """The states that the optimizers of a call create in their first step: a guess, until a trace shows them."""

    def __init__(self, variants: Sequence[Mapping[IdPosition, int]] | None = None) -> None:
        self._variants = variants
        """For each optimizer, the variant in which each parameter is stepped."""

    @property
    def is_guess(self) -> bool:
        """Is it still a guess?"""
        return self._variants is None

    def of(
        self, number: int, count: int, reader: CallArguments, stepped: Collection[ParamId]
    ) -> list[tuple[ModuleArg, Mapping[ParamId, int] | None]]:
        """The modules that an optimizer steps first, with the variants of their parameters (None: all trained ones).

        `count` is the number of optimizers; `stepped` are the parameters for which this one has states.
        """
        modules = reader.modules
        if self._variants is None:
            trained = [arg for arg in modules if any(param.trained for param in arg.module.params())]
            if len(trained) == count:  # such as a generator and a discriminator: most likely in the same order
                trained = trained[number : number + 1]
            # If a module has been stepped, its parameters without a state are most likely never stepped.
            return [(arg, None) for arg in trained if not any(p.id in stepped for p in arg.module.params())]
        variants: dict[int, dict[ParamId, int]] = {}
        for (owner, position), variant in self._variants[number].items():
            variants.setdefault(owner, {})[reader.owners[owner].ids[position]] = variant
        return [(arg, variants[arg.owner]) for arg in modules if arg.owner in variants]


class CallArguments:
    """The arguments of one call, flattened."""

    __slots__ = (
        "_checked_backend", "_device", "_late", "backend", "donated", "donation", "first", "guess", "kept", "modules",
        "optimizers", "owners", "twins",
    )  # fmt: skip

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.donated: list[Any] = []
        self.kept: list[Any] = [None]  # first the state of the random stream
        self.modules: list[ModuleArg] = []
        self.owners: list[IdSource] = []
        self.optimizers: list[OptimizerArg] = []
        self.first: tuple[Any, str] | None = None
        self.donation: DonationScope | None = None
        """The donations of the call, while it runs."""
        self.guess = False
        """Are the states that a first step creates a guess?"""
        self.twins: list[Optimizer] = []
        """Twins of the optimizers, if any: stepped by the traced function, or prepared for the first step."""
        self._late: list[tuple[Optimizer, list[Any]]] = []
        self._device: Device | None = None
        self._checked_backend: Backend | None = None  # the last backend whose engine was checked

    @property
    def device(self) -> Device:
        """The device of the first array."""
        if self._device is None:
            if self.first is None:  # all arrays are NumPy's
                return self.backend.device()
            array, path = self.first
            if self.backend.is_donated(array):
                raise donated(f"{path} was", array)
            self._device = self.backend.device_of(array)
        return self._device

    def read(self, value: Any, path: str, leaves: list[Any]) -> Hashable:
        """Append the arrays of a value to `leaves`, a module's as one tuple, and return the key of everything else."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, Tensor):
            return self._tensor(cast("Tensor[Any, Any, Any]", value), path, leaves)
        if kind is float:
            leaves.append(value)
            return float
        if isinstance(value, Module):
            for number, argument in enumerate(self.modules):
                if argument.module is value:  # the program, too, must see one module
                    return "again", number
            arrays, aux = flatten(value)
            self.modules.append(ModuleArg(value, len(self.owners), path, leaves, len(leaves)))
            leaves.append(arrays)
            template = aux.template
            if arrays and template.marks[0][0].backend is not self._checked_backend:
                self._check_backend(template.marks[0][0].backend, arrays[0], path)
            return template, self._add_owner(aux)
        if kind is int:
            return self._number(value, path, leaves)
        if isinstance(value, Optimizer):
            for number, (earlier, _) in enumerate(self._late):
                if earlier is value:
                    return "again, an optimizer", number
            self._late.append((value, leaves))
            return "optimizer"
        if isinstance(value, GradientsParams):
            parts = tuple([self._tensor(tensor, f"{path}, gradient", leaves) for _, tensor in value.items()])
            return kind, parts, self._add_owner(GradientIds(tuple(value)))
        container = container_of(value)
        if container is not None:
            items = list(container.items(value))
            parts = tuple([self.read(part, path + container.label(key), leaves) for key, part in items])
            return kind, parts, tuple([static_key(key) for key, _ in items]) if container is DICT else ()
        if _is_number(value):
            return self._number(value.item(), path, leaves)
        if kind is StepScalars:
            for number in value.values:
                self._number(number, path, [])
            leaves.append(_StepScalarsLeaf(value.values))
            return StepScalars, cast("type[Any]", type(value.values[0]))
        if isinstance(value, LrSchedule):
            raise CompileError(f"{path}: a schedule counts its steps itself; pass the rate, {path}.step(), instead")
        try:
            return static_key(value)
        except TypeError:
            raise CompileError(
                f"{path}: {_described(value)} can be neither an array nor a constant of a compiled function; "
                f"{_remedy(value)}"
            ) from None

    def forget(self) -> None:
        """Release all arrays: the call is over."""
        self.donated.clear()
        self.kept.clear()
        self.optimizers.clear()
        self.twins = []
        self.first = self.donation = None

    def read_late(self, first_states: FirstStates | None = None) -> Hashable:
        """Like `read`, for optimizers, after everything else, because their states belong to parameters.

        `first_states` are the states that a first step creates. They are created in a twin; the optimizer gets them at
        the end of the call.
        """
        key: list[Hashable] = []
        self.guess = first_states is not None and first_states.is_guess
        for number, (optimizer, leaves) in enumerate(self._late):
            packed, ready = optimizer.packed_for(self.backend), optimizer
            if packed is None or first_states is not None:
                ready = optimizer.twin()
                if packed is None:
                    ready.bind_to_one(argument.module for argument in self.modules)
                    for argument in self.modules:
                        ready.adopt_states(argument.module.params())
                if first_states is not None:
                    for argument, variants in first_states.of(number, len(self._late), self, ready.states):
                        ready.begin(argument.module, variants)
                packed = self._with_arrays(ready.pack(self.device))
            self.optimizers.append(OptimizerArg(optimizer, packed, leaves, len(leaves), ready))
            self.twins.append(ready)
            leaves.append(packed.leaves)
            key.append((optimizer.settings(), packed.form, self._add_owner(packed)))
        return tuple(key)

    def _with_arrays(self, packed: FlatState) -> FlatState:
        """States with the engine's scalars in place of Python numbers, which would be arguments of 64 bits."""
        as_scalar = self.backend.as_device_scalar
        return packed._replace(leaves=tuple([as_scalar(x) if isinstance(x, float) else x for x in packed.leaves]))

    def complete(self) -> None:
        """Convert the leaves to the arguments of a program."""
        for leaves in (self.donated, self.kept):
            leaves[:] = [self._with_scalars(leaf) for leaf in leaves]
        if self.donated:
            self._separate()

    def _with_scalars(self, leaf: Any) -> Any:
        if isinstance(leaf, (float, int)):
            return self.backend.scalar_argument(leaf)
        if isinstance(leaf, _StepScalarsLeaf):
            return tuple([self.backend.scalar_argument(part) for part in leaf])
        return leaf

    def _separate(self) -> None:
        """Copy donated arrays that occur twice among the arguments, because no engine accepts that.

        For example, an average of weights begins with the model's arrays, and a student can be a copy of its teacher.
        """
        seen = {id(array) for array in arrays_of(self.kept)}

        def unshared(leaf: Any) -> Any:
            if isinstance(leaf, tuple):
                return tuple([unshared(part) for part in cast("tuple[Any, ...]", leaf)])
            if not hasattr(leaf, "shape"):
                return leaf
            if id(leaf) in seen and not self.backend.is_traced(leaf) and not self.backend.is_donated(leaf):
                return self.backend.duplicate(leaf)
            seen.add(id(leaf))
            return leaf

        self.donated[:] = [unshared(leaf) for leaf in self.donated]

    def shares_donated(self) -> bool:
        """Is a donated argument passed a second time?"""
        donated, kept = arrays_of(self.donated), arrays_of(self.kept)
        return len({id(x) for x in donated}.difference(map(id, kept))) < len(donated)

    def _tensor(self, tensor: Tensor[Any, Any, Any], path: str, leaves: list[Any]) -> Ops:
        ops: Ops = tensor._ops  # pyright: ignore[reportPrivateUsage]
        backend = ops.backend
        array = tensor.primitive
        if backend.differentiates:
            if has_history(backend, array) and not backend.is_poisoned(array):
                raise CompileError(
                    f"{path}: a tensor with a history on the tape cannot go into a compiled function, which would lose "
                    "it; pass it with .detach(), make it inside, or compile the gradient: phlox.compile(phlox.grad(fn))"
                )
            array = backend.strip(array)
        leaves.append(array)
        if backend is not self._checked_backend:
            self._check_backend(backend, array, path)
        return ops

    def _number(self, value: float, path: str, leaves: list[Any]) -> Hashable:
        if isinstance(value, int) and value not in _INT_RANGE:
            raise CompileError(
                f"{path}: {value} does not fit the 64-bit integers of a compiled function; pass it as a float"
            )
        leaves.append(value)
        return type(value)

    def _add_owner(self, owner: IdSource) -> Hashable:
        """Add an owner of ids; returns how its ids relate to the ids of earlier owners."""
        owners, ids = self.owners, owner.ids
        relation: Hashable = None
        for number, earlier in enumerate(owners):
            if earlier.ids is ids:
                relation = number
                break
        else:
            if owners:
                relation = _relation(tuple([earlier.ids for earlier in owners]), ids)
        owners.append(owner)
        return relation

    def _check_backend(self, backend: Backend, array: Any, path: str) -> None:
        self._checked_backend = backend
        plain = backend_of_arrays(backend)
        if self.first is None and not isinstance(array, np.ndarray):
            self.first = array, path
            self.backend = plain
        if plain is not self.backend and type(engine_of(plain)) is not type(engine_of(self.backend)):
            raise CompileError(
                f"{path}: it is on {plain!r}, and other arguments on {self.backend!r}; "
                "move it there with .to_device(...)"
            )


@lru_cache(maxsize=256)
def _relation(earlier: tuple[Ids, ...], ids: Ids) -> Hashable:
    """The positions of these ids among earlier owners: the owner with equal ids, or one by one; else None."""
    if ids in earlier:
        return earlier.index(ids)
    positions = first_positions(earlier)
    relation = tuple(positions.get(id) for id in ids)
    return relation if any(index is not None for index in relation) else None


def first_positions(owners: Iterable[Ids]) -> dict[ParamId, IdPosition]:
    """The first position of each id."""
    positions: dict[ParamId, IdPosition] = {}
    for number, ids in enumerate(owners):
        for index, id in enumerate(ids):
            positions.setdefault(id, (number, index))
    return positions


class Rebuilder:
    """Rebuilds the arguments from tracers, inside the program that is being traced."""

    def __init__(self, tracing: object | None, backend: Backend) -> None:
        self.tracing, self.backend = tracing, backend
        self.modules: list[Module] = []
        self._rebuilt: list[tuple[Module, Module]] = []
        self._twins: list[tuple[Optimizer, Optimizer]] = []

    def rebuild(self, value: Any, leaves: Iterator[Any]) -> Any:
        """The value with tracers for its arrays, read in the order in which `CallArguments` wrote them."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, Module):
            for original, module in self._rebuilt:
                if original is value:
                    return module
            _, aux = flatten(value)
            module = unflatten(aux, next(leaves))
            self.modules.append(module)
            self._rebuilt.append((value, module))
            return module
        if isinstance(value, Tensor):
            return cast("Tensor[Any, Any, Any]", value)._with(next(leaves))  # pyright: ignore[reportPrivateUsage]
        if kind is StepScalars:
            return self._scalar(next(leaves), isinstance(value.values[0], int))
        if kind is float or kind is int or _is_number(value):
            return self._scalar(next(leaves), isinstance(value, int) or (kind is not float and _is_whole(value)))
        if isinstance(value, Optimizer):
            return next(twin for optimizer, twin in self._twins if optimizer is value)
        return map_parts(lambda part, path: self.rebuild(part, leaves), value, "")

    def _scalar(self, tracer: Any, whole: bool) -> Any:
        if isinstance(tracer, (float, int)):  # another library traces, and the function is called as it is
            return tracer
        return TracedScalar(self.backend, self.backend.scalar_from_argument(tracer, whole), whole)

    def twins_of(self, optimizers: Sequence[OptimizerArg]) -> list[Optimizer]:
        """The optimizers that the function sees, so that tracing does not change the user's."""
        self._twins = [(argument.optimizer, argument.ready.twin()) for argument in optimizers]
        return [twin for _, twin in self._twins]

    def rebuild_late(self, twin: Optimizer, packed: FlatState, leaves: Iterator[Any]) -> None:
        """Put tracers for an optimizer's states into its twin."""
        twin.load_packed(packed._replace(leaves=next(leaves)), self.tracing)
