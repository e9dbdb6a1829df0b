"""Batches: their number of rows, and the device of results."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend import Device
from phlox.data.structure import leaves


def count(batch: Any) -> int:
    """The number of rows of a batch: the size of the first axis of its first array that has axes."""
    if batch.__class__ is tuple and batch and batch[0].__class__ is np.ndarray and batch[0].ndim:
        return batch[0].shape[0]
    for _, leaf in leaves(batch):
        shape: Any = getattr(leaf, "shape", None)
        if shape:
            return int(shape[0])
    return 1


def alike(batch: Any, other: Any) -> bool:
    """Can one call take a step on each of two batches?"""
    return count(batch) == count(other) and getattr(batch, "is_whole", None) == getattr(other, "is_whole", None)


def without_tape(device: Device) -> Device:
    """The device with its backend without tapes."""
    backend = device.backend
    while (lower := backend.without_tape()) is not None:
        backend = lower
    return device.on(backend)
