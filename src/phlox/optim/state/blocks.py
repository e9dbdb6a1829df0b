"""Tensors of a state in 8 bits: blocks of elements, each with a scale of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from phlox.backend import Int
from phlox.optim.state.tree import Mastered, State
from phlox.record import LazyTensor
from phlox.tensor import Tensor, functional, where

BLOCK = 256
"""The number of elements that share a scale, as in bitsandbytes."""
StateBits: TypeAlias = Literal[8, 32]
"""How many bits an element of a moment takes."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tensor in 8 bits (Dettmers et al. 2022: "8-bit optimizers via block-wise quantization").

    Its elements in order, with zeros to a whole number of blocks, are levels of a coding times the scale of the block,
    which is its largest magnitude.
    """

    codes: Tensor[Any, Any, Int]
    """Words of four codes, [blocks, 64]."""
    scales: Tensor
    """[blocks, 1]."""
    coding: str
    """Its levels: "dynamic8" from -1 to 1, "udynamic8" from 0 to 1."""

    @staticmethod
    def of(x: Tensor, coding: str) -> Blocks:
        """The nearest levels. An unsigned element above zero gets a level above zero, because it will divide."""
        blocks = x.reshape(x.size).pad(((0, -x.size % BLOCK),)).reshape((-1, BLOCK))
        scales = blocks.abs().max(axis=1, keepdims=True)
        levels = blocks / where(scales == 0.0, 1.0, scales)
        codes = functional.encode(levels, coding)
        if coding == "udynamic8":
            codes = codes.maximum((blocks > 0.0).int())
        # On the device of the tensor, which may say how arrays are cut among processes.
        return Blocks(functional.pack(codes, coding).to_device(x.device), scales.to_device(x.device), coding)

    def values(self, shape: tuple[int, ...]) -> Tensor:
        """The tensor in floats, of this shape."""
        levels = functional.unpack(self.codes, self.coding) * self.scales
        return levels.reshape(levels.size)[: math.prod(shape)].reshape(shape)


def in_form_of(form: State, state: State, shape: tuple[int, ...]) -> State:
    """The state of a parameter of this shape, with its tensors in 8 bits where they are in another state of it."""
    if isinstance(state, Mastered):
        return Mastered(state.master, in_form_of(form, state.state, shape))
    if type(form) is dict and type(state) is dict:
        forms, parts = cast("dict[Any, Any]", form), cast("dict[Any, Any]", state)
        return {key: in_form_of(forms.get(key), part, shape) for key, part in parts.items()}
    if isinstance(form, Blocks) and isinstance(state, Tensor):
        return Blocks.of(cast("Tensor", state), form.coding)
    if isinstance(form, (Tensor, LazyTensor)) and isinstance(state, Blocks):
        return state.values(shape)
    return state
