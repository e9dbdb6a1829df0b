"""How an array is sharded over the devices of a mesh, and the parts of an array that a process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

AxisNames: TypeAlias = str | tuple[str, ...] | None
"""The mesh axes that one axis of an array is sharded over; None if it is not sharded."""

SEQUENCE = "seq"
"""The mesh axis over which the sequences of a batch are sharded."""

Index: TypeAlias = tuple[slice, ...]
"""A part of an array: for each axis a slice with both ends."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """The mesh whose devices share an array, and the mesh axes over which each axis of the array is sharded.

    An array made on a device with this sharding is sharded so if its rank and sizes allow it, else replicated.
    """

    mesh: Any
    """The engine's own mesh."""
    spec: tuple[AxisNames, ...] = ()
    """The mesh axes for each axis of the array; axes beyond its length are not sharded."""

    @property
    def is_replicated(self) -> bool:
        """Has each device the whole array?"""
        return not any(self.spec)


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of an array that this process has to write."""

    index: Index
    read: Callable[[], np.ndarray[Any, Any]]
    """The values, in host memory."""


def whole_index(shape: tuple[int, ...]) -> Index:
    """The index of a whole array."""
    return tuple([slice(0, size) for size in shape])
