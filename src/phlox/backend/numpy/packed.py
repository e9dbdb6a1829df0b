"""Packed matrices on NumPy: read by bytes, or two bytes at a time by a table; few rows of x are multiplied in blocks.

A block's levels stay in the cache, and scales multiply the sums of its groups, not the levels. For one row that still
takes longer than `linear` in f32: NumPy turns ten bytes into floats in a nanosecond, and in that time takes four levels
from a table, while BLAS multiplies six numbers from memory. Reading codes two to a float, by bit masks, or by numkong's
integer products was no faster.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.packed import CODINGS, unpacked_codes
from phlox.backend.contract.types import Array
from phlox.backend.numpy.blocks import Block, in_blocks, scratch

_BYTES = {"int8": np.int8, "uint8": np.uint8}
_NIBBLES = {"int4": 8, "uint4": 0}
"""The code of zero."""
_FEW = 8
"""The most rows of x for which scales multiply sums. With more, one product of matrices of a block takes less time."""


@cache
def _table(coding: str, dtype: np.dtype[np.generic]) -> Block:
    """The levels of all codes in two bytes: [65536, codes]."""
    halves = np.arange(1 << 16, dtype=np.int32)[:, None]
    bits = CODINGS[coding].bits
    with np.errstate(over="ignore"):
        return CODINGS[coding].levels[unpacked_codes(halves, bits)[:, : 16 // bits]].astype(dtype)


def _low(words: Block) -> Block:
    """Words as 32 bits each, in order, the lowest byte first."""
    return np.ascontiguousarray(words).astype("<i4", copy=False)


def _put_levels(words: Block, coding: str, out: Block) -> None:
    """The levels of words [rows, n] into `out` [parts, rows, codes / parts]: part i has each code i, i + parts, ..."""
    low = _low(words)
    if coding in _BYTES:
        np.copyto(out[0], low.view(_BYTES[coding]))
    elif coding in _NIBBLES:
        codes = low.view(np.uint8)
        for part, shifted in zip(out, (codes & 15, codes >> 4), strict=True):
            shifted -= _NIBBLES[coding]  # modulo 256
            np.copyto(part, shifted.view(np.int8))
    else:
        table = _table(coding, out.dtype)
        table.take(low.view("<u2"), 0, out.reshape(*words.shape[:-1], -1, table.shape[1]), "clip")


class Packed(Backend):
    """See `phlox.backend.contract.nn.packed`."""

    def int_unpack(self, words: Array, coding: str) -> Array:
        if coding in _BYTES:
            return _low(words).view(_BYTES[coding]).astype(self.host_float_dtype)
        levels = _table(coding, self.host_float_dtype).take(_low(words).view("<u2"), 0)
        return levels.reshape(*words.shape[:-1], words.shape[-1] * CODINGS[coding].per_word)

    def packed_linear(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
    ) -> Array:
        *batch, columns = x.shape
        m, rows = math.prod(batch), len(words)
        of_groups = offsets if scales is None else scales
        groups = 1 if of_groups is None else of_groups.shape[1]
        parts, padded = 2 if coding in _NIBBLES else 1, words.shape[1] * CODINGS[coding].per_word
        if not 0 < m <= _FEW or not rows or not columns or columns // groups % parts:
            return super().packed_linear(x, words, scales, offsets, bias, coding)
        flat = x.reshape(m, columns)
        # [parts, groups, columns of both, m]
        factors = np.ascontiguousarray(flat.reshape(m, groups, -1, parts).transpose(3, 1, 2, 0))
        y = np.empty((m, rows), x.dtype)

        def work(start: int, stop: int) -> None:
            b = stop - start
            levels = scratch(y, 3, (parts, b, padded // parts))
            _put_levels(words[start:stop], coding, levels)
            levels = levels[..., : columns // parts].reshape(parts, b, groups, -1)
            if scales is None:
                np.einsum(
                    "pbm->mb",
                    np.matmul(levels.reshape(parts, b, -1), factors.reshape(parts, -1, m)),
                    out=y[:, start:stop],
                )
                return
            sums = np.matmul(levels.transpose(0, 2, 1, 3), factors)
            np.einsum("pgbm,bg->mb", sums, scales[start:stop], out=y[:, start:stop])

        in_blocks(work, rows, columns // 2)  # in blocks of twice the size, since codes come from memory slower in parts
        if offsets is not None:
            y += flat.reshape(m, groups, -1).sum(2) @ offsets.T
        if bias is not None:
            y += bias
        return y.reshape(*batch, rows)
