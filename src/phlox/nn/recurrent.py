"""Recurrent layers: cells with weights, and stacks of cells that process sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.errors import ConfigError, IndexRangeError, KindError, RangeError, ShapeError
from phlox.module import Module, Param
from phlox.nn.dropout import dropout
from phlox.nn.initializer import Initializer, Uniform, bias_initializer_of
from phlox.tensor import Tensor, arange, concat, functional, stack, tensor, zeros

__all__ = [
    "Gru", "GruCell", "GruCellConfig", "GruConfig", "Lstm", "LstmCell", "LstmCellConfig", "LstmConfig", "LstmState",
    "Rnn", "RnnCell", "RnnCellConfig", "RnnConfig",
]  # fmt: skip


class LstmState(NamedTuple):
    """The state of an LSTM: each part is [n_layers * directions, batch, d_hidden], or [batch, d_hidden] of a cell."""

    hidden: Tensor
    """h, which is also the result."""
    cell: Tensor
    """c."""


S = TypeVar("S", LstmState, Tensor)
Activation = Literal["tanh", "relu"]
Lengths = Tensor[Any, Any, Int] | Sequence[int]


class Cell(Module, Generic[S]):
    """The weights of one recurrent layer in one direction; the base of `LstmCell`, `GruCell` and `RnnCell`.

    By default all weights are initialised as in PyTorch: uniform in +-1 / sqrt(d_hidden). PyTorch has two biases that
    are always added; here there is one.
    """

    function: ClassVar[Callable[..., tuple[Tensor, ...]]]
    """The results of a sequence and the parts of the last state."""
    gates: ClassVar[int]
    """The number of gates, whose weights are concatenated."""
    states: ClassVar[tuple[str, ...]] = ("hidden",)
    """The names of the parts of the state."""
    own_bias: ClassVar[bool] = False
    """Does the last gate have a separate recurrent bias?"""

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
        if min(d_input, d_hidden) < 1:
            raise ConfigError(
                f"{type(self).__name__}: sizes must be at least 1, got d_input={d_input} and d_hidden={d_hidden}"
            )
        bound = 1.0 / math.sqrt(d_hidden)
        default = Uniform(low=-bound, high=bound)
        self.d_input, self.d_hidden = d_input, d_hidden
        columns = self.gates * d_hidden
        fans = (d_input, d_hidden)  # of each gate
        initial = default if initializer is None else initializer
        self.weight = Param.deferred((d_input, columns), initial, fans=fans, device=device)
        recurrent_init = default if recurrent_initializer is None else recurrent_initializer
        self.recurrent = Param.deferred((d_hidden, columns), recurrent_init, fans=(d_hidden, d_hidden), device=device)
        initial = bias_initializer_of(initial, bias_initializer)
        self.bias = Param.deferred((columns,), initial, fans=fans, device=device) if bias else None
        if self.own_bias:
            recurrent_bias = Param.deferred((d_hidden,), initial, fans=fans, device=device) if bias else None
            self.recurrent_bias = recurrent_bias

    def __call__(self, x: Tensor, state: S | None = None) -> S:
        """The state [..., d_hidden] after x [..., d_input]; the state before is zero by default."""
        if x.ndim < 1 or x.shape[-1] != self.d_input:
            raise ShapeError(f"x of shape {x.shape} does not have the {self.d_input} features of this layer")
        leading = x.shape[:-1]
        shape = (*leading, self.d_hidden)
        batch = math.prod(leading)
        start = [part.reshape((batch, -1)) for part in _parts(self.states, state, shape, x)]
        _, *last = self.run(x.reshape((batch, 1, self.d_input)), start)
        return _state_of([part.reshape(shape) for part in last])

    def run(
        self, x: Tensor, start: Sequence[Tensor], mask: Any = None, reverse: bool = False, **options: Any
    ) -> tuple[Tensor, ...]:
        """Process x [batch, time, d_input]: the results, and the parts of the final state."""
        params = [self.weight, self.recurrent, self.bias, *([self.recurrent_bias] if self.own_bias else [])]
        weights = [None if param is None else param.val() for param in params]
        return type(self).function(x, *start, *weights, mask=mask, reverse=reverse, **options)

    def init_state(self, *shape: int) -> S:
        """The zero initial state, for x [*shape, d_input]."""
        return _state_of([zeros((*shape, self.d_hidden), device=self.weight.device) for _ in self.states])


class Stack(Module, Generic[S]):
    """Stacked layers of cells; the base of `Lstm`, `Gru` and `Rnn`."""

    cell: ClassVar[type[Cell[Any]]]

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
        name = type(self).__name__
        if n_layers < 1:
            raise ConfigError(f"{name}: n_layers must be at least 1, got {n_layers}")
        if not 0.0 <= dropout <= 1.0:
            raise ConfigError(f"{name}: dropout must be between 0 and 1, got {dropout}")
        self.d_input, self.d_hidden, self.n_layers, self.dropout = d_input, d_hidden, n_layers, dropout
        self.bidirectional = bidirectional
        cell = partial(
            self.cell,
            d_hidden=d_hidden,
            bias=bias,
            initializer=initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            device=device,
        )
        inputs = [d_input, *[d_hidden * (1 + bidirectional)] * (n_layers - 1)]
        self.layers = [cell(size) for size in inputs]
        self.reverse_layers = [cell(size) for size in inputs] if bidirectional else []

    def __call__(self, x: Tensor, state: S | None = None, *, lengths: Lengths | None = None) -> tuple[Tensor, S]:
        """Process whole sequences, or the next part of them.

        Args:
            x: [..., time, d_input] with time >= 1.
            state: the initial state, each part [n_layers * directions, ..., d_hidden]; zeros by default. The order is
                by layer, and within a layer the forward direction first.
            lengths: [...], the number of valid steps of each sequence; by default all. Beyond its length
                the result of a sequence is zero, and its final state is the state at its length. The backward direction
                starts at the length.

        Returns the results [..., time, d_hidden] (twice as wide if bidirectional) and the final state.
        """
        if x.ndim < 2 or not x.shape[-2]:
            raise ShapeError(f"x must be [..., time, {self.d_input}] with time >= 1, got shape {x.shape}")
        *leading, time, features = x.shape
        if features != self.d_input:
            raise ShapeError(f"x of shape {x.shape} does not have the {self.d_input} features of this layer")
        batch = math.prod(leading)
        count = self.n_layers * (1 + self.bidirectional)
        start = _parts(self.cell.states, state, (count, *leading, self.d_hidden), x)
        flat = [part.reshape((count, batch, self.d_hidden)) for part in start]
        mask = None if lengths is None else _mask(lengths, tuple(leading), time, x)
        last: list[list[Tensor]] = []
        y = x.reshape((batch, time, features))
        for number, forward in enumerate(self.layers):
            if number and self.dropout and self.is_training(x):
                y = dropout(y, self.dropout)
            results: list[Tensor] = []
            for reverse, cell in enumerate([forward, *self.reverse_layers[number : number + 1]]):
                result, *states = cell.run(y, [part[len(last)] for part in flat], mask, bool(reverse))
                results.append(result)
                last.append(states)
            y = results[0] if len(results) == 1 else concat(results, -1)
        shape = (count, *leading, self.d_hidden)
        parts = [stack(states).reshape(shape) for states in zip(*last, strict=True)]
        return y.reshape((*leading, time, y.shape[-1])), _state_of(parts)

    def init_state(self, *shape: int) -> S:
        """The zero initial state, for x [*shape, time, d_input]; use it as the carry of a loop over tokens.

        >>> import phlox as px
        >>> layer, tokens = Lstm(3, 2), px.ones((7, 5, 3))  # time first, because the loop runs along it
        >>> def step(state, x):
        ...     y, state = layer(x.expand_dims(1), state)
        ...     return state, y[:, 0]
        >>> px.scan(step, layer.init_state(5), tokens)[1].shape
        (7, 5, 2)
        """
        return self.layers[0].init_state(self.n_layers * (1 + self.bidirectional), *shape)


def _state_of(parts: Sequence[Tensor]) -> Any:
    """The state with these parts; a state of one part is that tensor itself."""
    return parts[0] if len(parts) == 1 else LstmState(*parts)


def _parts(names: tuple[str, ...], state: Any, shape: tuple[int, ...], x: Tensor) -> Sequence[Tensor]:
    """The parts of an initial state, zeros by default; `KindError` or `ShapeError` if they do not fit x."""
    if state is None:
        return [zeros(shape, device=x.device) for _ in names]
    parts: Sequence[Any] = (state,) if len(names) == 1 else state
    if not isinstance(parts, (tuple, list)) or len(parts) != len(names):
        raise KindError(f"the state must be LstmState(hidden, cell), got {type(state).__name__}")
    for name, part in zip(names, parts, strict=True):
        if not isinstance(part, Tensor):
            raise KindError(f"the state's {name} must be a tensor of shape {shape}, got {type(part).__name__}")
        if part.shape != shape:
            raise ShapeError(f"the state's {name} must be of shape {shape} for x of shape {x.shape}, got {part.shape}")
    return parts


def _mask(lengths: Lengths, leading: tuple[int, ...], time: int, x: Tensor) -> Tensor[Any, Any, Any]:
    """The mask [batch, time]: true within the length of each sequence."""
    if not isinstance(lengths, Tensor):
        lengths = tensor(lengths, kind=Int, device=x.device).reshape((len(lengths),))
    if lengths.kind is not Int:
        raise KindError(f"lengths must be an Int tensor, got {lengths.kind.__name__}; convert with .int() first")
    if lengths.shape != leading:
        raise ShapeError(f"lengths must be of shape {leading} for x of shape {x.shape}, got {lengths.shape}")
    try:
        lengths.backend.check_indices(lengths.primitive, time + 1, from_end=False)
    except IndexRangeError:
        raise RangeError(
            f"lengths must be between 0 and {time}, the steps of x, got {int(lengths.min().item())} to "
            f"{int(lengths.max().item())}"
        ) from None
    return arange(time, device=lengths.device) < lengths.reshape((math.prod(leading), 1))


class LstmCell(Cell[LstmState]):
    """One step of an `Lstm` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden] each.

    The parameters are weight [d_input, 4 d_hidden], recurrent [d_hidden, 4 d_hidden] and bias [4 d_hidden], with the
    gates side by side in the order i, f, g, o. `init_state(*shape)` is the zero state.

    >>> import phlox as px
    >>> cell = LstmCell(3, 2)
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).hidden.shape
    (5, 2)
    """

    function = staticmethod(functional.lstm)
    gates = 4
    states = ("hidden", "cell")


class Lstm(Stack[LstmState]):
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
        initializer: the initializer of the input weights; by default uniform in +-1 / sqrt(d_hidden).
        recurrent_initializer: the initializer of the recurrent weights; by default the same.
        bias_initializer: the initializer of the biases; by default that of the weights.
        device: the device of the parameters.

    Call it with x, the state so far (by default zeros, `init_state(*shape)`), and the `lengths` of padded sequences.

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

    cell = LstmCell


class GruCell(Cell[Tensor]):
    """One step of a `Gru` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden].

    The parameters are weight [d_input, 3 d_hidden], recurrent [d_hidden, 3 d_hidden], bias [3 d_hidden] and
    recurrent_bias [d_hidden], with the gates side by side in the order r, z, n. `init_state(*shape)` is the zero state.

    >>> import phlox as px
    >>> cell = GruCell(3, 2)
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).shape
    (5, 2)
    """

    function = staticmethod(functional.gru)
    gates = 3
    own_bias = True
    recurrent_bias: Param | None
    """The bias of N, which the reset gate scales."""


class Gru(Stack[Tensor]):
    """Gated recurrent units (Cho et al. 2014): [..., time, d_input] to [..., time, d_hidden].

    At every step, r, z, n are the three parts of x_t weight + bias, and R, Z, N the parts of h recurrent:

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
        initializer: the initializer of the input weights; by default uniform in +-1 / sqrt(d_hidden).
        recurrent_initializer: the initializer of the recurrent weights; by default the same.
        bias_initializer: the initializer of the biases; by default that of the weights.
        device: the device of the parameters.

    Call it with x, the state so far (by default zeros, `init_state(*shape)`), and the `lengths` of padded sequences.

    Raises `ConfigError` if a size is less than 1, or the dropout rate is not between 0 and 1.

    >>> import phlox as px
    >>> y, state = Gru(3, 4, n_layers=2, bidirectional=True)(px.ones((5, 7, 3)))
    >>> y.shape, state.shape
    ((5, 7, 8), (4, 5, 4))
    """

    cell = GruCell


def _check_activation(activation: Activation) -> Activation:
    if activation not in ("tanh", "relu"):
        raise ConfigError(f"RnnCell: activation must be 'tanh' or 'relu', got {activation!r}")
    return activation


class RnnCell(Cell[Tensor]):
    """One step of an `Rnn` of one layer: x [..., d_input] and a state give the next state, [..., d_hidden].

    The parameters are weight [d_input, d_hidden], recurrent [d_hidden, d_hidden] and bias [d_hidden].
    `init_state(*shape)` is the zero state.

    >>> import phlox as px
    >>> cell = RnnCell(3, 2, activation="relu")
    >>> state = cell(px.ones((5, 3)))
    >>> cell(px.ones((5, 3)), state).shape
    (5, 2)
    """

    function = staticmethod(functional.rnn)
    gates = 1

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        activation: Activation = "tanh",
        bias: bool = True,
        initializer: Initializer | None = None,
        recurrent_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        super().__init__(
            d_input, d_hidden, bias=bias, initializer=initializer, recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer, device=device,
        )  # fmt: skip
        self.activation: Activation = _check_activation(activation)

    def run(
        self, x: Tensor, start: Sequence[Tensor], mask: Any = None, reverse: bool = False, **options: Any
    ) -> tuple[Tensor, ...]:
        """See `Cell.run`."""
        return super().run(x, start, mask, reverse, activation=self.activation, **options)


class Rnn(Stack[Tensor]):
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
        initializer: the initializer of the input weights; by default uniform in +-1 / sqrt(d_hidden).
        recurrent_initializer: the initializer of the recurrent weights; by default the same.
        bias_initializer: the initializer of the biases; by default that of the weights.
        device: the device of the parameters.

    Call it with x, the state so far (by default zeros, `init_state(*shape)`), and the `lengths` of padded sequences.

    Raises `ConfigError` if a size is less than 1, or the dropout rate is not between 0 and 1.

    >>> import phlox as px
    >>> y, state = Rnn(3, 4)(px.ones((5, 7, 3)))
    >>> y.shape, state.shape
    ((5, 7, 4), (1, 5, 4))
    """

    cell = RnnCell

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        *,
        activation: Activation = "tanh",
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
            d_input, d_hidden, n_layers=n_layers, bias=bias, bidirectional=bidirectional, dropout=dropout,
            initializer=initializer, recurrent_initializer=recurrent_initializer, bias_initializer=bias_initializer,
            device=device,
        )  # fmt: skip
        for cell in (*self.layers, *self.reverse_layers):
            cell.activation = _check_activation(activation)


class LstmCellConfig(config_of(LstmCell)):
    """Hyper-parameters of `LstmCell`."""


class LstmConfig(config_of(Lstm)):
    """Hyper-parameters of `Lstm`."""


class GruCellConfig(config_of(GruCell)):
    """Hyper-parameters of `GruCell`."""


class GruConfig(config_of(Gru)):
    """Hyper-parameters of `Gru`."""


class RnnCellConfig(config_of(RnnCell)):
    """Hyper-parameters of `RnnCell`."""


class RnnConfig(config_of(Rnn)):
    """Hyper-parameters of `Rnn`."""
