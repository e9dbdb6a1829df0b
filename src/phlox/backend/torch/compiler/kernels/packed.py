"""Products of few rows with a packed matrix, in programs on a CPU by our own kernel: each code is read once.

PyTorch's kernels for such matrices round x to fewer bits, or take longer than a matrix of f32.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from phlox.backend.contract.nn.packed import CODINGS
from phlox.backend.contract.types import Array
from phlox.backend.torch.compiler.codegen import codegen
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, SIZE, address, load
from phlox.backend.torch.sizes import is_symbolic

_TABLE, _KINDS = 0, {"int8": 1, "uint8": 2}
_FEW = 8
"""The most rows; with more, unpacking costs little beside the product."""
_WORDS_OF_A_THREAD = 1 << 16
"""The number of words that are worth another thread."""


@cache
def _kernel() -> Any:
    multiply = [POINTER, SIZE, SIZE, POINTER, SIZE, SIZE, POINTER, SIZE, POINTER, NUMBER, POINTER, NUMBER]
    return load("packed", {"multiply_packed": multiply})


def suits(x: Array, words: Array, scales: Array | None, coding: str) -> bool:
    """Is there a kernel for these operands, in the program that is being traced?"""
    if codegen() != "inductor" or any(map(is_symbolic, (*x.shape, *words.shape))):
        return False
    if x.device.type != "cpu" or (x.dtype, words.dtype) != (torch.float32, torch.int32):
        return False
    if not 0 < x.shape[0] <= _FEW or not words.numel() or (CODINGS[coding].bits != 4 and coding not in _KINDS):
        return False
    (_, n), groups = words.shape, 1 if scales is None else scales.shape[1]
    if groups > 1 and (x.shape[1] != n * CODINGS[coding].per_word or n % groups):
        return False
    if _kernel() is None:
        return False
    lanes, of_group = _kernel().lanes(), n // groups
    return groups == 1 or of_group % lanes == 0 or lanes % of_group == 0


@cache
def _levels(coding: str) -> torch.Tensor:
    return torch.from_numpy(CODINGS[coding].levels if CODINGS[coding].bits == 4 else CODINGS["int4"].levels)


def _multiply(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor | None, coding: str) -> torch.Tensor:
    x, words, scales = x.contiguous(), words.contiguous(), None if scales is None else scales.contiguous()
    y, groups = x.new_empty((x.shape[0], words.shape[0])), 1 if scales is None else scales.shape[1]
    threads = min(torch.get_num_threads(), 1 + words.numel() // _WORDS_OF_A_THREAD)
    _kernel().multiply_packed(
        x.data_ptr(), *x.shape, words.data_ptr(), *words.shape, address(scales), groups,
        _levels(coding).data_ptr(), _KINDS.get(coding, _TABLE), y.data_ptr(), threads,
    )  # fmt: skip
    return y


def _on_fakes(x: Array, words: Array, scales: Array | None, coding: str) -> Array:
    return x.new_empty((x.shape[0], words.shape[0]))


_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("multiply_packed(Tensor x, Tensor words, Tensor? scales, str coding) -> Tensor")
_library.impl("multiply_packed", _multiply, "CPU")
torch.library.register_fake("phlox::multiply_packed", _on_fakes, lib=_library)
operations: Any = torch.ops.phlox
