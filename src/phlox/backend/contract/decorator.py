"""`Decorator`: the base of backends that wrap another one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.collectives import Later, Presence, Ranks, Reduction
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.sharding import Index, Shard
from phlox.errors import UnsupportedError

if TYPE_CHECKING:
    from phlox.backend.analysis import Analysis


class Decorator(Backend):
    """The base of backends that wrap another one: their arrays are the inner backend's, some of them in a box.

    A box adds something to an array. Calls about devices, scalars and traces go to the inner backend, and so do calls
    about an array, without its box. A decorator overrides the operations that its boxes change.
    """

    inner: Backend  # pyright: ignore[reportIncompatibleVariableOverride]
    box: type[Any]
    """The class of the boxes, whose `value` is an array of the inner backend."""

    adds_level = True

    def below(self, x: Array) -> Array:
        """The inner backend's own array."""
        return x.value if type(x) is self.box else x

    def spec(self) -> tuple[str, dict[str, Any]]:
        """The name (see `phlox.backend.register_decorator`) and the options, as an exported program stores them."""
        raise UnsupportedError(f"{self!r} has no name by which an exported program could ask for it")

    @property
    def has_slices(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.has_slices

    # --- devices

    def device(self, name: str | None = None) -> Device:
        return self.inner.device(name).on(self)

    def device_of(self, x: Array) -> Device:
        return self.inner.device_of(self.below(x)).on(self)

    def other_device_names(self, device: Device) -> str:
        return self.inner.other_device_names(device)

    def memory_used(self, device: Device) -> int | None:
        return self.inner.memory_used(device)

    def peak_memory_used(self, device: Device) -> int | None:
        return self.inner.peak_memory_used(device)

    # --- processes

    @property
    def joins_at_start(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.joins_at_start

    def join_processes(self) -> None:
        self.inner.join_processes()

    def local_device_count(self) -> int:
        return self.inner.local_device_count()

    # --- values

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        return self.inner.from_host(array, kind, device)

    def from_dlpack(self, x: Any, device: Device) -> Array:
        return self.inner.from_dlpack(x, device)

    def replicate_like(self, x: Array, like: Array) -> Array:
        return self.inner.replicate_like(x, self.below(like)) if type(x) is not self.box else x

    def prefers_fused_matmul(self, joined: Sequence[Array]) -> bool:
        return self.inner.prefers_fused_matmul(list(map(self.below, joined)))

    def shards(self, x: Array) -> list[Shard]:
        return self.inner.shards(self.below(x))

    def from_shards(
        self, shape: Shape, kind: type[Kind], device: Device, read: Callable[[Index], np.ndarray[Any, Any]]
    ) -> Array:
        return self.inner.from_shards(shape, kind, device, read)

    def mesh_of(self, x: Array) -> Any:
        return self.inner.mesh_of(self.below(x))

    def cuts_sequences(self, x: Array) -> bool:
        return self.inner.cuts_sequences(self.below(x))

    def is_here(self, x: Array) -> bool:
        return self.inner.is_here(self.below(x))

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return self.inner.to_host(self.below(x))

    def await_array(self, x: Array) -> None:
        self.inner.await_array(self.below(x))

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        return self.inner.to_dlpack(self.below(x), **options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        return self.inner.dlpack_device(self.below(x))

    def kind_of(self, x: Array) -> type[Kind]:
        return self.inner.kind_of(self.below(x))

    def owns_floats(self, x: object) -> bool:
        return self.inner.owns_floats(self.below(x))

    def element(self, kind: type[Kind]) -> Any:
        return self.inner.element(kind)

    def fit(self, array: np.ndarray[Any, Any], kind: type[Kind]) -> np.ndarray[Any, Any]:
        return self.inner.fit(array, kind)

    def check_fits(self, x: Array, target: Backend) -> None:
        self.inner.check_fits(self.below(x), target)

    def check_indices(self, indices: Array, size: int, *, from_end: bool) -> bool:
        return self.inner.check_indices(self.below(indices), size, from_end=from_end)

    def strip(self, x: Array) -> Array:
        return self.inner.strip(self.below(x))

    def requires_grad(self, x: Array) -> bool:
        return self.inner.requires_grad(self.below(x))

    def is_poisoned(self, x: Array) -> bool:
        return self.inner.is_poisoned(self.below(x))

    def batch_of(self, x: Array) -> Shape:
        return self.inner.batch_of(self.below(x))

    def is_donated(self, x: Array) -> bool:
        return self.inner.is_donated(self.below(x))

    # --- collectives

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        return self.inner.all_reduce([self._sendable(x) for x in arrays], op, presence)

    def all_gather(self, x: Array) -> Array:
        return self.inner.all_gather(self._sendable(x))

    def broadcast(self, x: Array, root: int) -> Array:
        return self.inner.broadcast(self._sendable(x), root)

    def gather_slices(self, x: Array, ranks: Ranks) -> Array:
        return self.inner.gather_slices(self._sendable(x), ranks)

    def scatter_mean(self, x: Array, ranks: Ranks) -> Array:
        return self.inner.scatter_mean(self._sendable(x), ranks)

    def scattered_like(self, g: Array, x: Array) -> Later:
        return self.inner.scattered_like(self.below(g), self.below(x))

    def make_ready(self, x: Array) -> None:
        self.inner.make_ready(self.below(x))

    def is_slice(self, x: Array) -> bool:
        return self.inner.is_slice(self.below(x))

    def reduce_on_host(
        self, arrays: Sequence[np.ndarray[Any, Any]], op: Reduction, presence: Presence | None = None
    ) -> list[np.ndarray[Any, Any]]:
        return self.inner.reduce_on_host(arrays, op, presence)

    def gather_on_host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.inner.gather_on_host(array)

    def broadcast_on_host(self, array: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
        return self.inner.broadcast_on_host(array, root)

    def _sendable(self, x: Array) -> Array:
        if type(x) is self.box:
            raise UnsupportedError(
                f"{self!r} has no collectives: inside phlox.vmap a tensor stands for one example; call it on what vmap "
                "returns"
            )
        return x

    # --- traced scalars

    def is_traced_scalar(self, value: object) -> bool:
        return self.inner.is_traced_scalar(value)

    def scalar_expm1(self, x: Any) -> Any:
        return self.inner.scalar_expm1(x)

    def as_device_scalar(self, value: float) -> Any:
        return self.inner.as_device_scalar(value)

    def scalar_argument(self, value: float) -> Any:
        return self.inner.scalar_argument(value)

    def promote_scalar(self, x: Any, kind: type[Kind]) -> Any:
        return self.inner.promote_scalar(x, kind)

    def scalar_from_argument(self, x: Any, whole: bool) -> Any:
        return self.inner.scalar_from_argument(x, whole)

    def on_scalars(self, op: Callable[..., Any], whole: bool, *operands: Any) -> Any:
        return self.inner.on_scalars(op, whole, *operands)

    def scalar_as_operand(self, x: Any, other: Any) -> Any:
        return self.inner.scalar_as_operand(x, other)

    def concrete_scalar(self, x: Any) -> Any:
        return self.inner.concrete_scalar(x)

    # --- tracing and compiling

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        return self.inner.compile(fn, release)

    def analyze(self, run: Callable[[Any, Any], Any], donated: Any, kept: Any) -> Analysis | None:
        return self.inner.analyze(run, donated, kept)

    def layout_of(self, x: Array) -> tuple[Hashable, str] | None:
        return self.inner.layout_of(self.below(x))

    def compilations(self, run: Callable[[Any, Any], Any]) -> int | None:
        return self.inner.compilations(run)

    def host_argument(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Any:
        return self.inner.host_argument(array, kind, device.on(self.inner))

    def trace_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        self.inner.trace_only(fn, donated, kept)

    def abstract_array(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        return self.inner.abstract_array(shape, kind, device)

    def current_trace(self) -> object | None:
        return self.inner.current_trace()

    def trace_of(self, x: Array) -> object | None:
        return self.inner.trace_of(self.below(x))

    def is_tracing(self) -> bool:
        return self.inner.is_tracing()

    def traces_loops(self) -> bool:
        return self.inner.traces_loops()

    def is_traced(self, x: Array) -> bool:
        return self.inner.is_traced(self.below(x))

    def collects_checks(self, x: Array) -> bool:
        return self.inner.collects_checks(self.below(x))

    def is_donated_error(self, error: Exception) -> bool:
        return self.inner.is_donated_error(error)

    def is_engine_error(self, error: Exception) -> bool:
        return self.inner.is_engine_error(error)

    def is_out_of_memory(self, error: Exception) -> bool:
        return self.inner.is_out_of_memory(error)

    def is_trace_error(self, error: Exception) -> bool:
        return self.inner.is_trace_error(error)
