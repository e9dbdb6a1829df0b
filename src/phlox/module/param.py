"""`Param`: the only thing that a module saves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NewType, Protocol

from phlox.backend import Device, DeviceLike, Float, Kind, as_device
from phlox.errors import ModuleError
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
def no_initializers() -> Iterator[None]:
    """Within this scope running an initializer is an error: proof that a model comes from its record alone."""
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


class Param:
    """A tensor that a module owns: with an id, and a mark that says whether it is trained.

    Until it is needed a parameter may be *deferred*: it knows its shape and initializer only, see `Param.deferred`. On a
    backend with a tape, the value of a trained parameter is a leaf of the tape.

    >>> import phlox as px
    >>> px.Param(px.zeros((2, 3))).shape
    (2, 3)
    """

    __slots__ = ("__weakref__", "_deferred", "_tensor", "_watchers", "id", "trained")

    id: ParamId
    trained: bool
    """Whether optimizers change it; running statistics are not trained. Change it through `Module.freeze`."""
    _tensor: Tensor[Any, Any, Any] | None
    _deferred: Deferred | None
    _watchers: list[Any]

    def __init__(self, value: Tensor[Any, Any, Any], *, trained: bool = True, id: ParamId | None = None) -> None:
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"a Param holds a tensor, got {type(value).__name__}; make one with phlox.tensor(...)")
        self.id = new_id() if id is None else id
        self.trained = trained and value.kind is Float
        self._watchers = []
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
        """A parameter whose value is made when first needed.

        It reserves a random sub-stream of its own now, so the value depends on the seed and on the order in which
        parameters are declared, not on what is used first. `fans` default to the first and the last size of the shape.
        """
        self = object.__new__(cls)
        self.id = new_id()
        self.trained = trained
        self._watchers = []
        self._tensor = None
        given = (shape[0], shape[-1]) if fans is None and shape else fans or (1, 1)
        self._deferred = Deferred(shape, initializer, given, as_device(device), current().substream())
        return self

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
        return self._tensor.shape if self._deferred is None else self._deferred.shape  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def device(self) -> Device:
        """Where the value is, or will be."""
        return self._tensor.device if self._deferred is None else self._deferred.device  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def kind(self) -> type[Kind]:
        """The kind of the value; deferred parameters are Float."""
        return Float if self._tensor is None else self._tensor.kind

    @property
    def ops(self) -> Ops:
        """The backend and kind of the value."""
        return self.val()._ops  # pyright: ignore[reportPrivateUsage]

    # --- its value

    def val(self) -> Tensor[Any, Any, Any]:
        """The value; made now if it has not been yet."""
        return self.init() if self._tensor is None else self._tensor

    def init(self, key: Key | None = None) -> Tensor[Any, Any, Any]:
        """Make the value now, from the parameter's own sub-stream or from another key; one that is there stays."""
        deferred = self._deferred
        if deferred is None:
            return self._tensor  # pyright: ignore[reportReturnType]
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
        if value.shape != deferred.shape:
            raise ModuleError(f"an initializer gave shape {value.shape} for a parameter of shape {deferred.shape}")
        self.set(value)
        return self._tensor  # pyright: ignore[reportReturnType]

    def set(self, value: Tensor[Any, Any, Any]) -> None:
        """Replace the value, as running statistics do; its shape must be the same."""
        if value.shape != self.shape:
            raise ModuleError(f"a parameter of shape {self.shape} cannot take a value of shape {value.shape}")
        before = self._tensor
        self._tensor = self._leaf(value)
        self._deferred = None
        if before is None or before._ops is not value._ops:  # pyright: ignore[reportPrivateUsage]
            self._changed()

    def _changed(self) -> None:
        """Tell the modules that hold it that more than its value has changed."""
        for watcher in self._watchers:
            watcher.valid = False
        self._watchers.clear()

    def set_id(self, id: ParamId) -> None:
        """Take the id of the parameter that it continues, as when loading a record."""
        if id != self.id:
            self.id = id
            self._changed()

    def set_trained(self, trained: bool) -> None:
        """Mark it as trained or not."""
        if trained != self.trained:
            self.trained = trained and self.kind is Float
            if self._tensor is not None:
                self._tensor = self._leaf(self._tensor)
            self._changed()

    # --- others like it, with the same id

    def map(self, fn: Callable[[Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]) -> Param:
        """A parameter whose value is `fn` of this one's (off the tape), with the same id and mark."""
        return Param(fn(self.val().detach()), trained=self.trained, id=self.id)

    def to_device(self, device: DeviceLike) -> Param:
        """The same parameter on another device; deferred ones stay deferred."""
        target = as_device(device)
        if self._deferred is None:
            return self.map(lambda value: value.to_device(target))
        moved = self.copy()
        moved._deferred = replace(self._deferred, device=target)
        return moved

    def on_backend_of(self, device: Device) -> Param:
        """The same array seen from a decorator, or from below it: no value is moved."""
        if self._deferred is not None:
            return self.to_device(device)
        tensor = self.val()
        array = tensor.backend.strip(tensor.primitive)
        return Param(Tensor.from_primitive(array, device.backend, tensor.kind), trained=self.trained, id=self.id)

    def copy(self) -> Param:
        """The same parameter as another object."""
        twin = object.__new__(Param)
        twin.id, twin.trained, twin._watchers = self.id, self.trained, []
        twin._deferred, twin._tensor = self._deferred, self._tensor
        return twin

    def __copy__(self) -> Param:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        memo[id(self)] = twin = self.copy()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.val().detach(), self.trained, self.id)

    def __repr__(self) -> str:
        if self._deferred is not None:
            return f"Param({self.shape} on {self.device}, deferred)"
        return f"Param({self.shape} on {self.device}{'' if self.trained else ', not trained'})"


def _restore(value: Tensor[Any, Any, Any], trained: bool, id: ParamId) -> Param:
    return Param(value, trained=trained, id=id)


def revive(ops: Ops, array: Any, trained: bool, id: ParamId) -> Param:
    """A parameter around one of the engine's arrays, or what a PyTree operation puts in its place; never validates."""
    self = object.__new__(Param)
    self.id = id
    self.trained = trained
    self._watchers = []
    self._deferred = None
    backend = ops.backend
    primitive = backend.tracked(array) if trained and backend.differentiates else array
    self._tensor = Tensor.from_primitive(primitive, backend, ops.kind)
    return self
