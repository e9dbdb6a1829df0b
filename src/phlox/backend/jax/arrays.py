"""JAX arrays as arrays of the contract: devices, element types, moving to and from the host."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend.contract import Backend, EngineBackend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array
from phlox.backend.device import Device
from phlox.backend.jax import ops, x64
from phlox.backend.jax.cpu import is_shared
from phlox.backend.kind import Int, Kind, kind_of_dtype
from phlox.backend.sharding import AxisNames, Sharding
from phlox.errors import DeviceError
from phlox.host.dtypes import HOST_DTYPES
from phlox.host.mmap import taken_over

ELEMENTS: dict[str, Any] = {name: jnp.dtype(dtype) for name, dtype in HOST_DTYPES.items()}
_LARGE = 1 << 20
"""Bytes of a host array that is worth another way to the device."""
_number_of = operator.attrgetter("id")


class Arrays(EngineBackend):
    """See `phlox.backend.contract.arrays`."""

    jax_float: Any
    jax_int: Any

    def device(self, name: str | None = None) -> Device:
        if name is None:
            return Device(self, default_name())
        platform, _, number = name.partition(":")
        try:
            devices = jax.devices(platform)
        except RuntimeError:
            devices = []
        if not (number or "0").isdigit() or int(number or "0") >= len(devices):
            have = ", ".join(_device_name(device) for device in jax.devices())
            raise DeviceError(f"{self!r} has no device {name!r} here (it has {have})")
        return Device(self, f"{platform}:{number or 0}" if len(devices) > 1 or platform != "cpu" else platform)

    @staticmethod
    def native_device(device: Device) -> Any:
        """JAX's own object for a device."""
        platform, _, number = device.name.partition(":")
        return jax.devices(platform)[int(number or "0")]

    def device_of(self, x: Array) -> Device:
        if isinstance(x, Tracer):
            return self.device()
        devices = x.devices()
        if len(devices) == 1:
            return Device(self, _device_name(next(iter(devices))))
        # Of an array in shards, the first stands for all.
        known = x.sharding
        sharding = Sharding(known.mesh, _axes_of(known.spec)) if isinstance(known, NamedSharding) else None
        return Device(self, _device_name(min(devices, key=_number_of)), sharding)

    def other_device_names(self, device: Device) -> str:
        assert device.sharding is not None
        return "".join(f",{number}" for number in sorted(map(_number_of, device.sharding.mesh.devices.flat))[1:])

    def memory_used(self, device: Device) -> int | None:
        stats = self.native_device(device).memory_stats()  # None for processors
        return stats.get("bytes_in_use") if stats else None

    def peak_memory_used(self, device: Device) -> int | None:
        stats = self.native_device(device).memory_stats()
        return stats.get("peak_bytes_in_use") if stats else None

    def to_device(self, x: Array, device: Device) -> Array:
        if device.sharding is None:
            return jax.device_put(x, self.native_device(device))
        return x if isinstance(x, Tracer) else jax.device_put(x, NamedSharding(device.sharding.mesh, PartitionSpec()))

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        fitted, native = self.fit(array, kind), self.native_device(device)
        if fitted.nbytes < _LARGE or native.platform != "cpu" or self.is_tracing() or device.sharding:
            return self.place(jnp.asarray(fitted), device)
        # One copy, where jnp.asarray makes two, and none of pages that may be taken over; it is waited for, since
        # afterwards the array is the caller's again. As `place` has it, nothing is held to the only device: programs
        # would be made anew for arrays that are.
        alone = native if len(jax.devices()) > 1 else None
        placed = jax.device_put(fitted, alone, may_alias=taken_over(fitted) is not None)
        self.await_array(placed)
        return placed

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        engine = engine_of(target)
        if not isinstance(engine, Arrays):
            return super().cast(x, target, device)
        kind = self.kind_of(x)
        dtype = engine.element(kind)
        if x.dtype != dtype:
            if kind is Int:
                self.check_fits(x, engine)
            x = x64.in_x64(ops.cast)(x, dtype)
        here = device.on(engine)
        return x if isinstance(x, Tracer) or here.holds(engine.device_of(x)) else engine.to_device(x, here)

    def element(self, kind: type[Kind]) -> Any:
        """JAX's type of the elements of a kind."""
        return {"float": self.jax_float, "int": self.jax_int, "bool": ELEMENTS["bool"]}[kind.name]

    def from_dlpack(self, x: Any, device: Device) -> Array:
        if isinstance(x, Tracer):
            return x
        # With 64-bit types on, or they would be cut down on the way.
        return self.place(x64.in_x64(jnp.from_dlpack)(x), device)

    def place(self, x: Array, device: Device) -> Array:
        """On the device asked for, and held to it, so that arrays on two devices cannot meet."""
        if isinstance(x, Tracer):
            return x
        devices = jax.devices()
        if len(devices) == 1 and device.name == _device_name(devices[0]):
            return x
        return self.to_device(x, device)

    def replicate_like(self, x: Array, like: Array) -> Array:
        if isinstance(x, Tracer) or isinstance(like, Tracer) or len(like.devices()) == 1:
            return x
        sharding = like.sharding
        if x.shape != like.shape:
            if not isinstance(sharding, NamedSharding):
                return x
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return x if x.sharding == sharding else jax.device_put(x, sharding)

    def prefers_fused_matmul(self) -> bool:
        return is_shared() and self.is_tracing()

    def duplicate(self, x: Array) -> Array:
        return jnp.array(x, copy=True)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        # JAX ends the process where one asks for the memory of an array that could not be made.
        if isinstance(x, jax.Array):
            self.await_array(x)
        return np.asarray(x)

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        self.await_array(x)
        return super().to_dlpack(x, **options)

    def await_array(self, x: Array) -> None:
        if not isinstance(x, Tracer):
            x.block_until_ready()

    def kind_of(self, x: Array) -> type[Kind]:
        return kind_of_dtype(x.dtype)


def _axes_of(spec: PartitionSpec) -> tuple[AxisNames, ...]:
    """A spec of JAX without what it says of whole axes at the end."""
    axes = [tuple(axis) if isinstance(axis, (tuple, list)) else axis for axis in spec]
    while axes and not axes[-1]:
        axes.pop()
    return tuple(axes)


def default_name() -> str:
    """What the device is called that arrays are on where nothing else is said."""
    return _device_name(jax.devices()[0])


@lru_cache(64)
def _device_name(device: Any) -> str:
    alone = device.platform == "cpu" and len(jax.devices("cpu")) == 1
    return device.platform if alone else f"{device.platform}:{device.id}"
