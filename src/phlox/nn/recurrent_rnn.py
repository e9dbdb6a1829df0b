"""Recurrent layers without gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.nn.initializer import Initializer
from phlox.nn.recurrent import Cell, Stack, States
from phlox.tensor import Tensor, functional


class RnnCell(Cell):
    """One step of an `Rnn` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden].

    The parameters are weight [d_input, d_hidden], recurrent [d_hidden, d_hidden] and bias [d_hidden].

    >>> import phlox as px
    >>> cell = RnnCell(3, 2, activation="relu")
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).shape
    (5, 2)
    """

    gates = 1
    states = ("hidden",)

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        activation: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        initializer: Initializer | None = None,
        recurrent_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        super().__init__(d_input, d_hidden, bias, initializer, recurrent_initializer, bias_initializer, device)
        if activation not in ("tanh", "relu"):
            raise ConfigError(f"RnnCell: the activation is 'tanh' or 'relu', got {activation!r}")
        self.activation: Literal["tanh", "relu"] = activation

    def __call__(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._one_step(x, None if state is None else (state,))[0]

    def run(self, x: Tensor, start: States, mask: Any = None, reverse: bool = False) -> tuple[Tensor, States]:
        """Over x [batch, time, d_input]: the results, and the last state."""
        (hidden,), weights = start, self._values()
        y, last = functional.rnn(x, hidden, *weights, mask=mask, reverse=reverse, activation=self.activation)
        return y, (last,)

    def init_state(self, *shape: int) -> Tensor:
        """Zeros to begin with, for x [*shape, d_input]."""
        return self._zeros(shape)[0]


class Rnn(Stack):
    """h = activation(x_t weight + h recurrent + bias) (Elman 1990): [..., time, d_input] to [..., time, d_hidden].

    h is the result, and what the next layer gets. Initial weights and the order of states are PyTorch's.

    Args:
        d_input: the width of what goes in.
        d_hidden: the width of the state, and of what comes out; twice that if bidirectional.
        activation: "tanh" or "relu".
        n_layers: how many layers there are, each run over what the one before gives.
        bias: is there one?
        bidirectional: does each layer run from the end to the start too, with weights of its own? The result is both.
        dropout: the rate at which what goes from layer to layer is dropped in training; see `Module.is_training`.
        initializer: of the weights of what goes in; uniform within 1 / sqrt(d_hidden) of zero unless given.
        recurrent_initializer: of the weights of the state; the same unless given.
        bias_initializer: of the biases; as the weights unless given.

    Raises `ConfigError` for numbers that make no sense.

    >>> import phlox as px
    >>> y, state = Rnn(3, 4)(px.ones((5, 7, 3)))
    >>> y.shape, state.shape
    ((5, 7, 4), (1, 5, 4))
    """

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        activation: Literal["tanh", "relu"] = "tanh",
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
            RnnCell,
            d_input,
            d_hidden,
            n_layers,
            bidirectional,
            dropout,
            activation=activation,
            bias=bias,
            initializer=initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            device=device,
        )

    def __call__(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        lengths: Tensor[Any, Any, Int] | Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run over whole sequences, or over the next piece of them.

        Args:
            x: [..., time, d_input], of one step at least.
            state: to begin with, [n_layers * directions, ..., d_hidden]; zeros unless given. Of every layer comes the
                direction from the start, then the other.
            lengths: [...], how many steps of each sequence count; all unless given. Beyond them the result is zero, and
                the state is the one at that length; the other direction begins there.

        Returns the result, and the state at the end.
        """
        y, (last,) = self._run(x, None if state is None else (state,), lengths)
        return y, last

    def init_state(self, *shape: int) -> Tensor:
        """Zeros to begin with, for x [*shape, time, d_input]: the carry of a loop token by token."""
        return self._zeros(shape)[0]


class RnnCellConfig(config_of(RnnCell)):
    """Hyper-parameters of `RnnCell`."""


class RnnConfig(config_of(Rnn)):
    """Hyper-parameters of `Rnn`."""
