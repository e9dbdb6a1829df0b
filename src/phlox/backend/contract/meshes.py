"""Several devices: meshes, arrays in shards, and what a process has of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.parallel import RowGroup, rows_of
from phlox.backend.processes import processes
from phlox.backend.sharding import Index, Shard, Sharding, whole_index
from phlox.errors import ShardingError


class MeshOps(ArrayOps):
    """The defaults are those of an engine without a partitioner: each process is a device that holds whole arrays."""

    partitions: bool = False
    """Does the engine shard arrays over a mesh, and communicate by itself? If not, processes average gradients."""

    def mesh_devices(self) -> int:
        """The number of devices of all processes together."""
        return processes().size

    def make_mesh(self, shape: dict[str, int]) -> Any:
        """The engine's own mesh, with named axes of these sizes; `ShardingError` if that is impossible."""
        large = [name for name, size in shape.items() if size > 1]
        known = processes()
        if len(large) > 1 or max(shape.values()) != known.size:
            raise ShardingError(
                f"{self!r} has one axis in its mesh, over all {known.size} processes, and not {shape}; "
                "Mesh(data=-1) is that, and meshes of more axes are JAX's"
            )
        return RowGroup(known.rank, known.size)

    def mesh_part(self, mesh: Any, axis: str) -> tuple[int, int]:
        """The index of this process's part of an array that is sharded over an axis, and the number of parts."""
        return mesh.rank, mesh.size

    def mesh_device(self, sharding: Sharding) -> Device:
        """The devices of a mesh as one device, for arrays with this sharding."""
        return self.device()

    def mesh_scope(self, mesh: Any) -> AbstractContextManager[object]:
        """The scope in which code computes on this process's rows of a batch."""
        return rows_of(mesh if mesh.size > 1 else None)

    def mesh_of(self, x: Array) -> Any:
        """The engine's mesh of an array, or of the program of a tracer; None without one."""
        return None

    def keep_sharding(self, x: Array, like: Array) -> Array:
        """Constrain x, a result of the program being traced, to the sharding of the program's argument `like`."""
        return x

    # --- arrays in shards

    def shards(self, x: Array) -> list[Shard]:
        """The parts of an array that this process has to write; each part belongs to exactly one process."""
        return [Shard(whole_index(self.shape(x)), partial(self.to_host, x))] if processes().rank == 0 else []

    def from_shards(
        self, shape: Shape, kind: type[Kind], device: Device, read: Callable[[Index], np.ndarray[Any, Any]]
    ) -> Array:
        """A native array of the host values that `read` returns for an index; only this process's parts are read.

        Raises `RangeError` as `from_host` does.
        """
        return self.from_host(read(whole_index(shape)), kind, device)

    def is_here(self, x: Array) -> bool:
        """Can this process read all values of an array?"""
        return True
