"""Packed matrices on the host, and the entries of a file that one is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from phlox.backend import Device, Float, Int
from phlox.backend.contract.nn.packed import pack
from phlox.errors import RecordError
from phlox.module.packed import Packed
from phlox.record import LazyTensor
from phlox.tensor import Tensor

Host = np.ndarray[Any, Any]

SIGN_BITS = np.array([0x80808080], np.uint32).view(np.int32)[0]
"""Flipped, they make codes of 8 bits from 0 on those of signed integers."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix [rows, columns] on the host; for its parts see `phlox.module.packed.Packed`."""

    words: Host
    coding: str
    columns: int
    scales: Host | Matrix | None
    offsets: Host | Matrix | None = None

    def rows(self, rows: Host) -> Matrix:
        """Some of its rows, by their numbers."""
        if len(rows) == len(self.words) and np.array_equal(rows, np.arange(len(rows))):
            return self
        parts = [part.rows(rows) if isinstance(part, Matrix) else None if part is None else part[rows]
                 for part in (self.scales, self.offsets)]  # fmt: skip
        return replace(self, words=self.words[rows], scales=parts[0], offsets=parts[1])

    def packed(self, device: Device) -> Packed:
        """The same on a device."""
        scales, offsets = (_on(part, device) for part in (self.scales, self.offsets))
        return Packed(_tensor(self.words, device), self.coding, self.columns, scales=scales, offsets=offsets)


def _on(part: Host | Matrix | None, device: Device) -> Tensor | Packed | None:
    return part.packed(device) if isinstance(part, Matrix) else None if part is None else _tensor(part, device)


def _tensor(array: Host, device: Device) -> Tensor[Any, Any, Any]:
    """The array on a device; without a copy where loading makes none, such as of a mapped file."""
    backend, kind = device.backend, Float if array.dtype == np.float32 else Int
    return Tensor.from_primitive(backend.from_host(np.ascontiguousarray(array), kind, device), backend, kind)


class Stored(NamedTuple):
    """A quantized weight in a file."""

    shape: tuple[int, int]
    """Rows, of which each is an output, and columns."""
    read: Callable[[], Matrix]


class Entries:
    """The entries of one layer in a file, by their names below it; `RecordError` for one that does not fit."""

    def __init__(self, layer: str, tensors: dict[str, LazyTensor]) -> None:
        self.layer, self.tensors = layer, tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Any:
        return iter(self.tensors)

    def take(self, name: str, dtypes: str | tuple[str, ...], *shapes: tuple[int, ...]) -> LazyTensor:
        """The entry of a name, which must have one of these types ("float" is any float) and one of these shapes."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.error(name, "is missing")
        types = (dtypes,) if isinstance(dtypes, str) else dtypes
        is_float = "float" in types and tensor.kind == "float" and tensor.dtype.itemsize > 1
        if not is_float and tensor.dtype.name not in types:
            raise self.error(name, f"must be {' or '.join(types)}, found {tensor.dtype.name}")
        if shapes and tensor.shape not in shapes:
            raise self.error(name, f"must have shape {' or '.join(map(str, shapes))}, found {tensor.shape}")
        return tensor

    def matrix(self, name: str, dtypes: str | tuple[str, ...]) -> LazyTensor:
        """An entry with two axes."""
        tensor = self.take(name, dtypes)
        if len(tensor.shape) != 2:
            raise self.error(name, f"must be a matrix, found shape {tensor.shape}")
        return tensor

    def error(self, name: str, why: str) -> RecordError:
        """That an entry is wrong."""
        return RecordError(f"{self.layer}.{name}: it {why}")


def floats(tensor: LazyTensor) -> Host:
    """The elements of any float type, in f32."""
    return tensor.read().astype(np.float32)


def byte_words(array: Host) -> Host:
    """A matrix of elements of 8 bits as words; it may be a view."""
    codes = array.view(np.uint8)
    if codes.shape[1] % 4 == 0 and codes.flags.c_contiguous:
        return codes.view("<i4").astype(np.int32, copy=False)
    return pack(codes, 8)


def zero_offsets(zeros: Host, scales: Host) -> Host:
    """The offsets of zero points: of levels q, (q - zero) scale."""
    return -(zeros.astype(np.float32) * scales)


def listed(names: Iterable[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
