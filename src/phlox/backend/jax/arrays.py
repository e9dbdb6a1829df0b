"""JAX arrays as arrays of the contract: devices, element types, moving to and from the host."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from phlox.backend.contract import Backend, EngineBackend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.jax import compat, ops, sharding, x64
from phlox.backend.jax.sharding import argument_spec, device_name, is_shared
from phlox.backend.kind import Int, Kind, kind_of_dtype
from phlox.errors import DeviceError
from phlox.host.dtypes import FLOAT_ELEMENTS, HOST_DTYPES, INT_ELEMENTS
from phlox.host.mmap import taken_over

ELEMENTS: dict[str, Any] = {name: jnp.dtype(HOST_DTYPES[name]) for name in (*FLOAT_ELEMENTS, *INT_ELEMENTS, "bool")}
_LARGE = 1 << 20
"""From so many bytes on, `device_put` of a host array is faster."""
_number_of = operator.attrgetter("id")


class Arrays(EngineBackend):
    """See `phlox.backend.contract.arrays`."""

    jax_float: Any
    jax_int: Any
    is_jax = True

    def owns(self, x: object) -> bool:
        return isinstance(x, jax.Array)

    def device(self, name: str | None = None) -> Device:
        if name is None:
            return Device(self, default_name(), committed=False)
        platform, _, number = name.partition(":")
        devices = sharding.local_devices(platform)
        if not devices or not (number or "0").isdigit():
            raise self._no_device(name)
        native = devices[0] if not number else next((d for d in devices if d.id == int(number)), None)
        if native is None:
            raise self._no_device(name)
        is_named = number != "" and len(jax.local_devices()) > 1
        return Device(self, device_name(native), committed=is_named or native != _default_device())

    def _no_device(self, name: str) -> DeviceError:
        have = ", ".join(map(device_name, jax.local_devices()))
        others = jax.process_count() > 1 and name in {f"{d.platform}:{d.id}" for d in jax.devices()}
        whose = "; that one is another process's" if others else ""
        return DeviceError(f"{self!r} has no device {name!r} here (it has {have}{whose})")

    @staticmethod
    def native_device(device: Device) -> Any:
        """JAX's own object for a device."""
        platform, _, number = device.name.partition(":")
        devices = sharding.local_devices(platform)
        return next(d for d in devices if d.id == int(number)) if number else devices[0]

    def device_of(self, x: Array) -> Device:
        if isinstance(x, Tracer):
            return self.device()
        devices = x.devices()
        if len(devices) == 1:
            native = next(iter(devices))
            # With a single device, it does not matter whether an array is committed to it.
            committed = x.committed and (len(local := jax.local_devices()) > 1 or native != local[0])
            return Device(self, device_name(native), committed=committed)
        # A sharded array is named by its first device in this process.
        shards = x.sharding
        first = min(shards.addressable_devices or devices, key=_number_of)
        return Device(self, device_name(first), sharding.from_jax(shards))

    def other_device_names(self, device: Device) -> str:
        assert device.sharding is not None
        first = self.native_device(device)
        others = [number for number in sorted(map(_number_of, device.sharding.mesh.devices.flat)) if number != first.id]
        return "".join(f",{number}" for number in others) if len(others) < 8 else f" and {len(others)} others"

    def memory_used(self, device: Device) -> int | None:
        stats = self.native_device(device).memory_stats()  # None for processors
        return stats.get("bytes_in_use") if stats else None

    def peak_memory_used(self, device: Device) -> int | None:
        stats = self.native_device(device).memory_stats()
        return stats.get("peak_bytes_in_use") if stats else None

    def to_device(self, x: Array, device: Device) -> Array:
        if device.sharding is None:
            if isinstance(x, Tracer):
                return x if device.name == default_name() else jax.device_put(x, self.native_device(device))
            sharding.check_gathered(x, device)
            x = x if x.is_fully_addressable else x.addressable_data(0)
            return self._moved(x, device)
        return sharding.shard(x, device.sharding)

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        if device.sharding is not None and not self.is_tracing():
            return self.from_shards(array.shape, kind, device, array.__getitem__)
        fitted, native = self.fit(array, kind), self.native_device(device)
        if fitted.nbytes < _LARGE or native.platform != "cpu" or self.is_tracing():
            return self.place(jnp.asarray(fitted), device)
        # One copy, where jnp.asarray makes two, and none of pages that may be taken over. It waits for the copy, since
        # the caller may write to the array afterwards.
        to = native if device.committed else None
        native_array = jax.device_put(fitted, to, may_alias=taken_over(fitted) is not None)
        self.await_array(native_array)
        return native_array

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
        goal = device.on(engine)
        if isinstance(x, Tracer) or (goal.sharding is not None and goal.holds(engine.device_of(x))):
            return x
        return engine.place(x, goal) if goal.holds(engine.device_of(x)) else engine.to_device(x, goal)

    def element(self, kind: type[Kind]) -> Any:
        """JAX's type of the elements of a kind."""
        return {"float": self.jax_float, "int": self.jax_int, "bool": ELEMENTS["bool"]}[kind.name]

    def from_dlpack(self, x: Any, device: Device) -> Array:
        if isinstance(x, Tracer):
            return x
        # With 64-bit types enabled, or 64-bit elements would be narrowed.
        return self.place(x64.in_x64(jnp.from_dlpack)(x), device)

    def place(self, x: Array, device: Device) -> Array:
        """The array committed to a device, so that it cannot be combined with arrays on another.

        On the default device, it stays where JAX made it (within `jax.set_mesh`, on that mesh), uncommitted: then it
        can be combined with arrays on other devices or a mesh. JAX would compile programs again for committed arrays.
        """
        if isinstance(x, Tracer):
            return x
        if device.sharding is not None:
            return sharding.shard(x, device.sharding)
        is_free = not device.committed and not (x.committed and isinstance(x.sharding, SingleDeviceSharding))
        return x if is_free else self._moved(x, device)

    def _moved(self, x: Array, device: Device) -> Array:
        x = jax.device_put(x, self.native_device(device))
        return x if device.committed else compat.uncommitted(x)

    def sharded(self, shape: Shape, device: Device) -> NamedSharding | None:
        """JAX's sharding for a new array on a device; None for a single device."""
        return None if device.sharding is None else sharding.fitted(device.sharding, shape)

    def replicate_like(self, x: Array, like: Array) -> Array:
        if isinstance(x, Tracer) or isinstance(like, Tracer) or len(like.devices()) == 1:
            return x
        beside = like.sharding
        if x.shape != like.shape:
            if not isinstance(beside, NamedSharding):
                return x
            beside = NamedSharding(beside.mesh, PartitionSpec())
        return x if x.sharding == beside else sharding.put(x, beside)

    def prefers_fused_matmul(self, joined: Sequence[Array]) -> bool:
        if not is_shared() or not self.is_tracing():
            return False
        # If the joined axis is sharded, the devices would have to exchange parts.
        return not any(len(spec) == x.ndim and spec[-1] for x in joined if (spec := argument_spec(x)))

    def detach(self, x: Array) -> Array:
        return jax.lax.stop_gradient(x) if isinstance(x, Tracer) else x  # perhaps a tracer of `jax.grad`

    def duplicate(self, x: Array) -> Array:
        return jnp.array(x, copy=True)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        # JAX ends the process if it reads the memory of an array whose computation has failed.
        if isinstance(x, jax.Array):
            self.await_array(x)
            if not x.is_fully_addressable:
                return sharding.local_value(x)
        return np.asarray(x)

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        self.await_array(x)
        return super().to_dlpack(x, **options)

    def await_array(self, x: Array) -> None:
        if not isinstance(x, Tracer):
            x.block_until_ready()

    def kind_of(self, x: Array) -> type[Kind]:
        return kind_of_dtype(x.dtype)


def _default_device() -> Any:
    """The device on which JAX makes arrays: the first local one, or the one set by `jax.default_device`."""
    chosen = getattr(jax.config, "jax_default_device")  # noqa: B009  (a name that JAX's types do not have)
    if chosen is None:
        return jax.local_devices()[0]
    return sharding.local_devices(chosen)[0] if isinstance(chosen, str) else chosen


def default_name() -> str:
    """The name of the default device."""
    return device_name(_default_device())
