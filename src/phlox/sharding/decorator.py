"""`Sharded(B)`: the backend B, where an array may be cut into slices, one in each process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from phlox.backend.analysis import Analysis
from phlox.backend.contract import Backend, Decorator
from phlox.backend.contract.catalogue import OPERATIONS
from phlox.backend.contract.collectives import Later
from phlox.backend.contract.signatures import ELEMENTWISE, declared
from phlox.backend.contract.types import Array, Gradients, Kinds, Needed, Shape
from phlox.backend.contract.update import AdamScalars, Piece, ReusedBuffer
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.parallel import are_gradients_local, is_same_everywhere, row_group
from phlox.backend.processes import processes
from phlox.backend.reproducible import when_installed
from phlox.backend.sharding import Index, Shard, Sharding
from phlox.errors import BackendError, DistributedError, UnsupportedError
from phlox.host.dtypes import FloatElement
from phlox.sharding.programs import compiled
from phlox.sharding.slices import Cut, Slice, SliceBuffer, cut_by

_REDUCTIONS = (*declared("Reduction"), "float_mean")
"""Operations `(x, axes, keepdims)`: the result for an array is the same reduction of the results for its slices."""
_DERIVED = ("squeeze", "expand_dims")
"""The contract defines these by other operations, which are defined here."""


class Sharded(Decorator):
    """The backend `inner`, where each process may hold a slice of an array, for engines that do not partition arrays.

    An operation computes on slices if that is enough: elementwise operations, reductions, permutations of axes. Any
    other operation gathers the whole array first, and drops it again. So a whole weight is in memory only while a layer
    multiplies with it, forward and backward: the tape keeps the slice. A program for whole arrays therefore also works
    for slices, with the same results. All processes must run the same operations.

    On `Autodiff(Sharded(B))`, the gradient with respect to a slice is a slice: the mean over the processes, where each
    process computes on its own rows (`with mesh:`).
    """

    adds_level = False
    box: type[Slice] = Slice
    _instances: ClassVar[dict[Backend, Sharded]] = {}

    def __new__(cls, inner: Backend) -> Sharded:
        if inner in cls._instances:
            return cls._instances[inner]
        if inner.inner is not None or inner.partitions:
            raise UnsupportedError(f"Sharded needs an engine that does not partition arrays itself, got {inner!r}")
        self = super().__new__(cls)
        self.inner = inner
        self.name = inner.name
        self.float_element = inner.float_element
        self.int_element = inner.int_element
        self.compiles = inner.compiles
        shape = inner.shape
        self.shape = lambda x: x.shape if type(x) is Slice else shape(x)
        self._bind()
        self = cls._instances.setdefault(inner, self)
        when_installed(self._bind)
        return self

    def _bind(self) -> None:
        """Build the operations from the inner backend's."""
        for name in OPERATIONS - {*_DERIVED}:
            if name in vars(type(self)):
                continue
            try:
                function = getattr(self.inner, name)
            except BackendError:
                continue  # An operation that the inner backend lacks is missing here too.
            if name in ELEMENTWISE:
                operation = _elementwise(self, function, ELEMENTWISE[name])
            elif name in _REDUCTIONS:
                operation = _reduction(self, function)
            else:
                operation = _whole(self, function)
            setattr(self, name, operation)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sharded, (self.inner,)

    def __repr__(self) -> str:
        return f"Sharded({self.inner!r})"

    def spec(self) -> tuple[str, dict[str, Any]]:
        return "sharded", {}

    @property
    def has_slices(self) -> bool:
        return True

    # --- slices and wholes

    def gathered(self, x: Slice) -> Array:
        """The whole array, in every process."""
        if x.whole is not None:
            return x.whole
        finish, x.pending = x.pending, None
        parts = self.inner.gather_slices(x.value, x.cut.ranks) if finish is None else finish()
        axis = x.cut.axis
        if axis:
            rank = len(x.shape)
            parts = self.inner.permute_dims(parts, (*range(1, axis + 1), 0, *range(axis + 1, rank + 1)))
        whole = self.inner.reshape(parts, x.shape)
        return self.keep_whole(x, whole) if x.cut.stays_whole else whole

    def keep_whole(self, x: Slice, whole: Array) -> Array:
        """Keep the whole array. From now on the slice is a view of it if possible, which saves memory."""
        x.whole = whole
        if not x.cut.axis and not self.inner.is_traced(whole):
            x.value = self.inner.index(whole, x.cut.index(x.shape))
        return whole

    def make_ready(self, x: Array) -> None:
        if type(x) is Slice and x.cut.stays_whole and not x.is_whole and not self.inner.is_traced(x.value):
            x.pending = self.inner.gathering_slices(x.value, x.cut.ranks)

    def whole(self, x: Array) -> Array:
        """An array of the inner backend: x itself, or gathered."""
        return self.gathered(x) if type(x) is Slice else x

    def part(self, x: Array, cut: Cut) -> Array:
        """The slice of a whole array that this process holds, as a copy."""
        # Indexing may return a view, which would keep the whole array in memory.
        return self.inner.duplicate(self.inner.index(x, cut.index(self.inner.shape(x))))

    def sliced(self, x: Array, cut: Cut | None) -> Array:
        """x with this cut; None is a whole array."""
        if type(x) is Slice:
            if x.cut == cut:
                return x
            x = self.gathered(x)
        return x if cut is None else Slice(self.part(x, cut), cut, self.inner.shape(x))

    def scattered(self, g: Array, cut: Cut) -> Array | Later:
        """The gradient of a slice, from the gradients of the whole array that the processes computed on their rows."""
        if type(g) is Slice or row_group() is None:  # without own rows, all processes compute the same gradient
            return self.sliced(g, cut)
        shape, axis = self.inner.shape(g), cut.axis
        step = shape[axis] // cut.parts
        stacked = self.inner.reshape(g, (*shape[:axis], cut.parts, step, *shape[axis + 1 :]))
        if axis:
            order = (axis, *range(axis), *range(axis + 1, len(shape) + 1))
            stacked = self.inner.permute_dims(stacked, order)
        wait = self.inner.scattering_mean(stacked, cut.ranks)
        other_axes = cut.grid.others(cut.names)

        def finish() -> Slice:
            value = wait()
            if other_axes:
                value = self.inner.float_mean(self.inner.gather_slices(value, cut.grid.ranks(other_axes)), (0,), False)
            return Slice(value, cut, shape)

        return Later(finish, math.prod(shape))

    def scattered_like(self, g: Array, x: Array) -> Later:
        gradient = self.scattered(g, x.cut) if type(x) is Slice else g
        return gradient if type(gradient) is Later else Later(lambda: gradient)

    def settle_of(self, x: Array) -> Callable[[Array], Array] | None:
        if type(x) is not Slice or x.cut.grid.stage == 1:
            return None
        return partial(self._settle, x.cut)

    def _settle(self, cut: Cut, g: Array) -> Array | Later:
        return g if are_gradients_local() else self.scattered(g, cut)

    def is_slice(self, x: Array) -> bool:
        return type(x) is Slice

    # --- operations on slices

    def permute_dims(self, x: Array, axes: tuple[int, ...]) -> Array:
        if type(x) is not Slice or x.is_whole:
            return self.inner.permute_dims(self.whole(x), axes)
        cut = x.cut.along(axes.index(x.cut.axis))
        return Slice(self.inner.permute_dims(x.value, axes), cut, tuple([x.shape[axis] for axis in axes]))

    def reshape(self, x: Array, shape: Shape) -> Array:
        if type(x) is not Slice or x.is_whole:
            return self.inner.reshape(self.whole(x), shape)
        before = math.prod(x.shape[: x.cut.axis])
        for axis, size in enumerate(shape):
            if math.prod(shape[:axis]) == before and size and size % x.cut.parts == 0:
                # In both shapes, a slice has consecutive elements of each row before the axis.
                local = (*shape[:axis], size // x.cut.parts, *shape[axis + 1 :])
                return Slice(self.inner.reshape(x.value, local), x.cut.along(axis), tuple(shape))
        return self.inner.reshape(self.gathered(x), shape)

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamScalars) -> tuple[Array, Array, Array]:
        return _on_slices(self, self.inner.adam_update, (x, g, m, v, numbers))

    # --- devices

    def device_of(self, x: Array) -> Device:
        if type(x) is not Slice:
            return self.inner.device_of(x).on(self)
        device = self.inner.device_of(x.value)
        return Device(self, device.name, x.cut.sharding)

    def mesh_device(self, sharding: Sharding) -> Device:
        return Device(self, self.inner.device().name, sharding)

    def other_device_names(self, device: Device) -> str:
        return "" if device.sharding is None or device.sharding.is_replicated else ", in slices"

    def to_device(self, x: Array, device: Device) -> Array:
        return self.cast(x, self, device)

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        if not isinstance(target, Sharded):
            return _move(self.inner, self._check_whole(x), target, device)
        inner_device = device.on(target.inner)
        cut = cut_by(device.sharding, self.shape(x))
        x = self.sliced(x, cut)
        if cut is None:
            return _move(self.inner, x, target.inner, inner_device)
        return self._each_and_whole(lambda value: _move(self.inner, value, target.inner, inner_device), x)

    def with_float(self, element: FloatElement) -> Backend:
        return Sharded(self.inner.with_float(element))

    def replicate_like(self, x: Array, like: Array) -> Array:
        return self.sliced(x, like.cut) if type(like) is Slice and self.shape(x) == like.shape else x

    def mesh_of(self, x: Array) -> Any:
        return x.cut.grid if type(x) is Slice else None

    def prefers_fused_matmul(self, joined: Sequence[Array]) -> bool:
        return False

    def duplicate(self, x: Array) -> Array:
        return self._each(self.inner.duplicate, x)

    def detach(self, x: Array) -> Array:
        return self._each_and_whole(self.inner.detach, x)

    def rounded(self, x: Array) -> Array:
        return self._each(self.inner.rounded, x)

    def barrier(self, x: Array, after: Array) -> Array:
        return self._each(lambda value: self.inner.barrier(value, self.below(after)), x)

    def _each(self, function: Callable[[Array], Array], x: Array) -> Array:
        return Slice(function(x.value), x.cut, x.shape) if type(x) is Slice else function(x)

    def _each_and_whole(self, function: Callable[[Array], Array], x: Array) -> Array:
        """As `_each`; if the whole array is kept, apply the function to it too, so that it is not gathered again."""
        if type(x) is not Slice or not x.is_whole:
            return self._each(function, x)
        whole = function(self.gathered(x))
        result = Slice(
            self.part(whole, x.cut) if x.cut.axis else self.inner.index(whole, x.cut.index(x.shape)), x.cut, x.shape
        )
        result.whole = whole
        return result

    # --- values

    def strip(self, x: Array) -> Array:
        """A slice stays a slice: its value alone would be another array."""
        return x

    def is_here(self, x: Array) -> bool:
        return type(x) is not Slice

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return self.inner.to_host(self._check_whole(x))

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        return self.inner.to_dlpack(self._check_whole(x), **options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        return self.inner.dlpack_device(self._check_whole(x))

    def _check_whole(self, x: Array) -> Array:
        if type(x) is Slice:
            raise DistributedError(
                f"the values of an array of shape {x.shape} are in {x.cut.parts} processes, and process "
                f"{processes().rank} has only a slice of them; px.distributed.gather(...), called by all processes, "
                "gives every process the whole array"
            )
        return x

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        cut = cut_by(device.sharding, array.shape)
        if cut is None:
            return self.inner.from_host(array, kind, device.on(self.inner))
        local = np.array(array[cut.index(array.shape)])
        return Slice(self.inner.from_host(local, kind, device.on(self.inner)), cut, array.shape)

    def shards(self, x: Array) -> list[Shard]:
        if type(x) is not Slice:
            return self.inner.shards(x)
        other_axes = x.cut.grid.others(x.cut.names)
        if other_axes and x.cut.grid.place(other_axes):
            return []
        return [Shard(x.cut.index(x.shape), partial(self.inner.to_host, x.value))]

    def from_shards(
        self, shape: Shape, kind: type[Kind], device: Device, read: Callable[[Index], np.ndarray[Any, Any]]
    ) -> Array:
        cut = cut_by(device.sharding, shape)
        inner_device = device.on(self.inner)
        if cut is None:
            return self.inner.from_shards(shape, kind, inner_device, read)
        return Slice(self.inner.from_host(np.array(read(cut.index(shape))), kind, inner_device), cut, tuple(shape))

    # --- collectives, on whole arrays

    def _sendable(self, x: Array) -> Array:
        return self.whole(x)

    # --- functions of other libraries

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        return self.inner.on_host(kinds, fn, *[self.whole(x) for x in arrays])

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        return self.inner.call_native(fn, *[self.whole(x) for x in arrays])

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        return self.inner.native_vjp(fn, [self.whole(x) for x in arrays], [self.whole(g) for g in gs], needed)

    # --- steps of many tensors, on the slices as they are in memory

    def new_like(self, x: Array) -> Array:
        return self._each(self.inner.new_like, x)

    def is_plain(self, x: Array) -> bool:
        return self.inner.is_plain(self.below(x))

    def are_alike(self, x: Array, y: Array) -> bool:
        alike = (x.cut == y.cut) if type(x) is Slice and type(y) is Slice else type(x) is type(y)
        return alike and self.inner.are_alike(self.below(x), self.below(y))

    def flat(self, x: Array) -> Array:
        return self.inner.flat(self.below(x))

    def kernel(self, name: str, numbers: NamedTuple) -> Callable[[Sequence[Piece]], object] | None:
        return self.inner.kernel(name, numbers)

    def in_pieces(self, work: Callable[[list[Array]], list[Array]], pieces: Sequence[Piece]) -> None:
        self.inner.in_pieces(work, pieces)

    def memory_like(self, x: Array, shape: Shape, device: Device) -> ReusedBuffer | None:
        cut, inner_device = cut_by(device.sharding, shape), device.on(self.inner)
        if cut is None:
            return self.inner.memory_like(x, shape, inner_device)
        memory = self.inner.memory_like(x, cut.own(shape), inner_device)
        return None if memory is None else SliceBuffer(memory, cut, shape)

    # --- programs

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        return compiled(self, fn, release)

    def compilations(self, run: Callable[[Any, Any], Any]) -> int | None:
        return None

    def analyze(self, run: Callable[[Any, Any], Any], donated: Any, kept: Any) -> Analysis | None:
        return None

    # --- no tape below

    def without_tape(self) -> Backend | None:
        return None


def sharded(backend: Backend) -> Backend:
    """The backend, with its tapes, for arrays in slices; the backend itself if its engine partitions arrays."""
    from phlox.backend.registry import load_decorator

    if isinstance(backend, Sharded) or backend.partitions:
        return backend
    if backend.inner is None:
        return Sharded(backend)
    assert isinstance(backend, Decorator)
    name, options = backend.spec()
    return load_decorator(name)(sharded(backend.inner), **options)


def _move(backend: Backend, x: Array, target: Backend, device: Device) -> Array:
    return backend.to_device(x, device) if target is backend else backend.cast(x, target, device)


# --- operations


def _whole(S: Sharded, function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that needs whole arrays; if a device is among the arguments, its sharding cuts the result."""

    def operation(*arguments: Any) -> Any:
        plain = True
        for x in arguments:
            kind = cast("type[Any]", type(x))
            if kind is Slice or kind is Device or kind is tuple or kind is list:
                plain = False
                break
        if plain:
            return function(*arguments)
        wholes: dict[int, tuple[Array, Slice]] = {}
        device: Device | None = None

        def to_inner(x: Any) -> Any:
            nonlocal device
            kind = cast("type[Any]", type(x))
            if kind is Slice:
                entry = wholes.get(id(x))
                if entry is None:
                    entry = wholes[id(x)] = S.gathered(x), x
                return entry[0]
            if kind is Device:
                device = x
                return Device(S.inner, x.name, None, x.committed)
            if kind is tuple or kind is list:
                parts = [to_inner(part) for part in x]
                return tuple(parts) if kind is tuple else parts
            return x

        result = function(*[to_inner(x) for x in arguments])
        if wholes and type(result) is tuple:
            # The derivative keeps the slice instead of the whole array, and gathers it again.
            result = _restore_slices({id(whole): x for whole, x in wholes.values()}, result)
        if device is not None and device.sharding is not None and hasattr(result, "shape"):
            return S.sliced(result, cut_by(device.sharding, S.shape(result)))
        return result

    return operation


def _restore_slices(slices: dict[int, Slice], result: Any) -> Any:
    if type(result) is tuple:
        return tuple([_restore_slices(slices, part) for part in cast("tuple[Any, ...]", result)])
    return slices.get(id(result), result)


def _elementwise(S: Sharded, function: Callable[..., Any], operands: int) -> Callable[..., Any]:
    def operation(*arguments: Any) -> Any:
        for x in arguments[:operands]:
            if type(x) is Slice:
                return _on_slices(S, function, arguments)
        return function(*arguments)

    return operation


def _on_slices(S: Sharded, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """An elementwise operation on the slices of its operands; the result is cut as the first operand in slices.

    Whole arrays may differ between processes, because each process computes on its own rows. Then the slices are
    gathered, unless the code declares that whole arrays are the same everywhere, as in an optimizer.
    """
    like = next((x for x in arguments if type(x) is Slice), None)
    if like is None:
        return function(*arguments)
    arrays = [x for x in arguments if hasattr(x, "shape")]
    if not is_same_everywhere() and any(type(x) is not Slice or x.is_whole for x in arrays):
        return function(*[S.whole(x) for x in arguments])
    shape = tuple(np.broadcast_shapes(*[tuple(S.shape(x)) for x in arrays]))
    from_end = len(like.shape) - like.cut.axis
    cut = like.cut.along(len(shape) - from_end)

    def local(x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        sizes = S.shape(x)
        if len(sizes) < from_end or sizes[-from_end] == 1:
            return S.whole(x)
        return S.sliced(x, cut.along(len(sizes) - from_end)).value

    result = function(*[local(x) for x in arguments])
    if type(result) is tuple:
        return tuple([Slice(x, cut, shape) for x in cast("tuple[Any, ...]", result)])
    return Slice(result, cut, shape)


def _reduction(S: Sharded, function: Callable[..., Any]) -> Callable[..., Any]:
    inner = S.inner

    def operation(x: Array, axes: tuple[int, ...], keepdims: bool, *options: Any) -> Array:
        if type(x) is not Slice or (x.is_whole and not is_same_everywhere()):
            return function(S.whole(x), axes, keepdims, *options)
        cut = x.cut
        result = function(x.value, axes, keepdims, *options)
        if cut.axis in axes:
            return function(inner.gather_slices(result, cut.ranks), (0,), False, *options)
        axis = cut.axis if keepdims else cut.axis - sum(reduced < cut.axis for reduced in axes)
        cut = cut.along(axis)
        return Slice(result, cut, cut.whole(inner.shape(result)))

    return operation
