"""Packed matrices on PyTorch: codes are views of the words; in programs few rows are multiplied by our own kernel."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import numpy as np
import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.packed import BLOCK, CODINGS, unpacked_codes
from phlox.backend.contract.types import Array
from phlox.backend.kind import Float
from phlox.backend.torch.compiler.codegen import is_on
from phlox.backend.torch.compiler.kernels import packed as own_kernel
from phlox.backend.torch.sizes import is_empty, is_symbolic
from phlox.backend.torch.tracer import is_fused, is_traced_by_others, is_tracer

_DTYPES = {
    "int8": torch.int8, "uint8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
"""The types whose bits are the codes."""
_ZEROS = {"int4": 8, "uint4": 0}
"""The code of zero."""
_FEW = 8
"""The most rows of x for which a program unpacks nothing; with more, a product of matrices takes less time."""
_BLOCK = 1 << 19
"""The number of elements that are unpacked at once, which stay in the cache."""


_TWICE = {
    torch.float64: torch.complex128, torch.float32: torch.int64, torch.float16: torch.int32,
    torch.bfloat16: torch.int32,
}  # fmt: skip
"""Types of twice the size."""


@cache
def _pairs(coding: str) -> np.ndarray[Any, Any]:
    """The two levels of every byte."""
    return CODINGS[coding].levels[unpacked_codes(np.arange(256, dtype=np.int32)[:, None], 4)[:, :2]]


def _low(words: Array) -> Array:
    """Words as 32 bits each, whose bits can be viewed as other types."""
    low = words.to(torch.int32).contiguous()
    # Along an axis of size 1 every stride counts as contiguous, but not to `view`.
    return low if low.stride(-1) == 1 else low.clone(memory_format=torch.contiguous_format)


class Packed(Backend):
    """See `phlox.backend.contract.nn.packed`."""

    torch_float: torch.dtype

    def int_unpack(self, words: Array, coding: str) -> Array:
        if sys.byteorder == "big" or is_empty(words):
            return super().int_unpack(words, coding)
        codes, coded = _low(words), _DTYPES.get(coding)
        if coded is not None:
            return codes.view(coded).to(self.torch_float, copy=True)
        codes = codes.view(torch.uint8)
        if coding not in _ZEROS and CODINGS[coding].bits == 4 and not is_tracer(words):
            # Two levels at a time; `index_select` is by far the fastest way to read a table.
            pairs = torch.from_numpy(_pairs(coding)).to(words.device, self.torch_float)
            pairs = pairs.view(_TWICE[self.torch_float])[:, 0].index_select(0, codes.flatten().int())
            return pairs.view(self.torch_float).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
        if CODINGS[coding].bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        if coding in _ZEROS:
            return codes.to(self.torch_float) - _ZEROS[coding]
        table, indices = self._from_result(CODINGS[coding].levels, Float, self.device_of(words)), codes.int()
        return table[indices] if is_tracer(words) else table.index_select(0, indices.flatten()).reshape(codes.shape)

    def packed_linear(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
    ) -> Array:
        *batch, columns = x.shape
        m = 0 if any(map(is_symbolic, batch)) else math.prod(batch)
        if not 0 < m <= (_FEW if is_tracer(x) else 1) or not words.numel():
            return super().packed_linear(x, words, scales, offsets, bias, coding)
        flat, rows = x.reshape(-1, columns), words.shape[0]
        if not is_tracer(x):
            y = self._by_blocks(flat, words, scales, coding)
        elif is_traced_by_others() or not is_fused(x):
            return super().packed_linear(x, words, scales, offsets, bias, coding)
        elif is_on("packed") and own_kernel.suits(flat, words, scales, coding):
            y = own_kernel.operations.multiply_packed(flat, words, scales, coding)
        else:
            # As a sum of products, into which the compiler fuses the unpacking; a product of matrices would be a call.
            weight = self._unpacked(words, scales, None, columns, coding)
            y = torch.stack([(weight * row).sum(1) for row in flat])
        if offsets is not None:
            y = y + flat.reshape(flat.shape[0], offsets.shape[1], -1).sum(2) @ offsets.t()
        return (y if bias is None else y + bias).reshape(*batch, rows)

    def _by_blocks(self, x: Array, words: Array, scales: Array | None, coding: str) -> Array:
        """x [1, columns] times W' without offsets; the scales multiply sums of groups."""
        columns, rows = x.shape[1], words.shape[0]
        groups = 1 if scales is None else scales.shape[1]
        width = columns // groups
        # Even and odd columns apart, if these are the low and high halves of bytes.
        parts = 2 if coding in _ZEROS and width % 2 == 0 and sys.byteorder == "little" else 1
        factors = [x[0, part::parts].contiguous() for part in range(parts)]
        ones = x.new_ones(width // parts)
        step = max(1, (_BLOCK if x.device.type == "cpu" else BLOCK) // columns)
        results: list[Array] = []
        for start in range(0, rows, step):
            some = slice(start, start + step)
            levels = self._columns_in_parts(words[some], columns, parts, coding)
            if scales is None:
                results.append(torch.stack([torch.mv(*pair) for pair in zip(levels, factors, strict=True)]).sum(0))
                continue
            products = levels[0] * factors[0]
            for level, factor in zip(levels[1:], factors[1:], strict=True):
                products = torch.addcmul(products, level, factor)
            sums = torch.mv(products.view(-1, width // parts), ones).view(-1, groups)
            results.append((sums * scales[some]).sum(1))
        return (results[0] if len(results) == 1 else torch.cat(results))[None]

    def _columns_in_parts(self, words: Array, columns: int, parts: int, coding: str) -> list[Array]:
        if parts == 1:
            return [self._unpacked(words, None, None, columns, coding).contiguous()]
        codes = _low(words).view(torch.uint8)[:, : columns // 2]
        return [part.sub_(_ZEROS[coding]).view(torch.int8).to(self.torch_float) for part in (codes & 15, codes >> 4)]
