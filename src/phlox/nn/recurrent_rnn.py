"""Simple (Elman) recurrent layers."""

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
            raise ConfigError(f"RnnCell: activation must be 'tanh' or 'relu', got {activation!r}")
        self.activation: Literal["tanh", "relu"] = activation

    def __call__(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._one_step(x, None if state is None else (state,))[0]

    def run(self, x: Tensor, start: States, mask: Any = None, reverse: bool = False) -> tuple[Tensor, States]:
        """Process x [batch, time, d_input]: the results and the final state."""
        (hidden,), weights = start, self._values()
        y, last = functional.rnn(x, hidden, *weights, mask=mask, reverse=reverse, activation=self.activation)
        return y, (last,)

    def init_state(self, *shape: int) -> Tensor:
        """The zero initial state, for x [*shape, d_input]."""
        return self._zeros(shape)[0]


class Rnn(Stack):
    """h = activation(x_t weight + h recurrent + bias) (Elman 1990): [..., time, d_input] to [..., time, d_hidden].

    h is the result and the input of the next layer. The initial weights and the order of states are PyTorch's.

    Args:
        d_input: the width of the input.
        d_hidden: the width of the state and of the output; the output is twice as wide if bidirectional.
        activation: "tanh" or "relu".
        n_layers: the number of stacked layers.
        bias: whether there is a bias.
        bidirectional: each layer also processes the sequence backwards, with its own weights; the results are
            concatenated.
        dropout: the rate of dropout between layers in training; see `Module.is_training`.
        initializer: of the input weights; by default uniform in +-1 / sqrt(d_hidden).
        recurrent_initializer: of the recurrent weights; by default the same.
        bias_initializer: of the biases; by default that of the weights.
        device: the device of the parameters.

    Raises `ConfigError` if a size is less than 1, or the dropout rate is not between 0 and 1.

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
        """Process whole sequences, or the next part of them.

        Args:
            x: [..., time, d_input] with time >= 1.
            state: the initial state, [n_layers * directions, ..., d_hidden]; zeros by default. The order is by layer,
            and
                within a layer the forward direction first.
            lengths: [...], the number of valid steps of each sequence; by default all. Beyond them the result is zero
            and
                the final state is that at the length. The backward direction starts there.

        Returns the results [..., time, d_hidden] (twice as wide if bidirectional) and the final state.
        """
        y, (last,) = self._run(x, None if state is None else (state,), lengths)
        return y, last

    def init_state(self, *shape: int) -> Tensor:
        """The zero initial state, for x [*shape, time, d_input]; use it as the carry of a loop over tokens."""
        return self._zeros(shape)[0]


class RnnCellConfig(config_of(RnnCell)):
    """Hyper-parameters of `RnnCell`."""


class RnnConfig(config_of(Rnn)):
    """Hyper-parameters of `Rnn`."""
