"""JAX's arrays over several devices: shardings as Phlox writes them, arrays made and moved in shards."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.sharding import AxisNames, Index, Sharding
from phlox.errors import DistributedError, ShardingWarning

_WORTH_TELLING = 1 << 20
"""Bytes from which gathering an array in shards on one device gives a warning."""


# --- devices


def local_devices(platform: str) -> list[Any]:
    """The devices of this process on a platform (`"cpu"`, `"gpu"`, `"tpu"`); none where there is no such platform."""
    try:
        return jax.local_devices(backend=platform)
    except RuntimeError:
        return []


@lru_cache(4096)
def device_name(device: Any) -> str:
    """What Phlox calls a device: the processor is called by its platform alone where it is the only one."""
    alone = device.platform == "cpu" and [*local_devices("cpu")] == [device]
    return device.platform if alone else f"{device.platform}:{device.id}"


def first_device(mesh: Any) -> str:
    """What a mesh is called: by its first device that is here."""
    return device_name(min(mesh.local_devices, key=lambda one: one.id))


# --- shardings


def from_jax(known: Any) -> Sharding:
    """Phlox's sharding for one of JAX. One that names no axes becomes replicated, on a mesh of its devices in a row."""
    if isinstance(known, NamedSharding):
        return Sharding(known.mesh, axes_of(known.spec))
    return Sharding(jax.sharding.Mesh(sorted(known.device_set, key=lambda one: one.id), ("devices",)))


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
    """JAX's sharding for an array of this shape: as said where its rank and sizes allow it, else replicated."""
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
    """The array with this sharding. A local array is taken to be the same in all processes, without a comparison."""
    if target.is_fully_addressable and x.is_fully_addressable:
        return jax.device_put(x, target)
    if x.is_fully_addressable:  # of this process alone, and the same in all
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
    """An array of which each device is given its part of the host's values; equal parts are asked for once."""
    made: dict[Any, Any] = {}

    def once(index: Any) -> Any:
        key = tuple((one.start, one.stop) for one in index)
        if key not in made:
            made[key] = part(index)
        return made[key]

    return jax.make_array_from_callback(shape, target, once, dtype=dtype)


def whole_slices(index: Any, shape: Shape) -> Index:
    """An index of JAX with both ends of each slice."""
    return tuple([slice(*one.indices(size)[:2]) for one, size in zip(index, shape, strict=True)])


def local_value(x: Array) -> np.ndarray[Any, Any]:
    """The values of an array of several processes, if each has them all."""
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    raise DistributedError(
        f"this array of shape {x.shape} is in shards of {jax.process_count()} processes, and process "
        f"{jax.process_index()} has only some of them; px.distributed.gather(...) brings it whole to every process, "
        "and px.distributed.save(...) writes it in shards"
    )


def check_gathered(x: Array, device: Device) -> None:
    """Warn that a large array in shards is gathered on one device; raise where this process has only a part of it."""
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
            f"an array of shape {x.shape}, {x.nbytes / 2**20:.0f} MiB in shards on {len(x.devices())} devices, is "
            f"gathered on {device.name!r}",
            ShardingWarning,
            stacklevel=2,
        )


# --- what is known of a program's arguments while it is traced

_arguments: ContextVar[tuple[Any, Any] | None] = ContextVar("phlox_jax_arguments", default=None)
_known: ContextVar[dict[int, tuple[Any, NamedSharding]]] = ContextVar("phlox_jax_shardings")


def knows_arguments(fn: Callable[[Any, Any], Any], compile: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Compile a function so that `argument_sharding` and `program_mesh` know its arguments while it is traced."""

    def traced(donated: Any, kept: Any) -> Any:
        given = _arguments.get()
        if given is None:
            return fn(donated, kept)
        with _known_shardings(jax.tree.leaves((donated, kept)), jax.tree.leaves(given)):
            return fn(donated, kept)

    run = compile(traced)

    def noting(call: Callable[[Any, Any], Any]) -> Any:
        def noted(donated: Any, kept: Any) -> Any:
            token = _arguments.set((donated, kept))
            try:
                return call(donated, kept)
            finally:
                _arguments.reset(token)

        return noted

    made = noting(run)  # with what is asked for of functions that JAX has compiled
    made.lower, made.jitted = noting(run.lower), run
    return made


@contextmanager
def _known_shardings(tracers: list[Any], given: list[Any]) -> Generator[None]:
    # With the tracers, whose ids are then no others'.
    found = {
        id(tracer): (tracer, x.sharding)
        for tracer, x in zip(tracers, given, strict=True)
        if isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding)
    }
    token = _known.set(found)
    try:
        yield
    finally:
        _known.reset(token)


def argument_sharding(x: Any) -> NamedSharding | None:
    """The sharding of the array that was given for this tracer; None where it is no argument of the program."""
    known = _known.get({}).get(id(x))
    return None if known is None else known[1]


def program_mesh() -> Any:
    """The mesh that the program under way runs on: that of its arguments. None where they are on one device."""
    return next((known.mesh for _, known in _known.get({}).values() if known.mesh.size > 1), None)


def argument_spec(x: Any) -> tuple[AxisNames, ...] | None:
    """How the array is cut that was given for this tracer; None where it is no argument of the program."""
    known = argument_sharding(x)
    return None if known is None else axes_of(known.spec)


def kept(x: Array, like: Array) -> Array:
    """Constrain an array of a program to the sharding of its argument `like`, where their shapes agree."""
    known = argument_sharding(like)
    if known is None or not isinstance(x, Tracer) or x.shape != like.shape:
        return x
    return jax.lax.with_sharding_constraint(x, known)
