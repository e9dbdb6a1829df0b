"""`Param`: the only thing that a module saves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NewType, Protocol, final

from phlox.backend import Backend, Device, DeviceLike, Float, Kind, as_device
from phlox.errors import ModuleError
from phlox.module.watch import Watched
from phlox.random import Key, current, stream
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops

ParamId = NewType("ParamId", str)
"""Names a parameter for life: through moves, maps, saving and loading. Optimizer state is kept by it."""


def new_id() -> ParamId:
    """An id that no other parameter has."""
    return ParamId(uuid.uuid4().hex)


class Initializer(Protocol):
    """Gives a parameter its first value, drawing from the ambient stream, which is the parameter's own."""

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        """A tensor of `shape` on `device`; `fans` are the connections into and out of a unit."""
        ...


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a parameter knows until its value is needed."""

    shape: tuple[int, ...]
    initializer: Initializer
    fans: tuple[int, int]
    device: Device
    key: Key


_forbidden: ContextVar[bool] = ContextVar("phlox_no_initializers", default=False)


@contextmanager
def no_initializers() -> Generator[None]:
    """Within this scope running an initializer is an error: proof that a model comes from its record alone."""
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


@final
class Param(Watched):
    """A tensor that a module owns: with an id, and a mark that says whether it is trained.

    Until it is needed a parameter may be *deferred*: it knows its shape and initializer only, see `Param.deferred`. On
    a backend with a tape, the value of a trained parameter is a leaf of the tape.

    Args:
        value: the tensor.
        trained: whether optimizers change it; Int and Bool parameters, and running statistics, are not trained.
        id: of the parameter that this one continues; a new one unless given.

    >>> import phlox as px
    >>> px.Param(px.zeros((2, 3))).shape
    (2, 3)
    """

    __slots__ = ("_deferred", "_tensor", "id", "trainable", "trained")

    id: ParamId
    trained: bool
    """Whether optimizers change it now. Change it through `Module.freeze`."""
    trainable: bool
    """Whether it is trained unless frozen: what it was declared as."""
    _tensor: Tensor[Any, Any, Any] | None
    _deferred: Deferred | None

    def __init__(self, value: Tensor[Any, Any, Any], *, trained: bool = True, id: ParamId | None = None) -> None:
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"a Param holds a tensor, got {type(value).__name__}; make one with phlox.tensor(...)")
        self.id = new_id() if id is None else id
        self.trained = self.trainable = trained and value.kind is Float
        self._watchers = ()
        self._deferred = None
        self._tensor = self._leaf(value)

    @classmethod
    def deferred(
        cls,
        shape: tuple[int, ...],
        initializer: Initializer,
        *,
        fans: tuple[int, int] | None = None,
        device: DeviceLike | None = None,
        trained: bool = True,
    ) -> Param:
        """A Float parameter whose value is made when first needed.

        It reserves a random sub-stream of its own now, so the value depends on the seed and on the order in which
        parameters are declared, not on what is used first. `fans` default to the first and the last size of the shape.

        Raises `ModuleError` for a size that is no integer, or negative.
        """
        if not all(isinstance(size, int) and size >= 0 for size in shape):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"a parameter cannot have the shape {shape}: sizes are integers of at least zero")
        if fans is None:
            fans = (shape[0], shape[-1]) if shape else (1, 1)
        deferred = Deferred(tuple(shape), initializer, fans, as_device(device), current().substream())
        return cls._made(None, deferred, new_id(), trained, trained)

    @classmethod
    def _made(
        cls,
        tensor: Tensor[Any, Any, Any] | None,
        deferred: Deferred | None,
        id: ParamId,
        trained: bool,
        trainable: bool,
    ) -> Param:
        self = object.__new__(cls)
        self.id = id
        self.trained = trained
        self.trainable = trainable
        self._watchers = ()
        self._deferred = deferred
        self._tensor = tensor
        return self

    @classmethod
    def revive(cls, ops: Ops, array: Any, trained: bool, trainable: bool, id: ParamId) -> Param:
        """A parameter around an engine's array, or what a PyTree operation puts in its place; never validates."""
        backend = ops.backend
        primitive = backend.tracked(array) if trained and backend.differentiates else array
        return cls._made(Tensor.from_primitive(primitive, backend, ops.kind), None, id, trained, trainable)

    def _leaf(self, value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        return value.require_grad() if self.trained and value.backend.differentiates else value.detach()

    # --- what is known of it

    @property
    def is_initialized(self) -> bool:
        """Has the value been made?"""
        return self._tensor is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, known before the value is."""
        return self.val().shape if self._deferred is None else self._deferred.shape

    @property
    def device(self) -> Device:
        """Where the value is, or will be."""
        return self.val().device if self._deferred is None else self._deferred.device

    @property
    def backend(self) -> Backend:
        """What computes with it."""
        return self.val().backend if self._deferred is None else self._deferred.device.backend

    @property
    def kind(self) -> type[Kind]:
        """The kind of the value; deferred parameters are Float."""
        return Float if self._tensor is None else self._tensor.kind

    @property
    def mark(self) -> tuple[Ops, bool, bool]:
        """What a structure remembers of it: backend and kind, and whether it is trained and trainable."""
        return self.val()._ops, self.trained, self.trainable  # pyright: ignore[reportPrivateUsage]

    # --- its value

    def val(self) -> Tensor[Any, Any, Any]:
        """The value; made now if it has not been yet."""
        tensor = self._tensor
        return self.init() if tensor is None else tensor

    def init(self, key: Key | None = None) -> Tensor[Any, Any, Any]:
        """Make the value now, from the parameter's own sub-stream or from another key; one that is there stays."""
        deferred = self._deferred
        if deferred is None:
            assert self._tensor is not None
            return self._tensor
        if _forbidden.get():
            raise ModuleError(
                f"a parameter of shape {deferred.shape} was about to be initialised where that is forbidden; "
                "load a record that has it"
            )
        if deferred.device.backend.bakes_constants():
            raise ModuleError(
                f"a parameter of shape {deferred.shape} is first used inside a JAX transformation and cannot be made "
                "there; call model.init() before"
            )
        with stream(deferred.key if key is None else key):
            value = deferred.initializer(deferred.shape, deferred.fans, deferred.device)
        if not isinstance(value, Tensor) or value.shape != deferred.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
            got = f"shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"an initializer gave {got} for a parameter of shape {deferred.shape}")
        return self._replace(value)

    def set(self, value: Tensor[Any, Any, Any]) -> None:
        """Replace the value, as running statistics do; its shape and kind must be the same, and its history is cut.

        Raises `ModuleError` for another shape or kind, and where the value of a transformation would escape from it.
        """
        if value.shape != self.shape:
            raise ModuleError(f"a parameter of shape {self.shape} cannot take a value of shape {value.shape}")
        if value.kind is not self.kind:
            raise ModuleError(f"a parameter of kind {self.kind.__name__} cannot take a value of {value.kind.__name__}")
        backend = value.backend
        if backend.is_traced(value.primitive) and backend.bakes_constants() and not self._is_traced():
            raise ModuleError(
                f"a parameter of shape {self.shape} that was made outside of a compiled function would be given a "
                "value from inside, which ends with the call; pass its module to the function as an argument"
            )
        self._replace(value)

    def _is_traced(self) -> bool:
        return self._tensor is not None and self._tensor.backend.is_traced(self._tensor.primitive)

    def _replace(self, value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        before = self._tensor
        self._tensor = made = self._leaf(value)
        self._deferred = None
        if before is None or before._ops is not made._ops:  # pyright: ignore[reportPrivateUsage]
            self.changed()
        return made

    def set_id(self, id: ParamId) -> None:
        """Take the id of the parameter that it continues, as when loading a record."""
        if id != self.id:
            self.id = id
            self.changed()

    def set_trained(self, trained: bool) -> None:
        """Mark it as trained or not; only Float parameters can be."""
        trained = trained and self.kind is Float
        if trained != self.trained:
            self.trained = trained
            if self._tensor is not None:
                self._tensor = self._leaf(self._tensor)
            self.changed()

    # --- others like it, with the same id

    def map(self, fn: Callable[[Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]) -> Param:
        """A parameter whose value is `fn` of this one's (off the tape), with the same id and marks."""
        return self.holding(fn(self.val().detach()))

    def holding(self, value: Tensor[Any, Any, Any]) -> Param:
        """A parameter with another value, and the same id and marks."""
        twin = Param(value, trained=self.trained, id=self.id)
        twin.trainable = self.trainable and value.kind is Float
        return twin

    def to_device(self, device: DeviceLike) -> Param:
        """The same parameter on another device; deferred ones stay deferred."""
        target = as_device(device)
        deferred = self._deferred
        if deferred is None:
            return self.map(lambda value: value.to_device(target))
        return self._made(None, replace(deferred, device=target), self.id, self.trained, self.trainable)

    def on_backend_of(self, device: Device) -> Param:
        """The same array seen from a decorator, or from below it: no value is moved."""
        if self._deferred is not None:
            return self.to_device(device)
        tensor = self.val()
        array = tensor.backend.strip(tensor.primitive)
        return self.holding(Tensor.from_primitive(array, device.backend, tensor.kind))

    def copy(self) -> Param:
        """The same parameter as another object."""
        return self._made(self._tensor, self._deferred, self.id, self.trained, self.trainable)

    def __copy__(self) -> Param:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        memo[id(self)] = twin = self.copy()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.val().detach(), self.id, self.trained, self.trainable)

    def __repr__(self) -> str:
        marks = (", deferred" if self._deferred is not None else "") + ("" if self.trained else ", not trained")
        return f"Param({self.shape} on {self.device}{marks})"


def _restore(value: Tensor[Any, Any, Any], id: ParamId, trained: bool, trainable: bool) -> Param:
    restored = Param(value, trained=trained, id=id)
    restored.trainable = trainable
    return restored
