"""Packed matrices on PyTorch: codes are views of the words; in programs few rows are multiplied by our own kernel."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import math
import sys

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.packed import BLOCK, CODINGS
from phlox.backend.contract.types import Array
from phlox.backend.kind import Float
from phlox.backend.torch.compiler.codegen import is_on
from phlox.backend.torch.compiler.kernels import packed as own_kernel
from phlox.backend.torch.sizes import is_symbolic
from phlox.backend.torch.tracer import is_fused, is_traced_by_others, is_tracer

_DTYPES = {
    "int8": torch.int8, "uint8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
"""The types whose bits are the codes."""
_ZEROS = {"int4": 8, "uint4": 0}
"""The code of zero."""
_FEW = 8
"""The most rows of x for which scales multiply sums. With more, one product of matrices of a block takes less time."""
_BLOCK = 1 << 19
"""The number of elements that are unpacked at once, which stay in the cache."""


def _low(words: Array) -> Array:
    return words.to(torch.int32).contiguous()


class Packed(Backend):
    """See `phlox.backend.contract.nn.packed`."""

    torch_float: torch.dtype

    def int_unpack(self, words: Array, coding: str) -> Array:
        if sys.byteorder == "big":
            return super().int_unpack(words, coding)
        codes, coded = _low(words), _DTYPES.get(coding)
        if coded is not None:
            return codes.view(coded).to(self.torch_float)
        codes = codes.view(torch.uint8)
        if CODINGS[coding].bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        if coding in _ZEROS:
            return codes.to(self.torch_float) - _ZEROS[coding]
        return self._from_result(CODINGS[coding].levels, Float, self.device_of(words))[codes.int()]

    def packed_linear(
        self, x: Array, words: Array, scales: Array | None, offsets: Array | None, bias: Array | None, coding: str
    ) -> Array:
        *batch, columns = x.shape
        if any(map(is_symbolic, batch)) or not 0 < math.prod(batch) <= _FEW or not words.numel():
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
        """x [m, columns] times W' without offsets; the scales multiply sums of groups."""
        (m, columns), rows = x.shape, words.shape[0]
        groups = 1 if scales is None else scales.shape[1]
        factors = x.reshape(m, groups, columns // groups).permute(1, 2, 0)
        step = max(1, (_BLOCK if x.device.type == "cpu" else BLOCK) // columns)
        parts: list[Array] = []
        for start in range(0, rows, step):
            some = slice(start, start + step)
            levels = self._unpacked(words[some], None, None, columns, coding)
            if scales is None:
                parts.append(x @ levels.t())
                continue
            sums = torch.matmul(levels.reshape(-1, groups, columns // groups).transpose(0, 1), factors)
            parts.append((sums * scales[some].t()[..., None]).sum(0).t())
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
