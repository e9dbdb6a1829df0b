"""The block types of GGUF (ggml, `ggml-common.h`): from the bytes of a file to packed matrices, and back, exactly.

A row of a tensor is a sequence of blocks. A block has codes of a few bits, perhaps in two sections (the low 4 bits, and
the bits above), and one scale in half precision, perhaps with a minimum. The K types have 8 or 16 groups in a block,
each with a small integer that multiplies the scale. All that differs among types is in `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phlox.errors import RecordError
from phlox.host.thread_pool import parallel_for
from phlox.record.codings import CODINGS, codes_of, words_of
from phlox.record.dtypes import Array
from phlox.record.packed import Numbers, PackedArrays

_ELEMENTS = 1 << 18
"""About so many elements are converted at a time."""


class Bits(NamedTuple):
    """A section of codes: each run of bytes has `8 // width` runs of as many codes, the first in the lowest bits."""

    width: int
    run: int

    def codes(self, data: Array) -> Array:
        """From bytes [blocks, n] to codes [blocks, n * 8 // width]."""
        shifts = np.arange(0, 8, self.width, dtype=np.uint8)[:, None]
        blocks, size = data.shape
        runs = data.reshape(blocks, size // self.run, 1, self.run) >> shifts
        return (runs & (1 << self.width) - 1).reshape(blocks, size * 8 // self.width)

    def bytes(self, codes: Array) -> Array:
        """The inverse."""
        shifts = np.arange(0, 8, self.width, dtype=np.uint8)[:, None]
        blocks, size = len(codes), codes.shape[1] * self.width // 8
        runs = codes.reshape(blocks, size // self.run, 8 // self.width, self.run) << shifts
        return np.bitwise_or.reduce(runs, axis=2).reshape(blocks, size)


class Fields(NamedTuple):
    """The parts of blocks, each uint8 [blocks, ...]."""

    codes: Array
    """One for each element, as the file has it."""
    scale: Array
    """The bytes of the scale."""
    minimum: Array | None = None
    """The bytes of the minimum, or of the scale of the minima."""
    scales: Array | None = None
    """The integers by which the scale is multiplied in each group."""
    minima: Array | None = None
    """Those by which the minimum is."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A block type: the numbers of its elements, and where a block has what."""

    name: str
    number: int
    """The number of the type in files."""
    coding: str
    """The coding of the elements when kept packed."""
    sections: tuple[tuple[str, int], ...]
    """The names and sizes of the sections of a block, in order."""
    low: Bits
    """The section `low`; if it is less than a code, `high` has the rest."""
    high: Bits | None = None
    bias: int = 0
    """What a code is above the number that it stands for, if its coding has signs."""

    @property
    def size(self) -> int:
        """The bytes of a block."""
        return sum(size for _, size in self.sections)

    @property
    def block(self) -> int:
        """The elements of a block."""
        return dict(self.sections)["low"] * 8 // self.low.width

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.low.width + (self.high.width if self.high else 0)) - 1

    def row_bytes(self, columns: int) -> int:
        """The bytes of a row of so many elements, which whole blocks must fill."""
        return columns // self.block * self.size

    def fields(self, blocks: Array) -> Fields:
        """The parts of blocks, uint8 [blocks, size]."""
        ends = np.cumsum([size for _, size in self.sections])[:-1]
        parts = dict(zip([name for name, _ in self.sections], np.split(blocks, ends, axis=1), strict=True))
        codes = self.low.codes(parts["low"])
        if self.high is not None:
            codes |= self.high.codes(parts["high"]) << 4
        scales, minima = parts.get("scales"), None
        if scales is not None and "minimum" in parts:
            scales, minima = _six_bits(scales)
        return Fields(codes, parts["scale"], parts.get("minimum"), scales, minima)

    def joined(self, fields: Fields) -> Array:
        """The inverse of `fields`."""
        codes, scales = fields.codes, fields.scales
        parts: dict[str, Any] = {"scale": fields.scale, "minimum": fields.minimum, "low": codes, "scales": scales}
        if self.high is not None:
            parts |= {"low": codes & 15, "high": self.high.bytes(codes >> 4)}
        parts["low"] = self.low.bytes(parts["low"])
        if scales is not None and fields.minima is not None:
            parts["scales"] = _of_six_bits(scales, fields.minima)
        return np.concatenate([parts[name] for name, _ in self.sections], axis=1)

    def packed(self, data: Array) -> PackedArrays:
        """Rows of a file, uint8 [rows, bytes], as a packed matrix; scales and codes keep all their bits."""
        portions = _portions(0, len(data), data.shape[1])
        return PackedArrays.stacked([self._packed(data[rows]) for rows in portions])

    def dequantized(self, data: Array) -> Array:
        """Rows of a file, uint8 [rows, bytes], as float32 [rows, columns]."""
        result = np.empty((len(data), data.shape[1] // self.size * self.block), np.float32)
        _fill(result, result.shape[1], lambda rows: self._packed(data[rows]).dequantized())
        return result

    def encoded(self, array: Array, quantized: Callable[[BlockType, Array], Fields]) -> Array:
        """Rows of float32 as rows of a file, by a function from blocks to their fields."""
        columns = array.shape[1]
        result = np.empty((len(array), self.row_bytes(columns)), np.uint8)

        def rows_of(rows: slice) -> Array:
            blocks = array[rows].reshape(-1, self.block).astype(np.float32, copy=False)
            return self.joined(quantized(self, blocks)).reshape(result[rows].shape)

        _fill(result, columns, rows_of)
        return result

    def bytes_of(self, packed: PackedArrays) -> Array:
        """The inverse of `packed`; RecordError unless the type holds exactly this matrix."""
        portions = _portions(0, len(packed.codes), packed.columns)
        return np.concatenate([self._bytes_of(packed.rows(rows)) for rows in portions])

    def _packed(self, data: Array) -> PackedArrays:
        rows, columns = len(data), data.shape[1] // self.size * self.block
        fields = self.fields(np.ascontiguousarray(data).reshape(-1, self.size))

        def numbers(codes: Array | None, coding: str, scales: Numbers = None) -> PackedArrays | None:
            if codes is None:
                return None
            codes = codes.reshape(rows, columns // self.block * codes.shape[1])
            codes = np.ascontiguousarray(codes).view("<u2") if coding == "f16" else codes
            return PackedArrays(words_of(codes, CODINGS[coding].bits), coding, codes.shape[1], scales)

        minimum = fields.minimum
        if minimum is not None and fields.minima is not None:  # which are subtracted, not added
            minimum = minimum ^ np.array([0, 128], np.uint8)
        scales = numbers(fields.scale, "f16" if fields.scale.shape[1] == 2 else "e8m0")
        offsets = numbers(minimum, "f16")
        if fields.scales is not None:
            scales = numbers(fields.scales, "int8" if fields.minima is None else "uint8", scales)
            offsets = numbers(fields.minima, "uint8", offsets)
        codes = words_of((fields.codes - np.uint8(self.bias)).reshape(rows, columns), CODINGS[self.coding].bits)
        return PackedArrays(codes, self.coding, columns, scales, offsets)

    def _bytes_of(self, packed: PackedArrays) -> Array:
        if packed.columns % self.block or form_of(packed) != form_of(self._packed(np.zeros((1, self.size), np.uint8))):
            raise RecordError(f"{self.name} has no such groups, codes or scales")

        def codes(numbers: Any, width: int) -> Array | None:
            if numbers is None:
                return None
            values = codes_of(numbers.codes, CODINGS[numbers.coding].bits, numbers.columns)
            return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, width)

        elements = codes(packed, self.block)
        assert elements is not None
        elements = elements + np.uint8(self.bias)
        sizes, scales, offsets = dict(self.sections), packed.scales, packed.offsets
        minima = None
        groups = None
        if "scales" in sizes:
            assert isinstance(scales, PackedArrays)
            count = 8 if "minimum" in sizes else 16
            groups, scales = codes(scales, count), scales.scales
            if isinstance(offsets, PackedArrays):
                minima, offsets = codes(offsets, count), offsets.scales
        minimum = codes(offsets, 2)
        if minimum is not None and minima is not None:
            minimum = minimum ^ np.array([0, 128], np.uint8)
        scale = codes(scales, sizes["scale"])
        assert scale is not None
        if elements.size and elements.max() > self.top:
            raise RecordError(f"{self.name} has no codes of so many bits")
        if minima is not None and groups is not None and max(groups.max(initial=0), minima.max(initial=0)) > 63:
            raise RecordError(f"{self.name} has no scales of more than 6 bits")
        return self.joined(Fields(elements, scale, minimum, groups, minima)).reshape(
            len(packed.codes), self.row_bytes(packed.columns)
        )


def _portions(start: int, stop: int, width: int) -> Iterator[slice]:
    """Rows of this width, some at a time: once at least."""
    step = max(1, _ELEMENTS // max(1, width))
    return (slice(at, min(at + step, stop)) for at in range(start, max(start + 1, stop), step))


def _fill(result: Array, columns: int, rows_of: Callable[[slice], Array]) -> None:
    """Compute the rows of a result, some at a time, on several cores."""

    def work(start: int, stop: int) -> None:
        for rows in _portions(start, stop, columns):
            result[rows] = rows_of(rows)

    parallel_for(work, len(result), max(1, _ELEMENTS // max(1, columns)))


def fitting(packed: PackedArrays) -> BlockType | None:
    """The smallest type that holds exactly this packed matrix, if there is one."""
    for kind in sorted(TYPES.values(), key=lambda kind: kind.size / kind.block):
        try:
            kind.bytes_of(packed)
        except RecordError:
            continue
        return kind
    return None


def form_of(packed: Numbers) -> object:
    """What two packed matrices of one type have in common: codings, and sizes of groups."""
    if not isinstance(packed, PackedArrays):
        return packed is None

    def group(numbers: Numbers) -> int:
        count = 0 if numbers is None else numbers.columns if isinstance(numbers, PackedArrays) else numbers.shape[1]
        return packed.columns // count if count else 0

    parts = packed.scales, packed.offsets
    return packed.coding, [(group(part), form_of(part)) for part in parts]


def _six_bits(data: Array) -> tuple[Array, Array]:
    """The 8 scales and 8 minima of 6 bits in 12 bytes."""
    scales, minima, rest = data[:, :4], data[:, 4:8], data[:, 8:]
    return (
        np.concatenate([scales & 63, rest & 15 | scales >> 2 & 48], axis=1),
        np.concatenate([minima & 63, rest >> 4 | minima >> 2 & 48], axis=1),
    )


def _of_six_bits(scales: Array, minima: Array) -> Array:
    high, low = scales[:, 4:], minima[:, 4:]
    first, second = (some[:, :4] | (some[:, 4:] & 48) << 2 for some in (scales, minima))
    return np.concatenate([first, second, high & 15 | low << 4], axis=1)


_SCALE, _MINIMUM, _SCALES = ("scale", 2), ("minimum", 2), ("scales", 12)
_HALVES, _QUARTERS = Bits(4, 16), Bits(4, 32)

TYPES: dict[str, BlockType] = {
    kind.name: kind
    for kind in (
        BlockType("Q4_0", 2, "int4", (_SCALE, ("low", 16)), _HALVES),
        BlockType("Q4_1", 3, "uint4", (_SCALE, _MINIMUM, ("low", 16)), _HALVES),
        BlockType("Q5_0", 6, "int8", (_SCALE, ("high", 4), ("low", 16)), _HALVES, Bits(1, 1), 16),
        BlockType("Q5_1", 7, "uint8", (_SCALE, _MINIMUM, ("high", 4), ("low", 16)), _HALVES, Bits(1, 1)),
        BlockType("Q8_0", 8, "int8", (_SCALE, ("low", 32)), Bits(8, 1)),
        BlockType("Q4_K", 12, "uint4", (_SCALE, _MINIMUM, _SCALES, ("low", 128)), _QUARTERS),
        BlockType("Q5_K", 13, "uint8", (_SCALE, _MINIMUM, _SCALES, ("high", 32), ("low", 128)), _QUARTERS, Bits(1, 32)),
        BlockType("Q6_K", 14, "int8", (("low", 128), ("high", 64), ("scales", 16), _SCALE), Bits(4, 64), Bits(2, 32),
                  32),
        BlockType("IQ4_NL", 20, "iq4nl", (_SCALE, ("low", 16)), _HALVES),
        BlockType("MXFP4", 39, "e2m1", (("scale", 1), ("low", 16)), _HALVES),
    )
}  # fmt: skip
"""The block types that are read and written, by name."""

REFUSED: dict[int, tuple[str, int, int]] = {
    9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""The other types by number: name, elements of a block, and its bytes."""
