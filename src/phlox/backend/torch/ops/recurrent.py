"""LSTM by oneDNN, and in programs by our own kernel, forward and backward; other cells by the contract's loop."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import is_on
from phlox.backend.torch.compiler.kernels import lstm as own_kernel
from phlox.backend.torch.cpu import onednn_lstm as onednn
from phlox.backend.torch.sizes import is_empty
from phlox.backend.torch.tracer import is_traced_by_others, is_tracer


class Recurrent(Backend):
    """See `phlox.backend.contract.nn.recurrent`."""

    def lstm(
        self,
        x: Array,
        hidden: Array,
        cell: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[Array, Array, Array]:
        if not _is_supported(alive, x, hidden, cell, weight, recurrent, bias):
            return super().lstm(x, hidden, cell, weight, recurrent, bias, alive, reverse)
        if is_tracer(x) and is_on("lstm") and own_kernel.suits(recurrent):
            y, last = own_kernel.operations.lstm_steps(x, hidden, cell, weight, recurrent, bias, reverse, is_on("gemm"))
            return y, y[0 if reverse else -1], last
        run = onednn.operations.lstm if is_tracer(x) else onednn.lstm
        states = hidden.contiguous(), cell.contiguous()
        # The weights as they are: their packed form is cached by their identity.
        return run(x.contiguous(), *states, weight, recurrent, None if bias is None else bias.contiguous(), reverse)

    def lstm_forward(
        self,
        x: Array,
        hidden: Array,
        cell: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[tuple[Array, Array, Array], Any]:
        if not _is_supported(alive, x, hidden, cell, weight, recurrent, bias):
            return super().lstm_forward(x, hidden, cell, weight, recurrent, bias, alive, reverse)
        if is_tracer(x) and is_on("lstm") and own_kernel.suits(recurrent):
            operands = (x, hidden, cell, weight, recurrent, bias, reverse, is_on("gemm"))
            results = own_kernel.operations.lstm_steps_forward(*operands)
            y, cells, last = own_kernel.after(results[0], reverse), results[1], 0 if reverse else -1
            return (y, y[last], cells[last]), (x, cell, weight, recurrent, *results)
        operands = _operands(x, hidden, cell, weight, recurrent, bias)
        traced = is_tracer(x)
        workspace = onednn.workspace(tuple(x.shape), hidden.shape[1]) if traced else 0
        results = (onednn.operations.lstm_forward if traced else onednn.lstm_forward)(*operands, reverse, workspace)
        y, last_hidden, last_cell, _ = results
        return (y, last_hidden.squeeze(0), last_cell.squeeze(0)), (*operands, *results)

    def lstm_backward(self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, reverse: bool) -> Gradients:
        if len(saved) == 6:
            return super().lstm_backward(saved, gs, needed, reverse)
        if len(saved) == 7:
            return self._back_through_steps(saved, gs, needed, reverse)
        results = saved[7:10]
        g, g_hidden, g_cell = _with_zeros(results, gs)
        run = onednn.operations.lstm_backward if is_tracer(saved[0]) else onednn.lstm_backward
        dx, dw, du, db, dh, dc = run(
            *saved, g, g_hidden.reshape(results[1].shape), g_cell.reshape(results[2].shape), reverse
        )
        return dx, dh.squeeze(0), dc.squeeze(0), dw.t(), du.t(), db, None

    def _back_through_steps(self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, reverse: bool) -> Gradients:
        x, cell, weight, recurrent, states, cells, gates = saved
        towards = _with_zeros((cells, cell, cell), gs)
        dz, dh, dc, db = own_kernel.operations.lstm_steps_backward(gates, cells, cell, recurrent, *towards, reverse)
        dx, dw, _ = self.linear_backward((x, weight), dz, (needed[0], needed[3], False))
        du = self._product_of_steps(own_kernel.before(states, reverse), dz) if needed[4] else None
        return dx, dh, dc, dw, du, db, None


def _with_zeros(results: Sequence[Array], gs: Sequence[Array | None]) -> list[Array]:
    """The gradients of results, with zeros for None."""
    return [torch.zeros_like(y) if g is None else g.contiguous() for y, g in zip(results, gs, strict=True)]


def _is_supported(alive: Array | None, x: Array, *others: Array | None) -> bool:
    """Can a kernel be used? Not if sequences end at different steps, or if PyTorch's own tape records an operand.

    That tape would not see what the kernel does.
    """
    return (
        alive is None
        and not (is_tracer(x) and is_traced_by_others())  # their program would contain an operation of ours
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not is_empty(x)
        and torch.backends.mkldnn.is_available()
        and compat.LSTM.exists
        and compat.LSTM_BACKWARD.exists
        and (compat.can_leave_modes() or not is_tracer(x))
        and not any(array is not None and array.requires_grad for array in (x, *others))
    )


def _operands(
    x: Array, hidden: Array, cell: Array, weight: Array, recurrent: Array, bias: Array | None
) -> tuple[Array, ...]:
    """The operands for oneDNN's kernel, forward and backward: it reads views wrongly, and has two biases."""
    none = x.new_zeros(recurrent.shape[1])
    weight, recurrent = weight.t().contiguous(), recurrent.t().contiguous()
    states = hidden.contiguous().unsqueeze(0), cell.contiguous().unsqueeze(0)
    return x.contiguous(), weight, recurrent, none if bias is None else bias.contiguous(), none, *states
