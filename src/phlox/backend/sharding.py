"""How an array is sharded over the devices of a mesh, and the parts of one that a process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

AxisNames: TypeAlias = str | tuple[str, ...] | None
"""The mesh axes that one axis of an array is cut over; None where it is whole."""

SEQUENCE = "seq"
"""The mesh axis over which the sequences of a batch are cut."""

Index: TypeAlias = tuple[slice, ...]
"""A part of an array: for each axis a slice with both ends."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """The mesh whose devices share an array, and how each axis of the array is cut over the axes of the mesh.

    What is made on a device with this sharding is cut so where rank and sizes allow it, and is replicated otherwise.
    """

    mesh: Any
    """The engine's own mesh."""
    spec: tuple[AxisNames, ...] = ()
    """For each axis of the array; axes beyond its length are whole."""

    @property
    def is_replicated(self) -> bool:
        """Is each device given the whole array?"""
        return not any(self.spec)


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of an array that this process is to write."""

    index: Index
    read: Callable[[], np.ndarray[Any, Any]]
    """The values, in host memory."""


def whole_index(shape: tuple[int, ...]) -> Index:
    """The index of all of an array."""
    return tuple([slice(0, size) for size in shape])
