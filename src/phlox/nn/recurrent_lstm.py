"""LSTM layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.nn.initializer import Initializer
from phlox.nn.recurrent import Cell, Stack, States
from phlox.tensor import Tensor, functional


class LstmState(NamedTuple):
    """The state of an LSTM: each part is [n_layers * directions, batch, d_hidden], or [batch, d_hidden] of a cell."""

    hidden: Tensor
    """h, which is also the result."""
    cell: Tensor
    """c."""


class LstmCell(Cell):
    """One step of an `Lstm` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden] each.

    The parameters are weight [d_input, 4 d_hidden], recurrent [d_hidden, 4 d_hidden] and bias [4 d_hidden], with the
    gates side by side in the order i, f, g, o.

    >>> import phlox as px
    >>> cell = LstmCell(3, 2)
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).hidden.shape
    (5, 2)
    """

    gates = 4
    states = ("hidden", "cell")

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        bias: bool = True,
        initializer: Initializer | None = None,
        recurrent_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        super().__init__(d_input, d_hidden, bias, initializer, recurrent_initializer, bias_initializer, device)

    def __call__(self, x: Tensor, state: LstmState | None = None) -> LstmState:
        return LstmState(*self._one_step(x, state))

    def run(self, x: Tensor, start: States, mask: Any = None, reverse: bool = False) -> tuple[Tensor, States]:
        """Process x [batch, time, d_input]: the results and the final states."""
        (hidden, cell), (weight, recurrent, bias) = start, self._values()
        y, *last = functional.lstm(x, hidden, cell, weight, recurrent, bias, mask=mask, reverse=reverse)
        return y, tuple(last)

    def init_state(self, *shape: int) -> LstmState:
        """The zero initial state, for x [*shape, d_input]."""
        return LstmState(*self._zeros(shape))


class Lstm(Stack):
    """Long short-term memory (Hochreiter, Schmidhuber 1997): [..., time, d_input] to [..., time, d_hidden].

    At every step, i, f, g, o are the four parts of x_t weight + h recurrent + bias:

        c = sigmoid(f) c + sigmoid(i) tanh(g)
        h = sigmoid(o) tanh(c)

    h is the result and the input of the next layer. The order of gates and states and the initial weights are
    PyTorch's.

    Args:
        d_input: the width of the input.
        d_hidden: the width of the state and of the output; the output is twice as wide if bidirectional.
        n_layers: the number of stacked layers.
        bias: whether the gates have a bias.
        bidirectional: each layer also processes the sequence backwards, with its own weights; the results are
            concatenated.
        dropout: the rate of dropout between layers in training; see `Module.is_training`.
        initializer: of the input weights; by default uniform in +-1 / sqrt(d_hidden).
        recurrent_initializer: of the recurrent weights; by default the same.
        bias_initializer: of the biases; by default that of the weights.
        device: the device of the parameters.

    Raises `ConfigError` if a size is less than 1, or the dropout rate is not between 0 and 1.

    >>> import phlox as px
    >>> layer = Lstm(3, 4, n_layers=2)
    >>> y, state = layer(px.ones((5, 7, 3)))
    >>> y.shape, state.hidden.shape
    ((5, 7, 4), (2, 5, 4))
    >>> y, state = layer(px.ones((5, 1, 3)), state)  # the next token
    >>> y, _ = layer(px.ones((2, 7, 3)), lengths=[7, 4])
    >>> y[1, 4:].abs().sum().item()
    0.0
    """

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        n_layers: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        dropout: float = 0.0,
        initializer: Initializer | None = None,
        recurrent_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        super().__init__(
            LstmCell,
            d_input,
            d_hidden,
            n_layers,
            bidirectional,
            dropout,
            bias=bias,
            initializer=initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            device=device,
        )

    def __call__(
        self,
        x: Tensor,
        state: LstmState | None = None,
        *,
        lengths: Tensor[Any, Any, Int] | Sequence[int] | None = None,
    ) -> tuple[Tensor, LstmState]:
        """Process whole sequences, or the next part of them.

        Args:
            x: [..., time, d_input] with time >= 1.
            state: the initial state, each part [n_layers * directions, ..., d_hidden]; zeros by default. The order is
            by
                layer, and within a layer the forward direction first.
            lengths: [...], the number of valid steps of each sequence; by default all. Beyond them the result is zero
            and
                the final state is that at the length. The backward direction starts there.

        Returns the results [..., time, d_hidden] (twice as wide if bidirectional) and the final state.
        """
        y, last = self._run(x, state, lengths)
        return y, LstmState(*last)

    def init_state(self, *shape: int) -> LstmState:
        """The zero initial state, for x [*shape, time, d_input]; use it as the carry of a loop over tokens.

        >>> import phlox as px
        >>> layer, tokens = Lstm(3, 2), px.ones((7, 5, 3))  # time first, for the loop runs along it
        >>> def step(state, x):
        ...     y, state = layer(x.expand_dims(1), state)
        ...     return state, y[:, 0]
        >>> px.scan(step, layer.init_state(5), tokens)[1].shape
        (7, 5, 2)
        """
        return LstmState(*self._zeros(shape))


class LstmCellConfig(config_of(LstmCell)):
    """Hyper-parameters of `LstmCell`."""


class LstmConfig(config_of(Lstm)):
    """Hyper-parameters of `Lstm`."""
