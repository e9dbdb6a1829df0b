"""Meshes of JAX devices, and sharded arrays on them. XLA's partitioner adds the communication."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.jax import sharding
from phlox.backend.jax.sharding import first_device
from phlox.backend.kind import Kind
from phlox.backend.sharding import SEQUENCE, Index, Shard, Sharding
from phlox.errors import ShardingError
from phlox.host.mmap import taken_over


class Meshes(EngineBackend):
    """See `phlox.backend.contract.meshes`."""

    partitions = True

    def mesh_devices(self) -> int:
        return jax.device_count()

    def make_mesh(self, shape: dict[str, int]) -> Any:
        sizes, count = tuple(shape.values()), math.prod(shape.values())
        if count < jax.device_count() and jax.process_count() > 1:
            raise ShardingError(
                f"a mesh of {count} devices leaves some of the {jax.device_count()} devices of {jax.process_count()} "
                "processes out; give one axis as -1"
            )
        devices = None if count == jax.device_count() else jax.devices()[:count]
        return jax.make_mesh(sizes, tuple(shape), axis_types=(AxisType.Auto,) * len(sizes), devices=devices)

    def mesh_part(self, mesh: Any, axes: tuple[str, ...]) -> tuple[int, int]:
        positions = [mesh.axis_names.index(axis) for axis in axes]
        along = np.moveaxis(mesh.devices, positions, range(len(positions)))
        along = along.reshape(-1, *along.shape[len(positions) :])
        rank = jax.process_index()
        local = [
            index for index, devices in enumerate(along) if any(d.process_index == rank for d in np.ravel(devices))
        ]
        first, size = local[0], len(along)
        if local != list(range(first, first + len(local))) or size % len(local) or first % len(local):
            raise ShardingError(
                f"process {rank} has the indices {local} of {size} along {', '.join(axes)}, which are not a block; "
                "put the axes that shard the batch first, as in Mesh(data=-1, model=2)"
            )
        return first // len(local), size // len(local)

    def mesh_device(self, sharding: Sharding) -> Device:
        return Device(self, first_device(sharding.mesh), sharding)

    def mesh_scope(self, mesh: Any, axes: tuple[str, ...]) -> AbstractContextManager[object]:
        return nullcontext()

    def mesh_of(self, x: Array) -> Any:
        if isinstance(x, Tracer):
            return sharding.program_mesh()
        return None if len(x.devices()) == 1 else sharding.from_jax(x.sharding).mesh

    def cuts_sequences(self, x: Array) -> bool:
        mesh = self.mesh_of(x)
        return mesh is not None and mesh.shape.get(SEQUENCE, 1) > 1

    def keep_sharding(self, x: Array, like: Array) -> Array:
        return sharding.constrain_like(x, like)

    # --- arrays in shards

    def shards(self, x: Array) -> list[Shard]:
        if x.is_fully_addressable and len(x.devices()) == 1:
            return super().shards(x) if jax.process_index() == 0 else []
        return [
            Shard(sharding.whole_slices(shard.index, x.shape), partial(np.asarray, shard.data))
            for shard in x.addressable_shards
            if shard.replica_id == 0
        ]

    def from_shards(
        self, shape: Shape, kind: type[Kind], device: Device, read: Callable[[Index], np.ndarray[Any, Any]]
    ) -> Array:
        if device.sharding is None:
            return super().from_shards(shape, kind, device, read)

        def part(index: Any) -> Any:
            # JAX may keep the result, so it must be pages that may be taken over, or memory that nothing writes to.
            array = read(sharding.whole_slices(index, shape))
            fitted = self.fit(array, kind)
            frozen = array.flags.owndata and not array.flags.writeable
            is_own = frozen or taken_over(fitted) is not None or not np.may_share_memory(fitted, array)
            return fitted if is_own else fitted.copy()

        x = sharding.from_parts(shape, sharding.fitted(device.sharding, shape), part, self.element(kind))
        self.await_array(x)
        return x

    def is_here(self, x: Array) -> bool:
        return x.is_fully_addressable or x.is_fully_replicated
