"""Moments of 8 bits, for the rules that have them."""

from __future__ import annotations

from typing import Any

from phlox.config import BaseConfig
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.blocks import Blocks, StateBits
from phlox.optim.state.tree import State

LEAST = 4096
"""The least number of elements of a parameter: the moments of smaller ones stay in floats, as in bitsandbytes."""


class SmallStates(SimpleOptimizer):
    """A rule whose moments are stored in 8 bits, see `Blocks`; each step is computed in floats."""

    shares_counts = True

    def __init__(self, config: BaseConfig, rule: Rule[Any]) -> None:
        self.config, self.rule = config, rule

    def init(self, tensor: AnyTensor) -> State:
        state = self.rule.init(tensor)
        return state if tensor.size < LEAST else self._stored(state, state.keys() - self.rule.scalars)

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        packed = {name for name, part in state.items() if isinstance(part, Blocks)}
        floats = {name: part.values(tensor.shape) if name in packed else part for name, part in state.items()}
        tensor, after = self.rule.step(lr, tensor, grad, floats)
        return tensor, self._stored(after, packed)

    def _stored(self, state: State, packed: set[str]) -> State:
        squares = self.rule.squares
        return {
            name: Blocks.of(part, "udynamic8" if name in squares else "dynamic8") if name in packed else part
            for name, part in state.items()
        }


def with_bits(rule: Rule[Any], bits: StateBits) -> SimpleOptimizer:
    """The rule, with moments of so many bits."""
    return rule if bits == 32 else SmallStates(rule.config, rule)
