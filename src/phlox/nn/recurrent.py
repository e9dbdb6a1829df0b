"""The base of recurrent layers: cells with weights, and stacks of cells that process sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from phlox.backend import DeviceLike, Int
from phlox.errors import ConfigError, IndexRangeError, KindError, RangeError, ShapeError
from phlox.module import Module, Param
from phlox.nn.dropout import dropout
from phlox.nn.initializer import Initializer, Uniform, bias_initializer_of
from phlox.tensor import Tensor, arange, concat, stack, tensor, zeros

States = tuple[Tensor, ...]


class Cell(Module):
    """The weights of one recurrent layer in one direction; the base of `LstmCell`, `GruCell` and `RnnCell`.

    By default all weights are initialised as in PyTorch: uniform in +-1 / sqrt(d_hidden). PyTorch has two biases that
    are always added; here there is one.
    """

    gates: ClassVar[int]
    """The number of gates, whose weights are concatenated."""
    states: ClassVar[tuple[str, ...]]
    """The names of the parts of the state."""
    own_bias: ClassVar[bool] = False
    """Does the last gate have a separate recurrent bias?"""

    def __init__(
        self,
        d_input: int,
        d_hidden: int,
        bias: bool,
        initializer: Initializer | None,
        recurrent_initializer: Initializer | None,
        bias_initializer: Initializer | None,
        device: DeviceLike | None,
    ) -> None:
        if min(d_input, d_hidden) < 1:
            raise ConfigError(
                f"{type(self).__name__}: sizes must be at least 1, got d_input={d_input} and d_hidden={d_hidden}"
            )
        bound = 1.0 / math.sqrt(d_hidden)
        usual = Uniform(low=-bound, high=bound)
        self.d_input, self.d_hidden = d_input, d_hidden
        columns = self.gates * d_hidden
        fans = (d_input, d_hidden)  # of each gate
        begin = usual if initializer is None else initializer
        self.weight = Param.deferred((d_input, columns), begin, fans=fans, device=device)
        again = usual if recurrent_initializer is None else recurrent_initializer
        self.recurrent = Param.deferred((d_hidden, columns), again, fans=(d_hidden, d_hidden), device=device)
        begin = bias_initializer_of(begin, bias_initializer)
        self.bias = Param.deferred((columns,), begin, fans=fans, device=device) if bias else None
        if self.own_bias:
            again = Param.deferred((d_hidden,), begin, fans=fans, device=device) if bias else None
            self.recurrent_bias = again

    def _values(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.weight.val(), self.recurrent.val(), None if self.bias is None else self.bias.val()

    def run(self, x: Tensor, start: States, mask: Any = None, reverse: bool = False) -> tuple[Tensor, States]:
        """Process x [batch, time, d_input]: the results and the final states."""
        raise NotImplementedError

    def _one_step(self, x: Tensor, start: States | None) -> States:
        """The states [..., d_hidden] after x [..., d_input]."""
        if x.ndim < 1 or x.shape[-1] != self.d_input:
            raise ShapeError(f"x of shape {x.shape} does not have the {self.d_input} features that it was made for")
        leading = x.shape[:-1]
        shape = (*leading, self.d_hidden)
        batch = math.prod(leading)
        start = _starts(self.states, start, shape, x)
        _, last = self.run(x.reshape((batch, 1, self.d_input)), tuple([one.reshape((batch, -1)) for one in start]))
        return tuple([one.reshape(shape) for one in last])

    def _zeros(self, shape: tuple[int, ...]) -> States:
        device = self.weight.device
        return tuple([zeros((*shape, self.d_hidden), device=device) for _ in self.states])


class Stack(Module):
    """Stacked layers of cells; the base of `Lstm`, `Gru` and `Rnn`."""

    def __init__(
        self,
        cell: Callable[..., Cell],
        d_input: int,
        d_hidden: int,
        n_layers: int,
        bidirectional: bool,
        dropout: float,
        **options: Any,
    ) -> None:
        """`options` are passed to every cell."""
        name = type(self).__name__
        if n_layers < 1:
            raise ConfigError(f"{name}: n_layers must be at least 1, got {n_layers}")
        if not 0.0 <= dropout <= 1.0:
            raise ConfigError(f"{name}: dropout must be between 0 and 1, got {dropout}")
        self.d_input, self.d_hidden, self.n_layers, self.dropout = d_input, d_hidden, n_layers, dropout
        self.bidirectional = bidirectional
        width = d_hidden * (1 + bidirectional)
        inputs = [d_input, *[width] * (n_layers - 1)]
        self.layers = [cell(size, d_hidden, **options) for size in inputs]
        self.reverse_layers = [cell(size, d_hidden, **options) for size in inputs] if bidirectional else []

    def _run(
        self, x: Tensor, start: States | None, lengths: Tensor[Any, Any, Int] | Sequence[int] | None
    ) -> tuple[Tensor, States]:
        """The results of the last layer, and the final states of all layers, each part stacked."""
        if x.ndim < 2 or not x.shape[-2]:
            raise ShapeError(f"x must be [..., time, {self.d_input}] with time >= 1, got shape {x.shape}")
        *leading, time, features = x.shape
        if features != self.d_input:
            raise ShapeError(f"x of shape {x.shape} does not have the {self.d_input} features that it was made for")
        batch = math.prod(leading)
        count = self.n_layers * (1 + self.bidirectional)
        start = _starts(self.layers[0].states, start, (count, *leading, self.d_hidden), x)
        flat = [one.reshape((count, batch, self.d_hidden)) for one in start]
        mask = None if lengths is None else _mask(lengths, tuple(leading), time, x)
        last: list[States] = []
        y = x.reshape((batch, time, features))
        for number, forward in enumerate(self.layers):
            if number and self.dropout and self.is_training(x):
                y = dropout(y, self.dropout)
            cells = [forward, *self.reverse_layers[number : number + 1]]
            found: list[Tensor] = []
            for reverse, cell in enumerate(cells):
                place = len(last)
                one, states = cell.run(y, tuple([state[place] for state in flat]), mask, bool(reverse))
                found.append(one)
                last.append(states)
            y = found[0] if len(found) == 1 else concat(found, -1)
        shape = (count, *leading, self.d_hidden)
        return y.reshape((*leading, time, y.shape[-1])), tuple(
            [stack(states).reshape(shape) for states in zip(*last, strict=True)]
        )

    def _zeros(self, shape: tuple[int, ...]) -> States:
        return self.layers[0]._zeros((self.n_layers * (1 + self.bidirectional), *shape))  # pyright: ignore[reportPrivateUsage]


def _starts(names: tuple[str, ...], given: States | None, shape: tuple[int, ...], x: Tensor) -> States:
    """The initial states, zeros by default; `ShapeError` if they do not fit x."""
    if given is None:
        return tuple([zeros(shape, device=x.device) for _ in names])
    for name, one in zip(names, given, strict=True):
        if not isinstance(one, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"the state's {name} must be a tensor of shape {shape}, got {type(one).__name__}")
        if one.shape != shape:
            raise ShapeError(f"the state's {name} must be of shape {shape} for x of shape {x.shape}, got {one.shape}")
    return given


def _mask(
    lengths: Tensor[Any, Any, Int] | Sequence[int], leading: tuple[int, ...], time: int, x: Tensor
) -> Tensor[Any, Any, Any]:
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
