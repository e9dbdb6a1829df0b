"""Collectives: operations in which each process of a group takes part with an array of its own.

All processes call the same collectives in the same order, with arrays of the same shapes. An engine without collectives
of its own goes through host memory, and gloo, which comes with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.processes import GLOO, ProcessOps
from phlox.backend.contract.types import Array
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.processes import processes
from phlox.backend.registry import backend_by_name
from phlox.errors import DistributedError, UnsupportedError

Reduction: TypeAlias = Literal["sum", "mean"]

Ranks: TypeAlias = tuple[int, ...]
"""Some of the processes, by rank, in an order."""

BUCKET = 8 << 20
"""The bytes that are reduced at once: many small arrays together take about as long as one large array."""


class Presence(NamedTuple):
    """The arrays of a reduction that this process has; it sends zeros for the others.

    If only some processes have an array, all of them raise an error.
    """

    names: tuple[str, ...]
    owned: tuple[bool, ...]


class Later:
    """A gradient that is communicated while the backward pass goes on; `size` elements are held until `finish()`."""

    __slots__ = ("finish", "size")

    def __init__(self, finish: Callable[[], Array], size: int = 0) -> None:
        self.finish, self.size = finish, size


class CollectiveOps(ArrayOps, ProcessOps):
    """The defaults go through the host."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        """The sum or the mean of each array over all processes; half-precision floats are summed in f32.

        Arrays are sent in buckets, so that many small ones cost little more than one. A single process gets them back.
        Raises `DistributedError` if a process is gone, or if only some processes have an array (see `presence`).
        """
        if processes().size == 1:
            return list(arrays)
        reduced = self.reduce_on_host([self._to_wire(x) for x in arrays], op, presence)
        return [self._from_wire(host, x) for host, x in zip(reduced, arrays, strict=True)]

    def all_gather(self, x: Array) -> Array:
        """The arrays of all processes, stacked on a new first axis in the order of their ranks."""
        if processes().size == 1:
            return self.reshape(x, (1, *self.shape(x)))
        return self._from_wire(self.gather_on_host(self._to_wire(x)), x)

    def broadcast(self, x: Array, root: int) -> Array:
        """The array of the process of rank `root`."""
        if processes().size == 1:
            return x
        return self._from_wire(self.broadcast_on_host(self._to_wire(x), root), x)

    # --- among some of the processes, for arrays in slices

    def gather_slices(self, x: Array, ranks: Ranks) -> Array:
        """The arrays of some processes, including this one, stacked on a new first axis in their order."""
        return self._from_wire(self._gloo().gather_slices_on_host(self._to_wire(x), ranks), x)

    def scatter_mean(self, x: Array, ranks: Ranks) -> Array:
        """The mean over some processes of `x[i]`, where i is this process's index among them.

        The first axis of x has an entry for each of these processes. Half-precision floats are summed in f32.
        """
        return self._from_wire(self._gloo().scatter_mean_on_host(self._to_wire(x), ranks), x)

    def gathering_slices(self, x: Array, ranks: Ranks) -> Callable[[], Array]:
        """Begin `gather_slices`, in the same order in all processes; the returned function waits for its result."""
        return partial(self.gather_slices, x, ranks)

    def scattering_mean(self, x: Array, ranks: Ranks) -> Callable[[], Array]:
        """Begin `scatter_mean`; the returned function waits for its result."""
        value = self.scatter_mean(x, ranks)
        return lambda: value

    def gather_slices_on_host(self, array: np.ndarray[Any, Any], ranks: Ranks) -> np.ndarray[Any, Any]:
        """`gather_slices` of a NumPy array, with the dtypes of `gather_on_host`."""
        return self._gloo().gather_slices_on_host(array, ranks)

    def scatter_mean_on_host(self, array: np.ndarray[Any, Any], ranks: Ranks) -> np.ndarray[Any, Any]:
        """`scatter_mean` of a NumPy array of floats with 32 or 64 bits."""
        return self._gloo().scatter_mean_on_host(array, ranks)

    # --- in host memory

    def reduce_on_host(
        self, arrays: Sequence[np.ndarray[Any, Any]], op: Reduction, presence: Presence | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """`all_reduce` of NumPy arrays of integers, or of floats with 32 or 64 bits."""
        return self._gloo().reduce_on_host(arrays, op, presence)

    def gather_on_host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`all_gather` of a NumPy array of integers, bools, or floats with 32 or 64 bits."""
        return self._gloo().gather_on_host(array)

    def broadcast_on_host(self, array: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
        """`broadcast` of a NumPy array, with the dtypes of `gather_on_host`."""
        return self._gloo().broadcast_on_host(array, root)

    def _gloo(self) -> CollectiveOps:
        self.join_processes()
        return backend_by_name(GLOO)

    def _to_wire(self, x: Array) -> np.ndarray[Any, Any]:
        if self.is_traced(x):
            raise UnsupportedError(
                f"{self!r} has no collectives inside a function that is being traced; call them on the function's "
                "results (results computed from arrays on a mesh are already the same in all processes, and need none)"
            )
        host = self.to_host(x)
        return host.astype(np.float32) if host.dtype.itemsize == 2 else host

    def _from_wire(self, host: np.ndarray[Any, Any], like: Array) -> Array:
        kind: type[Kind] = self.kind_of(like)
        device: Device = self.device_of(like)
        return self._from_result(host, kind, device)


def buckets(sizes: Sequence[int], limit: int = BUCKET) -> list[list[int]]:
    """The numbers of arrays of these sizes in bytes, in groups of at most the limit; a larger array is alone.

    >>> buckets([3, 4, 12, 5, 5, 1], 10)
    [[0, 1], [2], [3, 4], [5]]
    """
    groups: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if not groups or size > room or size >= limit:
            groups.append([])
            room = 0 if size >= limit else limit
        groups[-1].append(number)
        room -= size
    return groups


def check_presence(presence: Presence, counts: Sequence[float]) -> None:
    """`DistributedError` for an array that only some processes have; `counts` are the numbers of its owners."""
    group = processes()
    for name, is_here, count in zip(presence.names, presence.owned, counts, strict=True):
        if 0 < round(count) < group.size:
            raise DistributedError(
                f"process {group.rank} of {group.size} has {'a' if is_here else 'no'} gradient of `{name}`, which "
                f"{round(count)} of the {group.size} processes have: the loss must depend on the same parameters in "
                "all of them; add the unused ones times zero, or freeze them everywhere"
            )
