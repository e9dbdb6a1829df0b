"""JAX's arrays over several devices: Phlox's shardings, and creating and moving sharded arrays."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.jax import compat
from phlox.backend.sharding import AxisNames, Index, Sharding
from phlox.errors import DistributedError, ShardingWarning
from phlox.host.text import size

_WORTH_TELLING = 1 << 20
"""Gathering a sharded array of at least so many bytes on one device gives a warning."""


# --- devices


def local_devices(platform: str) -> list[Any]:
    """The devices of this process on a platform (`"cpu"`, `"gpu"`, `"tpu"`); an empty list without such a platform."""
    try:
        return jax.local_devices(backend=platform)
    except RuntimeError:
        return []


@lru_cache(4096)
def device_name(device: Any) -> str:
    """Phlox's name of a device; a single CPU is called only by its platform."""
    alone = device.platform == "cpu" and [*local_devices("cpu")] == [device]
    return device.platform if alone else f"{device.platform}:{device.id}"


def first_device(mesh: Any) -> str:
    """The name of a mesh: the name of its first device in this process."""
    return device_name(min(mesh.local_devices, key=lambda device: device.id))


# --- shardings


def from_jax(sharding: Any) -> Sharding:
    """Phlox's sharding for one of JAX. Without named axes it becomes replicated, on a mesh of one axis."""
    if isinstance(sharding, NamedSharding):
        return Sharding(sharding.mesh, axes_of(sharding.spec))
    return Sharding(jax.sharding.Mesh(sorted(sharding.device_set, key=lambda device: device.id), ("devices",)))


def axes_of(spec: PartitionSpec) -> tuple[AxisNames, ...]:
    """A spec of JAX in its shortest form: one name instead of a tuple of one, and no whole axes at the end."""
    axes: list[AxisNames] = []
    for axis in spec:
        names = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
        axes.append(cast("AxisNames", names if len(names) > 1 else names[0] if names else None))
    while axes and axes[-1] is None:
        axes.pop()
    return tuple(axes)


@lru_cache(4096)
def fitted(sharding: Sharding, shape: Shape) -> NamedSharding:
    """JAX's sharding for an array of this shape: the given one if its rank and sizes allow it, else replicated."""
    mesh, spec = sharding.mesh, sharding.spec
    fits = len(spec) <= len(shape) and all(
        size % parts(mesh, axes) == 0 for size, axes in zip(shape, spec, strict=False)
    )
    return NamedSharding(mesh, PartitionSpec(*spec) if fits else PartitionSpec())


def parts(mesh: Any, axes: AxisNames) -> int:
    """Into how many parts an axis is cut."""
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(mesh.shape[name] for name in names)


# --- arrays


def shard(x: Array, sharding: Sharding) -> Array:
    """The array on the devices of a mesh; in a program, a hint to the partitioner."""
    target = fitted(sharding, x.shape)
    if isinstance(x, Tracer):
        return jax.lax.with_sharding_constraint(x, target)
    return x if x.sharding == target else put(x, target)


def put(x: Array, target: NamedSharding) -> Array:
    """The array with this sharding. A local array is assumed to be equal in all processes, without a check."""
    if target.is_fully_addressable and x.is_fully_addressable:
        return jax.device_put(x, target)
    if x.is_fully_addressable:  # a local array, the same in all processes
        host = np.asarray(x)
        return from_parts(x.shape, target, lambda index: host[index], x.dtype)
    return _resharded(target)(x)


@lru_cache(256)
def _resharded(target: NamedSharding) -> Callable[[Array], Array]:
    return jax.jit(lambda x: x, out_shardings=target)


@lru_cache(4096)
def in_shards(fn: Callable[..., Any], static: tuple[Any, ...], target: NamedSharding) -> Callable[..., Any]:
    """`fn(first, *static, *others)` as a program in which each device makes its part of the result."""
    return jax.jit(lambda first, *others: fn(first, *static, *others), out_shardings=target)


def from_parts(shape: Shape, target: NamedSharding, part: Callable[[Any], Any], dtype: Any) -> Array:
    """An array whose shards are the host arrays `part(index)`; `part` is called once for each index."""
    values: dict[Any, Any] = {}

    def once(index: Any) -> Any:
        key = tuple((axis_slice.start, axis_slice.stop) for axis_slice in index)
        if key not in values:
            values[key] = part(index)
        return values[key]

    return jax.make_array_from_callback(shape, target, once, dtype=dtype)


def whole_slices(index: Any, shape: Shape) -> Index:
    """An index of JAX with both ends of each slice."""
    return tuple([slice(*axis_slice.indices(size)[:2]) for axis_slice, size in zip(index, shape, strict=True)])


def local_value(x: Array) -> np.ndarray[Any, Any]:
    """The values of an array of several processes; `DistributedError` if this one has only a part of them."""
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    raise DistributedError(
        f"this array of shape {x.shape} is in shards of {jax.process_count()} processes, and process "
        f"{jax.process_index()} has only some of them; px.distributed.gather(...) brings it whole to every process, "
        "and px.distributed.save(...) writes it in shards"
    )


def check_gathered(x: Array, device: Device) -> None:
    """Warn if a large sharded array is gathered on one device; raise if this process has only a part of it."""
    if not isinstance(x, jax.Array) or len(x.devices()) == 1:
        return
    if not x.is_fully_addressable and not x.is_fully_replicated:
        raise DistributedError(
            f"an array of shape {x.shape} in shards of {jax.process_count()} processes cannot be moved to "
            f"{device.name!r} of process {jax.process_index()} alone; px.distributed.gather(...) brings it whole to "
            "every process"
        )
    if x.nbytes >= _WORTH_TELLING and not x.is_fully_replicated:
        warnings.warn(
            f"an array of shape {x.shape}, {size(x.nbytes)} in shards on {len(x.devices())} devices, is "
            f"gathered on {device.name!r}",
            ShardingWarning,
            stacklevel=2,
        )


# --- the arguments of a program while it is traced

_arguments: ContextVar[tuple[Any, Any] | None] = ContextVar("phlox_jax_arguments", default=None)
_arguments_by_id: ContextVar[dict[int, _Argument]] = ContextVar("phlox_jax_shardings")


class _Argument(NamedTuple):
    """An argument of the program that is being traced."""

    tracer: Any  # kept alive, so that no other object gets its id
    sharding: NamedSharding | None
    position: int
    """Its position among all arguments."""
    layout_positions: set[int]
    """The positions of the arguments whose layouts the program depends on; one set for all arguments."""


class LayoutPrograms:
    """A compiled function; while it is traced, `argument_sharding` and `program_mesh` know its arguments.

    JAX traces a function once, whatever the layouts of its arguments. But a program that returns an array sharded like
    an argument depends on that argument's layout: so there is a trace for each layout of such arguments.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], compile: Callable[[Any], Any]) -> None:
        self._fn, self._compile = fn, compile
        self._layout_positions: set[int] = set()
        self._first = self._traced()
        self._runs: dict[Hashable, Any] = {}
        self._last: tuple[list[Any], Any] | None = None

    def __call__(self, donated: Any, kept: Any) -> Any:
        return self._with_arguments(donated, kept, lambda run: run(donated, kept))

    def lower(self, donated: Any, kept: Any) -> Any:
        return self._with_arguments(donated, kept, lambda run: run.lower(donated, kept))

    def compilations(self) -> int | None:
        """The number of kinds of arguments for which JAX has compiled the function; None if JAX does not say."""
        runs = {id(run): run for run in (self._first, *self._runs.values())}
        counts = [compat.programs_of(run) for run in runs.values()]
        return None if None in counts else sum(cast("list[int]", counts))

    def _with_arguments(self, donated: Any, kept: Any, use: Callable[[Any], Any]) -> Any:
        token = _arguments.set((donated, kept))
        try:
            if self._layout_positions:
                return use(self._program_for(self._layout(donated, kept)))
            result = use(self._first)
            if self._layout_positions:  # it has been traced
                self._runs[_key(self._layout(donated, kept))] = self._first
            return result
        finally:
            _arguments.reset(token)

    def _layout(self, donated: Any, kept: Any) -> list[Any]:
        leaves = jax.tree.leaves((donated, kept))
        return [getattr(leaves[i], "sharding", None) for i in self._layout_positions if i < len(leaves)]

    def _program_for(self, layout: list[Any]) -> Any:
        last = self._last
        if last is not None and last[0] == layout:  # in a loop, mostly the same objects
            return last[1]
        key = _key(layout)
        run = self._runs.get(key) or self._runs.setdefault(key, self._traced())
        self._last = layout, run
        return run

    def _traced(self) -> Any:
        # A new function each time, since JAX caches traces by function.
        def traced(donated: Any, kept: Any) -> Any:
            arguments = _arguments.get()
            if arguments is None:
                return self._fn(donated, kept)
            with _registered(jax.tree.leaves((donated, kept)), jax.tree.leaves(arguments), self._layout_positions):
                return self._fn(donated, kept)

        return self._compile(traced)


def _key(layout: list[Any]) -> Hashable:
    return tuple([(x.mesh, axes_of(x.spec)) if isinstance(x, NamedSharding) else x for x in layout])


@contextmanager
def _registered(tracers: list[Any], arrays: list[Any], shared: set[int]) -> Generator[None]:
    noted: dict[int, _Argument] = {}
    for index, (tracer, x) in enumerate(zip(tracers, arrays, strict=True)):
        sharding = x.sharding if isinstance(x, jax.Array) else None
        noted[id(tracer)] = _Argument(tracer, sharding if isinstance(sharding, NamedSharding) else None, index, shared)
    token = _arguments_by_id.set(noted)
    try:
        yield
    finally:
        _arguments_by_id.reset(token)


def argument_sharding(x: Any) -> NamedSharding | None:
    """The sharding of the array passed for this tracer; None if the tracer is no argument of the program."""
    argument = _arguments_by_id.get({}).get(id(x))
    return None if argument is None else argument.sharding


def program_mesh() -> Any:
    """The mesh of the arguments of the program being traced; None if they are on one device."""
    shardings = (argument.sharding for argument in _arguments_by_id.get({}).values())
    return next((sharding.mesh for sharding in shardings if sharding is not None and sharding.mesh.size > 1), None)


def argument_spec(x: Any) -> tuple[AxisNames, ...] | None:
    """The spec of the array passed for this tracer; None if the tracer is no argument of the program."""
    sharding = argument_sharding(x)
    return None if sharding is None else axes_of(sharding.spec)


def constrain_like(x: Array, like: Array) -> Array:
    """Constrain an array of a program to the sharding of the program's argument `like`, if their shapes are equal."""
    argument = _arguments_by_id.get({}).get(id(like))
    if argument is None or not isinstance(x, Tracer) or x.shape != like.shape:
        return x
    argument.layout_positions.add(argument.position)
    return x if argument.sharding is None else jax.lax.with_sharding_constraint(x, argument.sharding)


def is_shared() -> bool:
    """Does the processor appear as several devices, as when code for many devices is tried out on one machine?

    The devices share its threads, and XLA's loops for a product with a transposed left operand wait for threads. Then
    it pays to transpose the operand first, however small it is, and use XLA's better kernels.
    """
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1
