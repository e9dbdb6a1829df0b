"""GRU layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.module import Param
from phlox.nn.initializer import Initializer
from phlox.nn.recurrent import Cell, Stack, States
from phlox.tensor import Tensor, functional


class GruCell(Cell):
    """One step of a `Gru` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden].

    The parameters are weight [d_input, 3 d_hidden], recurrent [d_hidden, 3 d_hidden], bias [3 d_hidden] and
    recurrent_bias [d_hidden], with the gates side by side in the order r, z, n.

    >>> import phlox as px
    >>> cell = GruCell(3, 2)
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).shape
    (5, 2)
    """

    gates = 3
    states = ("hidden",)
    own_bias = True
    recurrent_bias: Param | None
    """The bias of N, which the reset gate scales."""

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

    def __call__(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._one_step(x, None if state is None else (state,))[0]

    def run(self, x: Tensor, start: States, mask: Any = None, reverse: bool = False) -> tuple[Tensor, States]:
        """Process x [batch, time, d_input]: the results and the final state."""
        (hidden,), (weight, recurrent, bias) = start, self._values()
        own = None if self.recurrent_bias is None else self.recurrent_bias.val()
        y, last = functional.gru(x, hidden, weight, recurrent, bias, own, mask=mask, reverse=reverse)
        return y, (last,)

    def init_state(self, *shape: int) -> Tensor:
        """The zero initial state, for x [*shape, d_input]."""
        return self._zeros(shape)[0]


class Gru(Stack):
    """Gated recurrent units (Cho et al. 2014): [..., time, d_input] to [..., time, d_hidden].

    At every step, r, z, n are the three parts of x_t weight + bias, and R, Z, N those of h recurrent:

        h = (1 - u) m + u h, where u = sigmoid(z + Z) and m = tanh(n + sigmoid(r + R) (N + recurrent_bias))

    h is the result and the input of the next layer. As in PyTorch and cuDNN, the reset gate acts after the product. The
    order of gates and states and the initial weights are those of PyTorch.

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
    >>> y, state = Gru(3, 4, n_layers=2, bidirectional=True)(px.ones((5, 7, 3)))
    >>> y.shape, state.shape
    ((5, 7, 8), (4, 5, 4))
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
            GruCell,
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


class GruCellConfig(config_of(GruCell)):
    """Hyper-parameters of `GruCell`."""


class GruConfig(config_of(Gru)):
    """Hyper-parameters of `Gru`."""
