"""`PackedArrays`: a matrix of codes of a few bits, with scales, as files of quantized models have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec
import numpy as np

from phlox.record.dtypes import Array

Numbers: TypeAlias = "Array | PackedArrays | None"
"""Scales or offsets, [rows, groups]: floats, or a packed matrix, or absent."""


class PackedArrays(NamedTuple):
    """A packed matrix [rows, columns]: `level(code) * scale + offset`, with one scale for each group of columns.

    >>> from phlox.record.codings import words_of
    >>> codes = words_of(np.array([[0, 7, 8, 15]], np.uint8), 4)
    >>> PackedArrays(codes, "int4", 4, scales=np.array([[0.5, 2.0]], np.float32)).dequantized().tolist()
    [[-4.0, -0.5, 0.0, 14.0]]
    """

    codes: Array
    """int32 [rows, words]: `32 // bits` codes in each word, the first in the lowest bits."""
    coding: str
    """The key of `CODINGS` that says which number a code is."""
    columns: int
    scales: Numbers = None
    """By which the levels are multiplied; absent: 1."""
    offsets: Numbers = None
    """What is added to the products; absent: 0."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.codes), self.columns

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return self.codes.nbytes + sum([part.nbytes for part in (self.scales, self.offsets) if part is not None])

    def dequantized(self) -> Array:
        """The matrix, float32."""
        from phlox.record.codings import CODINGS, codes_of  # most records hold nothing packed

        coding = CODINGS[self.coding]
        result: Array = coding.levels[codes_of(self.codes, coding.bits, self.columns)]
        for part, combine in ((self.scales, np.multiply), (self.offsets, np.add)):
            if part is not None and result.size:
                with np.errstate(all="ignore"):  # scales of a file may be infinite, or NaN
                    numbers = part.dequantized() if isinstance(part, PackedArrays) else part
                    groups = result.reshape(*numbers.shape, -1)
                    combine(groups, numbers[..., None], out=groups)
        return result

    def rows(self, index: slice | Array) -> PackedArrays:
        """Some of the rows, in any order: views for a slice, copies for an array of their numbers."""
        return self._each(lambda arrays: arrays[0][index], [self])

    @staticmethod
    def stacked(parts: Sequence[PackedArrays]) -> PackedArrays:
        """The rows of several packed matrices of the same form, one after another."""
        return parts[0] if len(parts) == 1 else parts[0]._each(np.concatenate, parts)

    def _each(self, function: Callable[[list[Array]], Array], parts: Sequence[PackedArrays]) -> PackedArrays:
        def numbers(some: list[Numbers]) -> Numbers:
            if isinstance(some[0], PackedArrays):
                return some[0]._each(function, cast("list[PackedArrays]", some))
            return None if some[0] is None else function(cast("list[Array]", some))

        scales, offsets = numbers([part.scales for part in parts]), numbers([part.offsets for part in parts])
        return PackedArrays(function([part.codes for part in parts]), self.coding, self.columns, scales, offsets)


class Packing(msgspec.Struct, frozen=True, eq=False):
    """How a file holds a tensor that is not stored as elements of one of a record's types."""

    type: str
    """The name of the type in the file, such as "Q4_K"."""
    nbytes: int
    """The bytes of the tensor in the file."""
    read: Callable[[], PackedArrays]
    """Reads the tensor as it is stored: all axes but the last are the rows."""
