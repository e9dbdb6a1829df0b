"""Collectives: what the processes of a group make of the arrays that each of them has.

All processes call the same collectives in the same order, with arrays of the same shapes. An engine without collectives
of its own goes through host memory, and gloo, which comes with PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
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

BUCKET = 8 << 20
"""The bytes that are reduced at once: of many small arrays each would wait for the others as long as of a large one."""


class Presence(NamedTuple):
    """Which of the arrays of a reduction this process has; it gives zeros for the others.

    An array that some processes have and others have not is an error, which all of them raise.
    """

    names: tuple[str, ...]
    here: tuple[bool, ...]


class CollectiveOps(ArrayOps, ProcessOps):
    """The defaults go through the host."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        """The sum or the mean over all processes of each array; floats of half precision are added up in f32.

        Arrays are sent in buckets, so that many small ones cost little more than one. A process alone gets them back.
        Raises `DistributedError` where a process is gone, and for what `presence` finds.
        """
        if processes().size == 1:
            return list(arrays)
        found = self.reduce_on_host([self._sent(x) for x in arrays], op, presence)
        return [self._received(host, x) for host, x in zip(found, arrays, strict=True)]

    def all_gather(self, x: Array) -> Array:
        """The arrays of all processes, stacked on a new first axis in the order of their ranks."""
        if processes().size == 1:
            return self.reshape(x, (1, *self.shape(x)))
        return self._received(self.gather_on_host(self._sent(x)), x)

    def broadcast(self, x: Array, root: int) -> Array:
        """The array of the process of rank `root`."""
        if processes().size == 1:
            return x
        return self._received(self.broadcast_on_host(self._sent(x), root), x)

    # --- in host memory

    def reduce_on_host(
        self, arrays: Sequence[np.ndarray[Any, Any]], op: Reduction, presence: Presence | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """`all_reduce` of arrays of NumPy, of integers or of floats of 32 or 64 bits."""
        return self._gloo().reduce_on_host(arrays, op, presence)

    def gather_on_host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`all_gather` of an array of NumPy, of any of these or of bools."""
        return self._gloo().gather_on_host(array)

    def broadcast_on_host(self, array: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
        """`broadcast` of an array of NumPy, as `gather_on_host`."""
        return self._gloo().broadcast_on_host(array, root)

    def _gloo(self) -> CollectiveOps:
        self.join_processes()
        return backend_by_name(GLOO)

    def _sent(self, x: Array) -> np.ndarray[Any, Any]:
        if self.is_traced(x):
            raise UnsupportedError(
                f"{self!r} has no collective inside a function that is being traced; call it on what the function "
                "returns (what is computed there of arrays on a mesh is already that of all processes, and needs none)"
            )
        host = self.to_host(x)
        return host.astype(np.float32) if host.dtype.itemsize == 2 else host

    def _received(self, host: np.ndarray[Any, Any], like: Array) -> Array:
        kind: type[Kind] = self.kind_of(like)
        device: Device = self.device_of(like)
        return self._computed(host, kind, device)


def buckets(sizes: Sequence[int], limit: int = BUCKET) -> list[list[int]]:
    """Arrays of these sizes in bytes, by number, in groups of about as much as the limit; large ones are alone.

    >>> buckets([3, 4, 12, 5, 5, 1], 10)
    [[0, 1], [2], [3, 4], [5]]
    """
    found: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if not found or size > room or size >= limit:
            found.append([])
            room = 0 if size >= limit else limit
        found[-1].append(number)
        room -= size
    return found


def check_presence(presence: Presence, counts: Sequence[float]) -> None:
    """`DistributedError` for an array that only some processes have; `counts` says how many have each."""
    known = processes()
    for name, here, count in zip(presence.names, presence.here, counts, strict=True):
        if 0 < round(count) < known.size:
            raise DistributedError(
                f"process {known.rank} of {known.size} has {'a' if here else 'no'} gradient of `{name}`, which "
                f"{round(count)} of the {known.size} processes have: the loss must depend on the same parameters in "
                "all of them; add the unused ones times zero, or freeze them everywhere"
            )
