"""Order: sorting, searching, counting on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.torch.sizes import is_symbolic


class Sorting(Backend):
    """See `phlox.backend.contract.sorting`."""

    torch_int: torch.dtype

    def float_argsort(self, x: Array, axis: int, descending: bool) -> Array:
        return torch.sort(x, dim=axis, descending=descending, stable=True).indices.to(self.torch_int)

    int_argsort = float_argsort

    def float_sort(self, x: Array, axis: int, descending: bool) -> Array:
        return torch.sort(x, dim=axis, descending=descending, stable=True).values

    int_sort = float_sort

    def float_argtopk(self, x: Array, k: int, axis: int, largest: bool) -> Array:
        if x.dtype.itemsize > 4 or is_symbolic(x.numel()) or x.numel() < 4096:
            return self._leading(self.float_argsort(x, axis, largest), k, axis)
        # torch returns any of equal elements; with their indices in the lower bits, no two are equal.
        keys = x
        if x.dtype.is_floating_point:
            bits = (x.float() + 0.0).view(torch.int32)
            keys = torch.where(torch.isnan(x), 2**31 - 1, bits ^ ((bits >> 31) & (2**31 - 1)))
        size = x.shape[axis]
        indices = torch.arange(size, device=x.device).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        packed = (keys.long() << 32) | (size - 1 - indices if largest else indices)
        picked = torch.topk(packed, k, axis, largest).values & (2**32 - 1)
        return (size - 1 - picked if largest else picked).to(self.torch_int)

    int_argtopk = float_argtopk

    def float_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        # torch defines no position of NaN. As infinities they sort right, except beside real infinities (see below).
        size = x.shape[-1]
        undefined = torch.isnan(x)
        numbers = size - undefined.sum(-1, keepdim=True, dtype=self.torch_int)
        counts = self.int_searchsorted(torch.where(undefined, torch.inf, x), values, right)
        counts = torch.minimum(counts, numbers)
        return torch.where(torch.isnan(values), size if right else numbers, counts).to(self.torch_int)

    def int_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        options: Any = {"right": right}
        return torch.searchsorted(x.contiguous(), values.contiguous(), **options).to(self.torch_int)
