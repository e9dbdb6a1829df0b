"""Recurrent layers: if all examples share the weights, their sequences form one larger batch.

Otherwise the contract's definition is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.types import Array
from phlox.batching.build import GeneralRule, Rule, fold, unfold

if TYPE_CHECKING:
    from phlox.batching.decorator import Batched


def _recurrent(name: str, definition: Callable[..., Any], states: int, weights: int) -> Rule:
    """The rule of an operation whose operands are x, `states` states, `weights` weights, and the mask."""
    last = 1 + states + weights

    def rule(M: Batched, *arguments: Any) -> tuple[Array, ...]:
        x, alive, options = arguments[0], arguments[last], arguments[last + 1 :]
        weight_operands = arguments[1 + states : last]
        if any(type(weight) is M.box for weight in weight_operands):
            return definition(M, *arguments)
        size = M.size([*arguments[: 1 + states], alive])
        start = [fold(M, state, size) for state in arguments[1 : 1 + states]]
        mask = None if alive is None else _join(M, alive, size)
        y, *final_states = getattr(M.inner, name)(_join(M, x, size), *start, *weight_operands, mask, *options)
        return _split(M, y, size), *(unfold(M, state, size) for state in final_states)

    return GeneralRule(last + 1, rule)


def _join(M: Batched, x: Array, size: int) -> Array:
    """[time, batch, width] of all examples as [time, size * batch, width]."""
    value = M.moved(M.spread(x, size), 0, 1)
    time, _, batch, width = M.inner.shape(value)
    return M.inner.reshape(value, (time, size * batch, width))


def _split(M: Batched, value: Array, size: int) -> Array:
    """The inverse of `_join`."""
    time, rows, width = M.inner.shape(value)
    return M.boxed(M.moved(M.inner.reshape(value, (time, size, rows // max(size, 1), width)), 1, 0))


RECURRENT: dict[str, Rule] = {
    "lstm": _recurrent("lstm", RecurrentOps.lstm, 2, 3),
    "gru": _recurrent("gru", RecurrentOps.gru, 1, 4),
    "rnn": _recurrent("rnn", RecurrentOps.rnn, 1, 3),
}
