"""Mixtures of experts on PyTorch: eager code has one product for each expert with rows."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.experts import rows_by_expert
from phlox.backend.contract.types import Array
from phlox.backend.torch.tracer import is_tracer


def _rows_of(experts: Array, n: int) -> list[tuple[int, Array]]:
    """Each expert that has rows, and their numbers."""
    groups = rows_by_expert(experts.cpu().numpy(), n)
    return [(expert, torch.from_numpy(rows).to(experts.device)) for expert, rows in groups]


class Experts(Backend):
    """See `phlox.backend.contract.nn.experts`."""

    def expert_linear(self, x: Array, weight: Array, experts: Array) -> Array:
        if is_tracer(x) or not x.shape[0]:
            return super().expert_linear(x, weight, experts)
        y = x.new_empty((x.shape[0], weight.shape[2]))
        for expert, rows in _rows_of(experts, weight.shape[0]):
            y.index_copy_(0, rows, x.index_select(0, rows) @ weight[expert])
        return y

    def expert_linear_dw(self, x: Array, g: Array, experts: Array, n: int) -> Array:
        if is_tracer(x) or not x.shape[0]:
            return super().expert_linear_dw(x, g, experts, n)
        dw = x.new_zeros((n, x.shape[1], g.shape[1]))
        for expert, rows in _rows_of(experts, n):
            torch.mm(x.index_select(0, rows).t(), g.index_select(0, rows), out=dw[expert])
        return dw
