"""Moments of 8 bits, for the rules that have them."""

from __future__ import annotations

from typing import Any

from phlox.config import BaseConfig
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.blocks import BLOCK, Blocks, StateBits
from phlox.optim.state.tree import State
from phlox.tensor import concat

LEAST = 4096
"""The least number of elements of a parameter: the moments of smaller ones stay in floats, as in bitsandbytes."""
PORTION = 1 << 20
"""The most elements that are in floats at once, where arrays have values: whole blocks."""


class SmallStates(SimpleOptimizer):
    """An elementwise rule whose moments are stored in 8 bits, see `Blocks`; each step is computed in floats."""

    shares_counts = True

    def __init__(self, config: BaseConfig, rule: Rule[Any]) -> None:
        self.config, self.rule = config, rule

    def init(self, tensor: AnyTensor) -> State:
        state = self.rule.init(tensor)
        return state if tensor.size < LEAST else self._stored(state, state.keys() - self.rule.scalars)

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        backend, size = tensor.backend, tensor.size
        if size <= PORTION or backend.has_slices or backend.is_traced(tensor.primitive):
            return self._stepped(lr, tensor, grad, state)
        flat, grads = tensor.reshape(size), grad.reshape(size)
        results: list[tuple[AnyTensor, State]] = []
        for start in range(0, size, PORTION):
            part = {name: _portion(value, start) for name, value in state.items()}
            results.append(self._stepped(lr, flat[start : start + PORTION], grads[start : start + PORTION], part))
        states = [state for _, state in results]
        after = {name: _joined([state[name] for state in states]) for name in state}
        return concat([x for x, _ in results], 0).reshape(tensor.shape), after

    def _stepped(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
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


def _portion(part: Any, start: int) -> Any:
    """What belongs to the elements from `start` on."""
    if not isinstance(part, Blocks):
        return part
    blocks = slice(start // BLOCK, (start + PORTION) // BLOCK)
    return Blocks(part.codes[blocks], part.scales[blocks], part.coding)


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if not isinstance(first, Blocks):
        return first
    return Blocks(concat([part.codes for part in parts], 0), concat([part.scales for part in parts], 0), first.coding)


def with_bits(rule: Rule[Any], bits: StateBits) -> SimpleOptimizer:
    """The rule, with moments of so many bits."""
    return rule if bits == 32 else SmallStates(rule.config, rule)
