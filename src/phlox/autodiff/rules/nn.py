"""Composites of neural networks: those for which the contract has a forward and a backward function; see `contract.nn`.

The backward function of several results gets one gradient a result.
"""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, MultiOutputRule, Result, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.signatures import COMPOSITES, SEVERAL
from phlox.backend.contract.types import Array, Gradients, Needed


def _composite(name: str, operands: int) -> Rule:
    to_result, to_gradients = f"{name}_forward", f"{name}_backward"

    def forward(B: Backend, *arguments: Any) -> Result:
        return getattr(B, to_result)(*arguments)

    def backward(B: Backend, saved: Any, g: Array, needed: Needed, *options: Any) -> Gradients:
        return getattr(B, to_gradients)(saved, g, needed, *options)

    return (MultiOutputRule if name in SEVERAL else General)(operands, forward, backward)


def _expert_dw_forward(B: Backend, x: Array, g: Array, experts: Array, n: int) -> Result:
    return B.expert_linear_dw(x, g, experts, n), (x, g, experts)


def _expert_dw(B: Backend, saved: Any, h: Array, needed: Needed, n: int) -> Gradients:
    x, g, experts = saved
    dx = B.expert_linear(g, B.permute_dims(h, (0, 2, 1)), experts) if needed[0] else None
    dg = B.expert_linear(x, h, experts) if needed[1] else None
    return dx, dg, None


NN: dict[str, Rule] = {
    **{name: _composite(name, operands) for name, operands in COMPOSITES.items()},
    "expert_linear_dw": General(3, _expert_dw_forward, _expert_dw),
}
