"""An LSTM in programs on a CPU by our own kernel, faster than oneDNN's.

GEMMs that do not depend on the previous step (for the whole input, and in the backward pass for the weights) are
computed like any other; the kernel computes only the steps.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from phlox.backend.contract.types import Array
from phlox.backend.torch.compiler.codegen import codegen
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, SIZE, address, integers, load
from phlox.backend.torch.compiler.kernels.gemm import product
from phlox.backend.torch.compiler.kernels.gemm import suits as suits_product
from phlox.backend.torch.compiler.passes.weight_cache import WeightCache

_GATES = 4

# --- the kernel


@cache
def _kernel() -> Any:
    order = [POINTER, SIZE, POINTER, NUMBER]
    steps = {"forward": [*[POINTER] * 9, NUMBER], "backward": [*[POINTER] * 10, NUMBER]}
    return load("lstm", {"put_forward": order, "put_backward": order, **steps})


def suits(recurrent: Array) -> bool:
    """Is there a kernel for states of this width, in the program that is being traced?"""
    return codegen() == "inductor" and _kernel() is not None and recurrent.shape[0] % (2 * _kernel().lanes()) == 0


def _pack(recurrent: torch.Tensor, put: Any) -> torch.Tensor:
    """A recurrent weight as the kernel reads it."""
    recurrent = recurrent.contiguous()
    packed = torch.empty_like(recurrent)
    put(recurrent.data_ptr(), recurrent.shape[0], packed.data_ptr(), torch.get_num_threads())
    return packed


def _pack_forward(recurrent: torch.Tensor) -> torch.Tensor:
    return _pack(recurrent.detach(), _kernel().put_forward)


_packed_recurrent = WeightCache(_pack_forward)
"""Packed recurrent weights, for inference."""


def _sizes(x: torch.Tensor, recurrent: torch.Tensor, reverse: bool) -> Any:
    return integers(*x.shape[:2], recurrent.shape[0], reverse)


def after(states: Any, reverse: bool) -> Any:
    """The hidden states after each step, which are the result, from all states including the first."""
    return states[:-1] if reverse else states[1:]


def before(states: Any, reverse: bool) -> Any:
    """The hidden states before each step, from all states including the first."""
    return states[1:] if reverse else states[:-1]


def _run_steps(
    packed: torch.Tensor,
    x: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    recurrent: torch.Tensor,
    bias: torch.Tensor | None,
    reverse: bool,
    gemm: bool = True,
    *,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    """The result and the last cells; for the backward pass all states, the cells, and the gates over their input."""
    flat = x.reshape(-1, x.shape[2])
    multiply = product if gemm and suits_product(flat, weight) else torch.mm
    gates = multiply(flat, weight)  # the steps add the bias: the library would first write it to all rows
    hidden, last = hidden.contiguous(), cell.clone(memory_format=torch.contiguous_format)
    bias = None if bias is None else bias.contiguous()
    if train:
        states, cells = (x.new_empty((count, *hidden.shape)) for count in (len(x) + 1, len(x)))
        states[-1 if reverse else 0] = hidden
        y = after(states, reverse)
    else:
        y, states, cells = x.new_empty((len(x), *hidden.shape)), None, None
    arguments = map(address, (gates, bias, packed, hidden, last, y, gates if train else None, cells))
    _kernel().forward(_sizes(x, recurrent, reverse), *arguments, torch.get_num_threads())
    return (y, last) if states is None or cells is None else (states, cells, gates.view(*x.shape[:2], -1))


def _infer(*operands: Any) -> tuple[torch.Tensor, ...]:
    return _run_steps(_packed_recurrent(operands[4]), *operands, train=False)


def _forward(*operands: Any) -> tuple[torch.Tensor, ...]:
    return _run_steps(_pack_forward(operands[4]), *operands, train=True)


def _backward(
    gates: torch.Tensor,
    cells: torch.Tensor,
    cell: torch.Tensor,
    recurrent: torch.Tensor,
    g: torch.Tensor,
    g_hidden: torch.Tensor,
    g_cell: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """The gradients of the gates before their activation, of the first states, and of the bias."""
    packed, d_gates = _pack(recurrent, _kernel().put_backward), torch.empty_like(gates)
    dh, dc = (gradient.clone(memory_format=torch.contiguous_format) for gradient in (g_hidden, g_cell))
    cell, g = cell.contiguous(), g.contiguous()
    sums = gates.new_zeros(gates.shape[1:])
    arguments = map(address, (gates, cells, cell, packed, g, dh, dc, d_gates, sums))
    _kernel().backward(_sizes(g, recurrent, reverse), *arguments, torch.get_num_threads())
    return d_gates, dh, dc, sums.sum(0)


# --- the operations

_library = torch.library.Library("phlox", "FRAGMENT")
_OPERANDS = (
    "Tensor x, Tensor hidden, Tensor cell, Tensor weight, Tensor recurrent, Tensor? bias, bool reverse, bool gemm=True"
)
_library.define(f"lstm_steps({_OPERANDS}) -> (Tensor, Tensor)")
_library.define(f"lstm_steps_forward({_OPERANDS}) -> (Tensor, Tensor, Tensor)")
_library.define(
    "lstm_steps_backward(Tensor gates, Tensor cells, Tensor cell, Tensor recurrent, Tensor g, Tensor g_hidden, "
    "Tensor g_cell, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.impl("lstm_steps", _infer, "CPU")
_library.impl("lstm_steps_forward", _forward, "CPU")
_library.impl("lstm_steps_backward", _backward, "CPU")
operations: Any = torch.ops.phlox


def _use_on_fakes(x: Any, hidden: Any, cell: Any, *_: Any) -> tuple[Any, Any]:
    return x.new_empty((*x.shape[:2], hidden.shape[1])), x.new_empty(cell.shape)


def _forward_on_fakes(x: Any, hidden: Any, *_: Any) -> tuple[Any, Any, Any]:
    states, cells = (x.new_empty((count, *hidden.shape)) for count in (x.shape[0] + 1, x.shape[0]))
    return states, cells, x.new_empty((*x.shape[:2], _GATES * hidden.shape[1]))


def _backward_on_fakes(gates: Any, _: Any, cell: Any, *__: Any) -> tuple[Any, ...]:
    return tuple(
        like.new_empty(shape)
        for like, shape in ((gates, gates.shape), *[(cell, cell.shape)] * 2, (gates, gates.shape[2:]))
    )


torch.library.register_fake("phlox::lstm_steps", _use_on_fakes, lib=_library)
torch.library.register_fake("phlox::lstm_steps_forward", _forward_on_fakes, lib=_library)
torch.library.register_fake("phlox::lstm_steps_backward", _backward_on_fakes, lib=_library)
