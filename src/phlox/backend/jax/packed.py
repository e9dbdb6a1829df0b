"""Packed matrices on JAX: the words' bits are taken as narrow integers or floats, which XLA converts in its loops."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

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


def _int_unpack(self: Any, words: Array, coding: str) -> Array:
    """As in the contract."""
    words, dtype = words.astype(jnp.int32), _DTYPES.get(coding)
    *leading, n = words.shape
    shape = (*leading, n * CODINGS[coding].per_word)
    if dtype is not None:
        return lax.bitcast_convert_type(words, dtype).reshape(shape).astype(self.jax_float)
    bits, per_word = CODINGS[coding].bits, CODINGS[coding].per_word
    shifts = bits * jnp.arange(per_word, dtype=jnp.int32)
    codes = (
        lax.shift_right_logical(words[..., None], jnp.broadcast_to(shifts, (*words.shape, per_word)))
        & ((1 << bits) - 1)
    ).reshape(shape)
    if coding in ("int4", "uint4"):
        return (codes - (8 if coding == "int4" else 0)).astype(self.jax_float)
    levels = jnp.asarray(CODINGS[coding].levels, self.jax_float)
    return levels.at[codes].get(mode="promise_in_bounds")


def _packed_linear(
    self: Any, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
) -> Array:
    """As in the contract; for one row as a sum of products, into which XLA fuses the unpacking."""
    *batch, columns = x.shape
    if math.prod(batch) != 1:
        return PackedOps.packed_linear(self, x, words, scales, offsets, bias, coding)
    weight = self._unpacked(words, scales, offsets, columns, coding)
    y = jnp.sum(weight * x.reshape(columns), 1)
    return (y if bias is None else y + bias).reshape(*batch, words.shape[0])


class Packed(Backend):
    """See `phlox.backend.contract.nn.packed`."""

    int_unpack = fused(_int_unpack, 1)
    packed_linear = fused(_packed_linear, 5)
    packed_linear_backward = fused(PackedOps.packed_linear_backward, 2, 3)
