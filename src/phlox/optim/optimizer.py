"""The interfaces of optimizers: `Optimizer` for modules, `SimpleOptimizer` for one tensor, and what joins them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeVar

from phlox.backend import Backend, Device, Float
from phlox.backend.kind import KINDS
from phlox.errors import OptimizerError, RecordError
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.records import lazy
from phlox.module.structure import ByIdentity
from phlox.optim.clipping import GradientClipping
from phlox.optim.state import Skeleton, State, flatten, from_plain, map_tensors, paths, to_plain, unflatten
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.tensor import Tensor

M = TypeVar("M", bound=Module)


class Packed(NamedTuple):
    """All states taken apart, as a compiled function takes and returns them: unpacked when somebody looks."""

    ids: tuple[ParamId, ...]
    skeletons: tuple[Skeleton, ...]
    leaves: list[Any]
    """Arrays and numbers."""
    backend: Backend

    def unpack(self) -> dict[ParamId, State]:
        """The state of every parameter."""
        kinds = [kind for skeleton in self.skeletons for _, kind in paths(skeleton)]
        leaves = iter([self._leaf(kind, leaf) for kind, leaf in zip(kinds, self.leaves, strict=True)])
        return {id: unflatten(skeleton, leaves) for id, skeleton in zip(self.ids, self.skeletons, strict=True)}

    def _leaf(self, kind: str, leaf: Any) -> Any:
        if kind in KINDS:
            return Tensor.from_primitive(leaf, self.backend, KINDS[kind])
        return leaf if isinstance(leaf, (int, float)) else self.backend.python_number(leaf)


class Optimizer(ABC):
    """Changes a module's parameters by their gradients; its state is kept by parameter id.

    The general interface: implement `step`. Most optimizers treat one parameter at a time and are easier to write as a
    `SimpleOptimizer`.
    """

    def __init__(self) -> None:
        self._states: dict[ParamId, State] = {}
        self._packed: Packed | None = None

    @abstractmethod
    def step(self, lr: float, module: M, grads: GradientsParams) -> M:
        """A new module with the parameters after one step at learning rate `lr`; the state of this optimizer goes on."""

    def init_state(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state of a parameter before its first step."""
        return None

    def settings(self) -> Hashable:
        """What must be equal for two optimizers to compute alike; by default, that they are one object."""
        return ByIdentity(self)

    @property
    def states(self) -> dict[ParamId, State]:
        """The state of every parameter that has taken a step."""
        if self._packed is not None:
            self._states, self._packed = self._packed.unpack(), None
        return self._states

    def pack(self, place: Device) -> Packed:
        """All states taken apart, their tensors on a device."""
        backend = place.backend
        if self._packed is not None and self._packed.backend is backend:
            return self._packed
        leaves: list[Any] = []
        states = self.states
        skeletons = tuple(flatten(_brought(state, place), leaves) for state in states.values())
        arrays = [leaf.primitive if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return Packed(tuple(states), skeletons, arrays, backend)

    def load_packed(self, packed: Packed) -> None:
        """Take over states as a compiled function returns them."""
        self._states = {}
        self._packed = packed

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

        Raises `RecordError` (the record is not an optimizer's) and leaves the state as it was.
        """
        states: dict[ParamId, State] = {}
        for path in record.values:
            if not path.startswith("states.") or not path.endswith(".skeleton"):
                continue
            id = path.split(".")[1]
            skeleton = from_plain(record[path])
            leaves: list[Any] = []
            try:
                for name, _ in paths(skeleton):
                    entry = record[f"states.{id}.state.{name}" if name else f"states.{id}.state"]
                    leaves.append(entry.tensor if isinstance(entry, TensorEntry) else entry)
                states[ParamId(id)] = unflatten(skeleton, iter(leaves))
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise RecordError(f"states.{id}: the optimizer's state is incomplete or damaged ({error})") from error
        if len(record) and not states:
            raise RecordError("the record holds no optimizer state; was it made from a module?")
        self._states, self._packed = states, None


class SimpleOptimizer(ABC):
    """An optimizer that treats one tensor at a time. `OptimizerAdaptor` does everything else.

    >>> class SignSgd(SimpleOptimizer):
    ...     def step(self, lr, tensor, grad, state):
    ...         return tensor - grad.sign() * lr, state
    """

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state before the first step; None unless the optimizer needs one."""
        return None

    @abstractmethod
    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        """The tensor after one step, and the state. All tensors are on one plain device.

        Under `phlox.compile` numbers (`lr`, counts in the state) are stand-ins: do arithmetic on them, do not branch.
        """


class OptimizerAdaptor(Optimizer):
    """A `SimpleOptimizer` for whole modules.

    Parameters that are not trained, or have no gradient, stay as they are. Gradients and state are brought to the
    parameter's device. Raises `OptimizerError` for a rate below zero or NaN, and for a gradient of another shape.
    """

    def __init__(self, optimizer: SimpleOptimizer, *, grad_clipping: GradientClipping | None = None) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.grad_clipping = grad_clipping

    def init_state(self, tensor: Tensor[Any, Any, Any]) -> State:
        return self.optimizer.init(tensor)

    def settings(self) -> Hashable:
        fields = (type(self.optimizer), tuple(vars(self.optimizer).items()), self.grad_clipping)
        try:
            hash(fields)
        except TypeError:
            return ByIdentity(self.optimizer)
        return fields

    def step(self, lr: float, module: M, grads: GradientsParams) -> M:
        if isinstance(lr, (int, float)) and not (lr >= 0.0 and math.isfinite(lr)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptimizerError(f"the learning rate must be a finite number of at least zero, got {lr}")
        states = self.states

        def update(path: str, param: Param) -> Param:
            grad = grads.get(param.id)
            if grad is None or not param.trained:
                return param
            value = param.val()
            outer = value.backend
            tensor = value.inner() if outer.differentiates else value
            place = tensor.device
            if grad.shape != tensor.shape:
                raise OptimizerError(
                    f"{path}: the gradient has shape {grad.shape}, the parameter {tensor.shape}; "
                    "is it the gradient of another model?"
                )
            if grad.backend is not tensor.backend or grad.device != place:
                grad = grad.to_device(place)
            if self.grad_clipping is not None:
                grad = self.grad_clipping(grad)
            state = states.get(param.id, _absent)
            state = self.optimizer.init(tensor) if state is _absent else _brought(state, place)
            stepped, state = self.optimizer.step(lr, tensor, grad, state)
            states[param.id] = state
            moved = Tensor.from_primitive(stepped.primitive, outer, Float)
            return Param(moved, trained=True, id=param.id)

        return module.map(update)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.optimizer).__name__}, {len(self.states)} states)"


_absent = object()


def _brought(state: State, place: Device) -> State:
    """The state on the parameter's device: it may come from a record or from another backend."""

    def bring(leaf: Any) -> Any:
        if isinstance(leaf, LazyTensor):
            kind = KINDS[leaf.kind]
            return Tensor.from_primitive(place.backend.from_host(leaf.read(), kind, place), place.backend, kind)
        return leaf if leaf.device == place else leaf.to_device(place)

    return map_tensors(state, bring)
