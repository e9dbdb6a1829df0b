"""Recurrent layers: one layer in one direction over a whole sequence."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from phlox.backend import Bool, Float
from phlox.errors import RangeError, ShapeError
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor

__all__ = ["gru", "lstm", "rnn"]


class LstmSteps(NamedTuple):
    """The results of `lstm`."""

    y: Tensor
    """[batch, time, width]: the hidden state after every step."""
    hidden: Tensor
    """[batch, width]: after the last step."""
    cell: Tensor
    """[batch, width]: after the last step."""


class Steps(NamedTuple):
    """The results of `gru` and `rnn`."""

    y: Tensor
    """[batch, time, width]: the state after every step."""
    hidden: Tensor
    """[batch, width]: after the last step."""


def lstm(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor | None = None,
    *,
    mask: Tensor[Any, Any, Bool] | None = None,
    reverse: bool = False,
) -> LstmSteps:
    """Long short-term memory (Hochreiter, Schmidhuber 1997; forget gate of Gers et al. 2000) over a sequence.

    At every step, i, f, g, o are the four parts of x_t weight + bias + h recurrent. Then c = sigmoid(f) c + sigmoid(i)
    tanh(g) and h = sigmoid(o) tanh(c).

    Args:
        x: [batch, time, features] with time >= 1.
        hidden: [batch, width], the initial h.
        cell: [batch, width], the initial c.
        weight: [features, 4 * width].
        recurrent: [width, 4 * width].
        bias: [4 * width].
        mask: [batch, time], true at valid steps. At other steps the states are unchanged, the result is zero, and x may
            hold any values, even NaN.
        reverse: process the steps from last to first; results are in the order of x.

    >>> import phlox as px
    >>> zero = px.zeros((1, 1))
    >>> lstm(px.ones((1, 3, 1)), zero, zero, px.ones((1, 4)), px.ones((1, 4))).y.tolist()
    [[[0.36...], [0.65...], [0.78...]]]
    """
    check_kind("lstm", Float, x=x, hidden=hidden, cell=cell, weight=weight, recurrent=recurrent, bias=bias)
    x, alive = _check_operands("lstm", 4, x, hidden, weight, recurrent, bias, mask)
    if cell.shape != hidden.shape:
        raise ShapeError(f"lstm: cell has shape {cell.shape}, but hidden has shape {hidden.shape}; they must be equal")
    operands = (x.swapaxes(0, 1), hidden, cell, weight, recurrent, bias, alive)
    y, hidden, cell = compute("lstm", *operands, reverse)
    return LstmSteps(y.swapaxes(0, 1), hidden, cell)


def gru(
    x: Tensor,
    hidden: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor | None = None,
    recurrent_bias: Tensor | None = None,
    *,
    mask: Tensor[Any, Any, Bool] | None = None,
    reverse: bool = False,
) -> Steps:
    """Gated recurrent units (Cho et al. 2014) over a sequence; the reset gate acts after the product, as in PyTorch.

    At every step, r, z, n are the three parts of x_t weight + bias, and R, Z, N the parts of h recurrent.
    Then u = sigmoid(z + Z), m = tanh(n + sigmoid(r + R) (N + recurrent_bias)) and h = (1 - u) m + u h.

    Args:
        x: [batch, time, features] with time >= 1.
        hidden: [batch, width], the initial h.
        weight: [features, 3 * width].
        recurrent: [width, 3 * width].
        bias: [3 * width].
        recurrent_bias: [width], added to N only: for R and Z it would be redundant with `bias`.
        mask: [batch, time], true at valid steps. At other steps the state is unchanged, the result is zero, and x may
            hold any values, even NaN.
        reverse: process the steps from last to first; results are in the order of x.

    >>> import phlox as px
    >>> gru(px.ones((1, 3, 1)), px.zeros((1, 1)), px.ones((1, 3)), px.ones((1, 3))).hidden.tolist()
    [[0.45...]]
    """
    operands = {"x": x, "hidden": hidden, "weight": weight, "recurrent": recurrent, "bias": bias}
    check_kind("gru", Float, **operands, recurrent_bias=recurrent_bias)
    x, alive = _check_operands("gru", 3, x, hidden, weight, recurrent, bias, mask)
    if recurrent_bias is not None and recurrent_bias.shape != recurrent.shape[:1]:
        raise ShapeError(
            f"gru: recurrent_bias of shape {recurrent_bias.shape} does not have one number for each of the "
            f"{recurrent.shape[0]} units"
        )
    y, hidden = compute("gru", x.swapaxes(0, 1), hidden, weight, recurrent, bias, recurrent_bias, alive, reverse)
    return Steps(y.swapaxes(0, 1), hidden)


def rnn(
    x: Tensor,
    hidden: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor | None = None,
    *,
    mask: Tensor[Any, Any, Bool] | None = None,
    reverse: bool = False,
    activation: Literal["tanh", "relu"] = "tanh",
) -> Steps:
    """h = activation(x_t weight + bias + h recurrent) at every step of a sequence (Elman 1990).

    Args:
        x: [batch, time, features] with time >= 1.
        hidden: [batch, width], the initial h.
        weight: [features, width].
        recurrent: [width, width].
        bias: [width].
        mask: [batch, time], true at valid steps. At other steps the state is unchanged, the result is zero, and x may
            hold any values, even NaN.
        reverse: process the steps from last to first; results are in the order of x.
        activation: "tanh" or "relu".

    >>> import phlox as px
    >>> one = px.ones((1, 1))
    >>> rnn(px.ones((1, 3, 1)), one, one, one, activation="relu").y.tolist()
    [[[2.0], [3.0], [4.0]]]
    """
    check_kind("rnn", Float, x=x, hidden=hidden, weight=weight, recurrent=recurrent, bias=bias)
    x, alive = _check_operands("rnn", 1, x, hidden, weight, recurrent, bias, mask)
    if activation not in ("tanh", "relu"):
        raise RangeError(f"rnn: activation must be 'tanh' or 'relu', got {activation!r}")
    y, hidden = compute("rnn", x.swapaxes(0, 1), hidden, weight, recurrent, bias, alive, reverse, activation)
    return Steps(y.swapaxes(0, 1), hidden)


def _check_operands(
    name: str,
    gates: int,
    x: Tensor,
    hidden: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor | None,
    mask: Tensor[Any, Any, Bool] | None,
) -> tuple[Tensor, Tensor[Any, Any, Bool] | None]:
    """x with masked steps zeroed, and the mask as [time, batch, 1] as in the contract; `ShapeError` on a mismatch.

    Masked steps of x may hold any values. They are zeroed because zero times NaN would be NaN in the gradients.
    """
    if x.ndim != 3 or not x.shape[1]:
        raise ShapeError(f"{name}: x must be [batch, time, features] with time >= 1, got shape {x.shape}")
    batch, time, features = x.shape
    times = f"{gates} * width" if gates > 1 else "width"
    if recurrent.ndim != 2 or recurrent.shape[1] != gates * recurrent.shape[0] or not recurrent.shape[0]:
        raise ShapeError(f"{name}: recurrent must be [width, {times}], got shape {recurrent.shape}")
    width = recurrent.shape[0]
    if weight.ndim != 2 or weight.shape[1] != gates * width:
        raise ShapeError(
            f"{name}: weight must be [features, {times}], which is [{features}, {gates * width}], "
            f"got shape {weight.shape}"
        )
    if features != weight.shape[0]:
        raise ShapeError(f"{name}: x of shape {x.shape} does not have the {weight.shape[0]} features of the weight")
    if bias is not None and bias.shape != (gates * width,):
        raise ShapeError(f"{name}: bias must be [{times}], which is [{gates * width}], got shape {bias.shape}")
    if hidden.shape != (batch, width):
        raise ShapeError(
            f"{name}: hidden must be [batch, width], which is [{batch}, {width}], got shape {hidden.shape}"
        )
    if mask is None:
        return x, None
    check_kind(name, Bool, mask=mask)
    if mask.shape != (batch, time):
        raise ShapeError(f"{name}: mask must be [batch, time], which is [{batch}, {time}], got shape {mask.shape}")
    valid = mask.expand_dims(-1)
    return where(valid, x, 0.0), valid.swapaxes(0, 1)
