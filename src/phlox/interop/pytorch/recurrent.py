"""PyTorch's parameter names for recurrent layers, and the conversion of its two biases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import RecordError
from phlox.interop.adapter import Rule, transpose
from phlox.interop.adapter.pattern import Pattern
from phlox.interop.pytorch.layers import register_layer
from phlox.nn import Gru, GruCell, Lstm, LstmCell, Rnn, RnnCell
from phlox.nn.recurrent import Cell, Stack
from phlox.record import LazyTensor


@dataclass(frozen=True, slots=True)
class TwoBiases:
    """PyTorch's input bias and state bias are one bias of ours, their sum. Writing sets the second one to zero.

    With `own`, the last third of the second stays separate: the recurrent bias of a GRU.
    """

    own: bool

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `phlox.interop.adapter.layout.Layout`."""
        first, second = tensors
        if len(first.shape) != 1 or first.shape != second.shape or (self.own and first.shape[0] % 3):
            raise RecordError(f"biases of shapes {first.shape} and {second.shape} are not those of one recurrent layer")
        if not self.own:
            return [first.map(lambda array: array + second.read(), first.shape)]
        width = first.shape[0] // 3
        kept = np.repeat(np.array([1, 1, 0], first.dtype), width)
        whole = first.map(lambda array: array + second.read() * kept, first.shape)
        return [whole, second.map(lambda array: array[2 * width :], (width,))]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `phlox.interop.adapter.layout.Layout`."""
        first = tensors[0]
        if not self.own:
            return [first, first.map(np.zeros_like, first.shape)]
        second = tensors[1]
        width = second.shape[0]
        return [first, second.map(lambda array: np.pad(array, (2 * width, 0)), (3 * width,))]


def _of_cell(cell: Cell[Any], ours: str = "", end: str = "") -> Iterable[Rule]:
    """Rules for a cell at `ours`, whose names in PyTorch end with `end`."""
    yield transpose(f"weight_ih{end}", f"{ours}weight")
    yield transpose(f"weight_hh{end}", f"{ours}recurrent")
    names = [f"{ours}bias", f"{ours}recurrent_bias"][: 1 + cell.own_bias]
    torch_biases = Pattern(f"bias_ih{end}"), Pattern(f"bias_hh{end}")
    yield Rule(torch_biases, tuple(map(Pattern, names)), TwoBiases(cell.own_bias))


def _of_stack(layer: Stack[Any]) -> Iterable[Rule]:
    for index, cell in enumerate(layer.layers):
        yield from _of_cell(cell, f"layers.{index}.", f"_l{index}")
    for index, cell in enumerate(layer.reverse_layers):
        yield from _of_cell(cell, f"reverse_layers.{index}.", f"_l{index}_reverse")


for _class in (Lstm, Gru, Rnn):
    register_layer(_class, _of_stack)
for _class in (LstmCell, GruCell, RnnCell):
    register_layer(_class, _of_cell)
