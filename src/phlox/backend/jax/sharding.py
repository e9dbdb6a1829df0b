"""JAX's arrays over several devices: shardings as Phlox writes them, arrays made and moved in shards."""

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
    """Phlox's name of a device; a single CPU is called only by its platform."""
    alone = device.platform == "cpu" and [*local_devices("cpu")] == [device]
    return device.platform if alone else f"{device.platform}:{device.id}"


def first_device(mesh: Any) -> str:
    """The name of a mesh: that of its first device in this process."""
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
            f"an array of shape {x.shape}, {size(x.nbytes)} in shards on {len(x.devices())} devices, is "
            f"gathered on {device.name!r}",
            ShardingWarning,
            stacklevel=2,
        )


# --- what is known of a program's arguments while it is traced

_arguments: ContextVar[tuple[Any, Any] | None] = ContextVar("phlox_jax_arguments", default=None)
_known: ContextVar[dict[int, _Argument]] = ContextVar("phlox_jax_shardings")


class _Argument(NamedTuple):
    """An argument of the program that is being traced."""

    tracer: Any  # so that its id is no other's
    sharding: NamedSharding | None
    place: int
    """Among all arguments,"""
    places: set[int]
    """and those whose layouts the program has kept."""


class LayoutPrograms:
    """A compiled function, of which `argument_sharding` and `program_mesh` know the arguments while it is traced.

    JAX traces once, however arrays lie on devices. A program that gives back what it was given, cut as it was, holds
    that layout: so there is a trace for each layout of these arguments.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], compile: Callable[[Any], Any]) -> None:
        self._fn, self._compile = fn, compile
        self._places: set[int] = set()
        self._first = self._traced()
        self._runs: dict[Hashable, Any] = {}
        self._last: tuple[list[Any], Any] | None = None

    def __call__(self, donated: Any, kept: Any) -> Any:
        return self._with(donated, kept, lambda run: run(donated, kept))

    def lower(self, donated: Any, kept: Any) -> Any:
        return self._with(donated, kept, lambda run: run.lower(donated, kept))

    def compilations(self) -> int | None:
        """For how many kinds of arguments JAX has prepared the function; None where that cannot be told."""
        runs = {id(run): run for run in (self._first, *self._runs.values())}
        found = [compat.programs_of(run) for run in runs.values()]
        return None if None in found else sum(cast("list[int]", found))

    def _with(self, donated: Any, kept: Any, use: Callable[[Any], Any]) -> Any:
        token = _arguments.set((donated, kept))
        try:
            if self._places:
                return use(self._run(self._layout(donated, kept)))
            result = use(self._first)
            if self._places:  # it has been traced
                self._runs[_key(self._layout(donated, kept))] = self._first
            return result
        finally:
            _arguments.reset(token)

    def _layout(self, donated: Any, kept: Any) -> list[Any]:
        leaves = jax.tree.leaves((donated, kept))
        return [getattr(leaves[place], "sharding", None) for place in self._places if place < len(leaves)]

    def _run(self, layout: list[Any]) -> Any:
        last = self._last
        if last is not None and last[0] == layout:  # in a loop most are the same objects
            return last[1]
        key = _key(layout)
        run = self._runs.get(key) or self._runs.setdefault(key, self._traced())
        self._last = layout, run
        return run

    def _traced(self) -> Any:
        # A function of its own, for JAX remembers the traces of each.
        def traced(donated: Any, kept: Any) -> Any:
            given = _arguments.get()
            if given is None:
                return self._fn(donated, kept)
            with _known_shardings(jax.tree.leaves((donated, kept)), jax.tree.leaves(given), self._places):
                return self._fn(donated, kept)

        return self._compile(traced)


def _key(layout: list[Any]) -> Hashable:
    return tuple([(x.mesh, axes_of(x.spec)) if isinstance(x, NamedSharding) else x for x in layout])


@contextmanager
def _known_shardings(tracers: list[Any], given: list[Any], places: set[int]) -> Generator[None]:
    found: dict[int, _Argument] = {}
    for place, (tracer, x) in enumerate(zip(tracers, given, strict=True)):
        sharding = x.sharding if isinstance(x, jax.Array) else None
        found[id(tracer)] = _Argument(tracer, sharding if isinstance(sharding, NamedSharding) else None, place, places)
    token = _known.set(found)
    try:
        yield
    finally:
        _known.reset(token)


def argument_sharding(x: Any) -> NamedSharding | None:
    """The sharding of the array that was given for this tracer; None where it is no argument of the program."""
    known = _known.get({}).get(id(x))
    return None if known is None else known.sharding


def program_mesh() -> Any:
    """The mesh that the program under way runs on: that of its arguments. None where they are on one device."""
    shardings = (known.sharding for known in _known.get({}).values())
    return next((known.mesh for known in shardings if known is not None and known.mesh.size > 1), None)


def argument_spec(x: Any) -> tuple[AxisNames, ...] | None:
    """How the array is cut that was given for this tracer; None where it is no argument of the program."""
    known = argument_sharding(x)
    return None if known is None else axes_of(known.spec)


def kept(x: Array, like: Array) -> Array:
    """Constrain an array of a program to the sharding of its argument `like`, where their shapes agree."""
    known = _known.get({}).get(id(like))
    if known is None or not isinstance(x, Tracer) or x.shape != like.shape:
        return x
    known.places.add(known.place)
    return x if known.sharding is None else jax.lax.with_sharding_constraint(x, known.sharding)


def is_shared() -> bool:
    """Does the processor appear as several devices, as when code for many devices is tried out on one machine?

    They share its threads, for which XLA's loops for a product with a transposed left operand wait. Then it pays to
    transpose the operand first, however small it is, and use XLA's better kernels.
    """
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1
