"""Packed matrices on JAX: the words' bits are taken as narrow integers or floats, which XLA converts in its loops."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.packed import CODINGS, PackedOps
from phlox.backend.contract.types import Array
from phlox.backend.jax.fused import fused

_DTYPES = {
    "int8": jnp.int8, "uint8": jnp.uint8, "e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2, "f16": jnp.float16,
    "bf16": jnp.bfloat16,
}  # fmt: skip
"""The types whose bits are the codes."""

_ZEROS = {"int4": 8, "uint4": 0}
"""The code of zero."""

_BLOCK = 1 << 19
"""The number of elements that are unpacked at once."""


def _level(self: Any, words: Array, coding: str, position: int) -> Array:
    """The level of each word's code at this position."""
    bits, dtype = CODINGS[coding].bits, _DTYPES.get(coding)
    codes = lax.shift_right_logical(words, jnp.full_like(words, bits * position)) & ((1 << bits) - 1)
    if dtype is not None:
        return lax.bitcast_convert_type(codes.astype(f"uint{bits}"), dtype).astype(self.jax_float)
    if coding in _ZEROS:
        return (codes - _ZEROS[coding]).astype(self.jax_float)
    table = CODINGS[coding].levels
    if bits > 4:
        return jnp.asarray(table, self.jax_float).at[codes].get(mode="promise_in_bounds")
    levels = [jnp.asarray(level, self.jax_float) for level in table]
    for bit in range(bits):  # by selections, which are vectors' and a table is not
        is_set = (codes >> bit) & 1 == 1
        levels = [jnp.where(is_set, high, low) for low, high in zip(levels[::2], levels[1::2], strict=True)]
    return levels[0]


def _int_unpack(self: Any, words: Array, coding: str) -> Array:
    """As in the contract."""
    words = words.astype(jnp.int32)
    *leading, n = words.shape
    levels = jnp.stack([_level(self, words, coding, i) for i in range(CODINGS[coding].per_word)], -1)
    return levels.reshape(*leading, n * CODINGS[coding].per_word)


def _packed_linear(
    self: Any, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
) -> Array:
    """As in the contract; a large matrix is multiplied in a loop over some rows at a time, and over codes of a word.

    XLA would unpack all of it for one product, into four to eight times the memory, and writing that takes longer than
    the product. On an accelerator, and where matrices may be sharded, that is left to the compiler.
    """
    *batch, columns = x.shape
    (rows, n), per_word, m = words.shape, CODINGS[coding].per_word, math.prod(batch)
    of_groups = offsets if scales is None else scales
    groups, step = 1 if of_groups is None else of_groups.shape[1], max(1, _BLOCK // max(columns, 1))
    fits = columns == n * per_word and n % groups == 0
    if not fits or rows <= step or jax.default_backend() != "cpu" or jax.device_count() > 1:
        return PackedOps.packed_linear(self, x, words, scales, offsets, bias, coding)
    factors = jnp.moveaxis(x.reshape(m, n, per_word), (2, 1), (0, 1))

    def product(words: Array, scales: Array | None) -> Array:
        levels = [_level(self, words.astype(jnp.int32), coding, i) for i in range(per_word)]
        if m > 1:
            spread = 1.0 if scales is None else jnp.repeat(scales, n // groups, 1)
            return sum(lax.dot(level * spread, factor) for level, factor in zip(levels, factors, strict=True))
        sums: Array = sum(level * factor[:, 0] for level, factor in zip(levels, factors, strict=True))
        if scales is not None:
            sums = (sums.reshape(step, groups, n // groups) * scales[:, :, None]).reshape(step, n)
        return lax.dot(sums, jnp.ones((n, 1), x.dtype))  # XLA's own sum takes number after number

    def multiply(i: Array, y: Array) -> Array:
        start = jnp.minimum(i * step, rows - step)  # the last block begins within the one before
        parts = [None if part is None else lax.dynamic_slice_in_dim(part, start, step) for part in (words, scales)]
        return lax.dynamic_update_slice_in_dim(y, product(*parts), start, 0)

    y = lax.fori_loop(0, -(-rows // step), multiply, jnp.zeros((rows, m), x.dtype)).T
    if offsets is not None:
        y = y + lax.dot(x.reshape(m, groups, columns // groups).sum(2), offsets.T)
    return (y if bias is None else y + bias).reshape(*batch, rows)


class Packed(Backend):
    """See `phlox.backend.contract.nn.packed`."""

    int_unpack = fused(_int_unpack, 1)
    packed_linear = fused(_packed_linear, 5)
    packed_linear_backward = fused(PackedOps.packed_linear_backward, 2, 3)
