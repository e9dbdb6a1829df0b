"""Long short-term memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.nn.initializer import Initializer
from phlox.nn.recurrent import Cell, Stack, States
from phlox.tensor import Tensor, functional


class LstmState(NamedTuple):
    """What an LSTM remembers: [n_layers * directions, batch, d_hidden] each, or [batch, d_hidden] of a cell."""

    hidden: Tensor
    """h, which is also what it gives."""
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
        """Over x [batch, time, d_input]: the results, and the last states."""
        (hidden, cell), (weight, recurrent, bias) = start, self._values()
        y, *last = functional.lstm(x, hidden, cell, weight, recurrent, bias, mask=mask, reverse=reverse)
        return y, tuple(last)

    def init_state(self, *shape: int) -> LstmState:
        """Zeros to begin with, for x [*shape, d_input]."""
        return LstmState(*self._zeros(shape))


class Lstm(Stack):
    """Long short-term memory (Hochreiter, Schmidhuber 1997): [..., time, d_input] to [..., time, d_hidden].

    At every step, with i, f, g, o the four parts of x_t weight + h recurrent + bias:

        c = sigmoid(f) c + sigmoid(i) tanh(g)
        h = sigmoid(o) tanh(c)

    h is the result, and what the next layer gets. Gates, initial weights and the order of states are PyTorch's.

    Args:
        d_input: the width of what goes in.
        d_hidden: the width of the state, and of what comes out; twice that if bidirectional.
        n_layers: how many layers there are, each run over what the one before gives.
        bias: have the gates one?
        bidirectional: does each layer run from the end to the start too, with weights of its own? The result is both.
        dropout: the rate at which what goes from layer to layer is dropped in training; see `Module.is_training`.
        initializer: of the weights of what goes in; uniform within 1 / sqrt(d_hidden) of zero unless given.
        recurrent_initializer: of the weights of the state; the same unless given.
        bias_initializer: of the biases; as the weights unless given.

    Raises `ConfigError` for numbers that make no sense.

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
        """Run over whole sequences, or over the next piece of them.

        Args:
            x: [..., time, d_input], of one step at least.
            state: to begin with, [n_layers * directions, ..., d_hidden] each; zeros unless given. Of every layer comes
                the direction from the start, then the other.
            lengths: [...], how many steps of each sequence count; all unless given. Beyond them the result is zero, and
                the state is the one at that length; the other direction begins there.

        Returns the result, and the state at the end.
        """
        y, last = self._run(x, state, lengths)
        return y, LstmState(*last)

    def init_state(self, *shape: int) -> LstmState:
        """Zeros to begin with, for x [*shape, time, d_input]: the carry of a loop token by token.

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
