"""Recurrent layers on JAX: the loop over the steps is one program, unrolled by a few steps."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.recurrence import States
from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.types import Array
from phlox.backend.jax import explicit
from phlox.backend.jax.fused import fused
from phlox.backend.jax.sizes import is_symbolic

_UNROLL = 4
"""The steps in an unrolled iteration: XLA fuses the operations between two products; more takes long to compile."""


class Recurrent(Backend):
    """See `phlox.backend.contract.nn.recurrent`."""

    # Each definition of the contract is one program, so that its loop is a loop of XLA.
    lstm = fused(RecurrentOps.lstm, 7)
    lstm_forward = fused(RecurrentOps.lstm_forward, 7)
    lstm_backward = fused(RecurrentOps.lstm_backward, 2, 3)
    gru = fused(RecurrentOps.gru, 7)
    gru_forward = fused(RecurrentOps.gru_forward, 7)
    gru_backward = fused(RecurrentOps.gru_backward, 2, 3)
    rnn = fused(RecurrentOps.rnn, 6, 7)
    rnn_forward = fused(RecurrentOps.rnn_forward, 6, 7)
    rnn_backward = fused(RecurrentOps.rnn_backward, 2, 3, 4)

    def _product_of_steps(self, x: Array, y: Array) -> Array:
        if explicit.is_sharded(x, y):
            return explicit.product_of_rows(x, y)
        return super()._product_of_steps(x, y)

    def _steps(
        self,
        body: Callable[[States, States], tuple[Sequence[Array], Sequence[Array]]],
        start: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool,
    ) -> tuple[States, States]:
        def step(states: States, inputs: States) -> tuple[Any, Any]:
            after, saved = body(states, inputs)
            return tuple(after), tuple(saved)

        begin, every = explicit.settled(step, tuple(start), tuple(xs)), tuple(xs)
        if is_symbolic(length):
            return lax.scan(step, begin, every, reverse=reverse)
        return lax.scan(step, begin, every, length, reverse=reverse, unroll=min(_UNROLL, length))
