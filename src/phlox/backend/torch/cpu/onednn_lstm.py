"""oneDNN's LSTM; in a program as custom operators, since fake tensors do not know the size of its workspace."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch

from phlox.backend.contract.types import Array
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.passes.weight_cache import WeightCache

_LSTM = 2  # as PyTorch numbers the kinds

# --- packed weights, for inference, in which they mostly stay the same


def _pack(weight: Array, recurrent: Array) -> tuple[Array, Array]:
    """Both weights as the kernel takes them, packed if that may serve more than this call."""
    first, second = weight.detach().t().contiguous(), recurrent.detach().t().contiguous()
    if weight.is_inference() or recurrent.is_inference() or not compat.REORDER_LSTM_WEIGHT.exists:
        return first, second
    return tuple(compat.REORDER_LSTM_WEIGHT.value(first, second, recurrent.shape[0], False, True, False))


_packed_weights = WeightCache(_pack)

# --- the kernel


def lstm(
    x: Array,
    hidden: Array,
    cell: Array,
    weight: Array,
    recurrent: Array,
    bias: Array | None,
    reverse: bool,
) -> tuple[Array, Array, Array]:
    """See the contract; for contiguous operands, in inference."""
    zeros = x.new_zeros(recurrent.shape[1])
    biases = zeros if bias is None else bias, zeros
    operands = x, *_packed_weights(weight, recurrent), *biases, hidden.unsqueeze(0), cell.unsqueeze(0)
    y, last_hidden, last_cell, _ = _layer(*operands, reverse, train=False)
    return y, last_hidden.squeeze(0), last_cell.squeeze(0)


def lstm_forward(*arguments: Any) -> tuple[Array, Array, Array, Array]:
    """The result, the last states, and the workspace, which the backward pass needs; see the operator below."""
    *operands, reverse, _ = arguments
    return _layer(*operands, reverse, train=True)


def _layer(*arguments: Any, train: bool) -> tuple[Array, Array, Array, Array]:
    *_, hidden, _, _ = arguments
    with torch.set_grad_enabled(train):  # tells the kernel whether it trains
        return compat.LSTM.value(*arguments, [], _LSTM, hidden.shape[2], 1, True, False, False, train)


def lstm_backward(*arguments: Any) -> tuple[Array, ...]:
    """The gradients of x, weight, recurrent, bias, hidden and cell."""
    *operands, workspace, g, g_hidden, g_cell, reverse = arguments
    width = operands[5].shape[2]
    gradients = compat.LSTM_BACKWARD.value(
        *operands, g, g_hidden, g_cell, reverse, _LSTM, width, 1, True, True, False, [], False, workspace
    )
    return (*gradients[:4], *gradients[5:])


@lru_cache(64)
def workspace(shape: tuple[int, ...], width: int) -> int:
    """The bytes of the workspace that the kernel keeps for the backward pass, by trying it."""
    _, batch, features = shape
    with compat.without_modes():
        zeros = partial(torch.zeros, dtype=torch.float32, device="cpu")  # whatever the current defaults
        operands = (
            zeros(shape), zeros(4 * width, features), zeros(4 * width, width), zeros(4 * width), zeros(4 * width),
            zeros(1, batch, width), zeros(1, batch, width),
        )  # fmt: skip
        return _layer(*operands, False, train=True)[3].numel()


# --- the operations

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define(
    "lstm(Tensor x, Tensor hidden, Tensor cell, Tensor weight, Tensor recurrent, Tensor? bias, bool reverse) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.define(
    "lstm_forward(Tensor x, Tensor weight, Tensor recurrent, Tensor bias, Tensor none, Tensor hidden, Tensor cell, "
    "bool reverse, int workspace) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "lstm_backward(Tensor x, Tensor weight, Tensor recurrent, Tensor bias, Tensor none, Tensor hidden, Tensor cell, "
    "Tensor y, Tensor last_hidden, Tensor last_cell, Tensor workspace, Tensor g, Tensor g_hidden, Tensor g_cell, "
    "bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.impl("lstm", lstm, "CPU")
_library.impl("lstm_forward", lstm_forward, "CPU")
_library.impl("lstm_backward", lstm_backward, "CPU")
operations: Any = torch.ops.phlox


def _lstm_on_fakes(x: Array, hidden: Array, cell: Array, *_: Any) -> tuple[Array, ...]:
    y = x.new_empty((*x.shape[:2], hidden.shape[1]))
    return y, x.new_empty(hidden.shape), x.new_empty(cell.shape)


def _lstm_forward_on_fakes(*arguments: Any) -> tuple[Array, ...]:
    x, *_, hidden, cell, _, workspace = arguments
    y = x.new_empty((*x.shape[:2], hidden.shape[2]))
    return y, x.new_empty(hidden.shape), x.new_empty(cell.shape), x.new_empty(workspace, dtype=torch.uint8)


def _lstm_backward_on_fakes(*arguments: Any) -> tuple[Array, ...]:
    x, weight, recurrent, bias, _, hidden, cell, *_ = arguments
    return tuple([x.new_empty(operand.shape) for operand in (x, weight, recurrent, bias, hidden, cell)])


torch.library.register_fake("phlox::lstm", _lstm_on_fakes, lib=_library)
torch.library.register_fake("phlox::lstm_forward", _lstm_forward_on_fakes, lib=_library)
torch.library.register_fake("phlox::lstm_backward", _lstm_backward_on_fakes, lib=_library)
