"""Gated recurrent units."""

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
    """Of the third part of the product with the state, which the reset gate scales."""

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
        """Over x [batch, time, d_input]: the results, and the last state."""
        (hidden,), (weight, recurrent, bias) = start, self._values()
        own = None if self.recurrent_bias is None else self.recurrent_bias.val()
        y, last = functional.gru(x, hidden, weight, recurrent, bias, own, mask=mask, reverse=reverse)
        return y, (last,)

    def init_state(self, *shape: int) -> Tensor:
        """Zeros to begin with, for x [*shape, d_input]."""
        return self._zeros(shape)[0]


class Gru(Stack):
    """Gated recurrent units (Cho et al. 2014): [..., time, d_input] to [..., time, d_hidden].

    At every step, with r, z, n the three parts of x_t weight + bias, and R, Z, N those of h recurrent:

        h = (1 - u) m + u h, where u = sigmoid(z + Z) and m = tanh(n + sigmoid(r + R) (N + recurrent_bias))

    h is the result, and what the next layer gets. As in PyTorch and cuDNN the state is reset after the product. Gates,
    initial weights and the order of states are PyTorch's.

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


class GruCellConfig(config_of(GruCell)):
    """Hyper-parameters of `GruCell`."""


class GruConfig(config_of(Gru)):
    """Hyper-parameters of `Gru`."""
