"""Matrices of few bits an element, packed into words of 32 bits: how they are read, and products with them.

A packed matrix W [rows, columns] has `words` [rows, ceil(columns bits / 32)], Int. A word holds 32 / bits codes, the
first in its lowest bits; codes beyond the columns are zero. The coding's table gives the level of each code. `scales`
and `offsets` [rows, groups], each of which may be absent (1 and 0), are of groups of consecutive columns:
W[r, c] = level(code[r, c]) scales[r, c // group] + offsets[r, c // group].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.kind import Float, Int

WORD = 32
"""The bits of a word."""

BLOCK = 1 << 22
"""The most elements of a packed matrix that the definition unpacks at once, where arrays have values."""

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Coding:
    """How a code of some bits becomes a number.

    >>> CODINGS["e2m1"].bits, CODINGS["e2m1"].levels[:8].tolist()
    (4, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    """

    bits: int
    """4, 8 or 16."""
    make: Callable[[], Any]

    @property
    def per_word(self) -> int:
        """The number of codes in a word."""
        return WORD // self.bits

    @cached_property
    def levels(self) -> Host:
        """The number of each code, in f32."""
        levels = np.array(self.make(), np.float32)
        levels[np.isnan(levels)] = np.nan  # a signalling NaN would give a warning wherever it is cast
        return levels


def _minifloat(exponent: int, mantissa: int) -> Host:
    """Floats with a sign, some bits of exponent and mantissa, and subnormal numbers; as in IEEE 754, but all finite."""
    code = np.arange(1 << (1 + exponent + mantissa))
    fraction, power = code % (1 << mantissa), (code >> mantissa) % (1 << exponent)
    significand = fraction + (power > 0) * (1 << mantissa)
    bias = (1 << (exponent - 1)) - 1
    sign = np.where(code >> (exponent + mantissa), -1.0, 1.0)
    return sign * np.ldexp(significand.astype(np.float64), np.maximum(power, 1) - bias - mantissa)


def _e4m3() -> Host:
    levels = _minifloat(4, 3)
    levels[[0x7F, 0xFF]] = np.nan
    return levels


def _e5m2() -> Host:
    levels = _minifloat(5, 2)
    for sign in (0x00, 0x80):
        levels[sign + 0x7C : sign + 0x80] = math.inf if sign == 0 else -math.inf, math.nan, math.nan, math.nan
    return levels


def _e8m0() -> Host:
    return np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)


def _dynamic8(*, signed: bool = True) -> Host:
    """Seven ranges, each ten times the last, with 2^i levels in the i-th; without negative ones, 2^(i + 1).

    Rounded as by `torch.linspace`: steps in f32, from the nearer end.
    """
    sizes: list[Host] = []
    for i in range(0 if signed else 1, 7 if signed else 8):
        steps: Host = np.arange((1 << i) + 1)
        low, step = np.float64(np.float32(0.1)), np.float64(np.float32(0.9) / np.float32(2**i))
        bounds = np.where(steps < (2**i + 1) // 2, low + step * steps, 1.0 - step * steps[::-1]).astype(np.float32)
        means = (bounds[:-1] + bounds[1:]) / np.float32(2.0)
        sizes.append(np.float32(10.0 ** (len(sizes) - 6)) * means)
    positive = np.concatenate(sizes)
    negative = -positive if signed else positive[:0]
    return np.sort(np.concatenate([negative, [0.0], positive, [1.0]]).astype(np.float32))


_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_IQ4NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

CODINGS: dict[str, Coding] = {
    # Integers.
    "int8": Coding(8, lambda: np.arange(256).astype(np.int8)),
    "uint8": Coding(8, lambda: np.arange(256)),
    "int4": Coding(4, lambda: np.arange(16) - 8),
    "uint4": Coding(4, lambda: np.arange(16)),
    # Quantiles of the normal distribution (Dettmers et al. 2023, "QLoRA", appendix E), with the digits of bitsandbytes.
    "nf4": Coding(4, lambda: _NF4),
    # bitsandbytes' own floats of 4 bits, a sign and 0.0625, 8, 12, 4, 6, 2 or 3 twelfths.
    "fp4": Coding(4, lambda: np.outer([1.0, -1.0], [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0]).ravel() / 12.0),
    # OCP Microscaling Formats (MX) 1.0, section 5.3; the scales of mxfp4 are e8m0.
    "e2m1": Coding(4, lambda: _minifloat(2, 1)),
    "e8m0": Coding(8, _e8m0),
    # OCP 8-bit Floating Point 1.0: e4m3 has NaN and no infinities.
    "e4m3": Coding(8, _e4m3),
    "e5m2": Coding(8, _e5m2),
    # `kvalues_iq4nl` of GGML, the table of GGUF's IQ4_NL and IQ4_XS.
    "iq4nl": Coding(4, lambda: _IQ4NL),
    # IEEE 754 binary16, and the upper half of a binary32.
    "f16": Coding(16, lambda: np.arange(1 << 16, dtype=np.uint16).view(np.float16)),
    "bf16": Coding(16, lambda: (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)),
    # `create_dynamic_map` of bitsandbytes, signed and unsigned (Dettmers 2015, "8-bit approximations for parallelism").
    "dynamic8": Coding(8, _dynamic8),
    "udynamic8": Coding(8, lambda: _dynamic8(signed=False)),
}
"""The codings, by name."""


# --- on the host


def pack(codes: Host, bits: int) -> Host:
    """Codes [..., n], of which the lowest bits count, as int32 words [..., ceil(n bits / 32)].

    >>> [hex(word) for word in pack(np.arange(9), 4)]
    ['0x76543210', '0x8']
    """
    n = codes.shape[-1]
    words = -(-n * bits // WORD)
    padded = np.zeros((*codes.shape[:-1], words * (WORD // bits)), np.uint16 if bits == 16 else np.uint8)
    padded[..., :n] = codes & ((1 << bits) - 1)
    if bits == 4:
        padded = padded[..., ::2] | (padded[..., 1::2] << 4)
    return padded.astype(padded.dtype.newbyteorder("<")).view("<u4").astype(np.uint32).view(np.int32)


def unpacked_codes(words: Host, bits: int) -> Host:
    """The inverse of `pack`: the codes of words [..., n], [..., 32 n / bits], as uint8, or uint16 if they have 16 bits.

    >>> unpacked_codes(np.array([0x0302]), 8).tolist()
    [2, 3, 0, 0]
    """
    low = np.ascontiguousarray(words).astype(np.uint32, copy=False).astype("<u4", copy=False)
    codes = low.view("<u2").astype(np.uint16, copy=False) if bits == 16 else low.view(np.uint8)
    if bits != 4:
        return codes
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])


class PackedOps(LinalgOps, ReductionOps, IndexingOps):
    """Reading packed matrices, and products with them."""

    def int_unpack(self, words: Array, coding: str) -> Array:
        """The levels, Float [..., 32 n / bits], of the codes in words [..., n], Int."""
        bits, per_word = CODINGS[coding].bits, CODINGS[coding].per_word
        *leading, n = self.shape(words)
        device = self.device_of(words)
        shifts = self.from_host(2 ** (bits * np.arange(per_word)), Int, device)
        words = self.expand_dims(words, (len(leading) + 1,))
        # By floors, so that the sign of a word does not matter.
        codes = self.int_mod(self.int_floordiv(words, shifts), 1 << bits)
        codes = self.reshape(codes, (*leading, n * per_word))
        return self.take(self._from_result(CODINGS[coding].levels, Float, device), codes, 0)

    # --- packed_linear: x [..., columns] @ W' + bias [rows], for a packed matrix W

    def packed_linear(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
    ) -> Array:
        """A dense layer with packed weights, of which some rows at a time are unpacked: [..., rows]."""
        *batch, columns = self.shape(x)
        flat = x if len(batch) == 1 else self.reshape(x, (math.prod(batch), columns))
        rows = self._packed_rows(flat, words, scales, offsets, coding)
        parts = [self._products(flat, weight) for _, weight in rows]
        y = parts[0] if len(parts) == 1 else self.concat(parts, 1)
        if bias is not None:
            y = self.float_add(y, bias)
        return y if len(batch) == 1 else self.reshape(y, (*batch, self.shape(words)[0]))

    def packed_linear_forward(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
    ) -> tuple[Array, Any]:
        """See `packed_linear`."""
        return self.packed_linear(x, words, scales, offsets, bias, coding), (x, words, scales, offsets)

    def packed_linear_backward(self, saved: Any, g: Array, needed: Needed, coding: str) -> Gradients:
        """dx = g W; with dW = g' x: the sum of each group of dW is that of the offset, weighted by levels the scale's.

        For the offsets the sums are taken of x first, so that dW is not needed.
        """
        x, words, scales, offsets = saved
        *batch, columns = self.shape(x)
        m, rows = math.prod(batch), self.shape(words)[0]
        flat, g = self.reshape(x, (m, columns)), self.reshape(g, (m, rows))
        dx = dscales = doffsets = dbias = None
        if needed[0]:
            for part, weight in self._packed_rows(flat, words, scales, offsets, coding):
                product = self.float_matmul(self._some_columns(g, part), weight)
                dx = product if dx is None else self.float_add(dx, product)
            dx = self.reshape(dx, self.shape(x))
        if needed[2]:
            groups = self.shape(scales)[1]
            sums: list[Array] = []
            for part, levels in self._packed_rows(flat, words, None, None, coding):
                dw = self.float_matmul(self.permute_dims(self._some_columns(g, part), (1, 0)), flat)
                by_group = (self.shape(levels)[0], groups, columns // groups)
                sums.append(self.float_sum(self.reshape(self.float_mul(dw, levels), by_group), (2,), False))
            dscales = sums[0] if len(sums) == 1 else self.concat(sums, 0)
        if needed[3]:
            groups = self.shape(offsets)[1]
            of_group = self.float_sum(self.reshape(flat, (m, groups, columns // groups)), (2,), False)
            doffsets = self.float_matmul(self.permute_dims(g, (1, 0)), of_group)
        if needed[4]:
            dbias = self.float_sum(g, (0,), False)
        return dx, None, dscales, doffsets, dbias

    def _packed_rows(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, coding: str
    ) -> Iterator[tuple[slice, Array]]:
        """Some rows of W at a time, and which they are; all at once in a trace, whose compiler fuses it as it likes."""
        rows, columns = self.shape(words)[0], self.shape(x)[1]
        step = rows if self.is_traced(x) or self.is_traced(words) else max(1, BLOCK // max(columns, 1))
        for start in range(0, max(rows, 1), max(step, 1)):
            part = slice(start, min(start + step, rows), 1)
            whole = part.stop - start == rows
            some, factors, added = (
                x if x is None or whole else self._some_rows(x, part) for x in (words, scales, offsets)
            )
            yield part, self._unpacked(some, factors, added, columns, coding)

    def _unpacked(self, words: Array, scales: Array | None, offsets: Array | None, columns: int, coding: str) -> Array:
        """W as Float [rows, columns]."""
        weight = self.int_unpack(words, coding)
        rows, padded = self.shape(weight)
        if padded != columns:
            weight = self._some_columns(weight, slice(0, columns, 1))
        of_groups = offsets if scales is None else scales
        if of_groups is None:
            return weight
        groups = self.shape(of_groups)[1]
        weight = self.reshape(weight, (rows, groups, columns // groups))
        if scales is not None:
            weight = self.float_mul(weight, self.expand_dims(scales, (2,)))
        if offsets is not None:
            weight = self.float_add(weight, self.expand_dims(offsets, (2,)))
        return self.reshape(weight, (rows, columns))

    def _some_rows(self, x: Array, rows: slice) -> Array:
        return self.index(x, (rows, slice(0, self.shape(x)[1], 1)))

    def _some_columns(self, x: Array, columns: slice) -> Array:
        return self.index(x, (slice(0, self.shape(x)[0], 1), columns))
