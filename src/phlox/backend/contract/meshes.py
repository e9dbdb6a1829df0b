"""Several devices: meshes, sharded arrays, and the parts of them that a process has."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.collectives import Later
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.grid import Grid
from phlox.backend.kind import Kind
from phlox.backend.parallel import rows_of
from phlox.backend.processes import processes
from phlox.backend.registry import load_decorator
from phlox.backend.sharding import Index, Shard, Sharding, whole_index
from phlox.errors import ShardingError


class MeshOps(ArrayOps):
    """The defaults are those of an engine without a partitioner: each process is a device that holds whole arrays."""

    partitions: bool = False
    """Does the engine shard arrays over a mesh, and communicate by itself? If not, processes average gradients."""

    has_slices: bool = False
    """May an array be in slices, one in each process? See `phlox.sharding`."""

    def mesh_devices(self) -> int:
        """The number of devices of all processes together."""
        return processes().size

    def make_mesh(self, shape: dict[str, int]) -> Any:
        """The engine's own mesh, with named axes of these sizes; `ShardingError` if that is impossible."""
        group = processes()
        if math.prod(shape.values()) != group.size:
            raise ShardingError(f"{self!r} has a mesh of all {group.size} processes, and not of {shape}")
        return Grid(tuple(shape), tuple(shape.values()), group.rank)

    def mesh_part(self, mesh: Any, axes: tuple[str, ...]) -> tuple[int, int]:
        """The index of this process's part of an array that is sharded over some axes, and the number of parts."""
        return mesh.place(axes), mesh.count(axes)

    def mesh_device(self, sharding: Sharding) -> Device:
        """The devices of a mesh as one device, for arrays with this sharding."""
        if sharding.is_replicated:
            return self.device()
        sharded = load_decorator("sharded")
        return sharded(self).mesh_device(sharding)

    def mesh_scope(self, mesh: Any, axes: tuple[str, ...]) -> AbstractContextManager[object]:
        """The scope in which code computes on this process's rows of a batch, which is sharded over some axes."""
        return rows_of(mesh.rows(axes) if mesh.size > 1 else None)

    def mesh_of(self, x: Array) -> Any:
        """The engine's mesh of an array, or of the program of a tracer; None without one."""
        return None

    def cuts_sequences(self, x: Array) -> bool:
        """Is x, or the program of a tracer, on a mesh that cuts sequences? Then their axis is merged with no other."""
        return False

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

    def is_slice(self, x: Array) -> bool:
        """Does each process hold a slice of this array? Then its gradient covers all processes."""
        return False

    def settle_of(self, x: Array) -> Callable[[Array], Array] | None:
        """The function from the gradient that reaches x, a leaf of a tape, to its final one; None if they are equal."""
        return None

    def scattered_like(self, g: Array, x: Array) -> Later:
        """Begin to reduce the processes' gradients of their rows to the gradient of x, in slices."""
        raise NotImplementedError(f"{self!r} has no arrays in slices")

    def make_ready(self, x: Array) -> None:
        """Begin to gather x, a parameter's new value that will be used whole, if the whole array may be kept."""

    def is_here(self, x: Array) -> bool:
        """Can this process read all values of an array?"""
        return True
