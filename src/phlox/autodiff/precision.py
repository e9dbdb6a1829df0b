"""Half precision on the tape: derivatives with several operations, and sums of gradients, are f32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from phlox.autodiff.build import Binary, General, MultiOutputRule, Rule, Unary, as_general
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients
from phlox.backend.contract.widening import Convert, converters, widened, widened_forward
from phlox.errors import UnsupportedError


def sums_of_gradients(backend: Backend) -> tuple[Callable[[Array, Array], Array], Convert | None]:
    """`add` and `settle` of `Tracked` for values of this backend."""
    wide, grow, shrink = converters(backend)
    if wide is backend:
        return getattr(backend, "float_add", _no_addition), None
    add = getattr(wide, "float_add", _no_addition)
    return lambda lhs, rhs: add(grow(lhs), grow(rhs)), shrink


def _no_addition(lhs: Array, rhs: Array) -> Array:
    """Stands in for `float_add` on a backend without it, which therefore needs no tape."""
    raise UnsupportedError("gradients cannot be added up without `float_add`")


def at_full_precision(rule: Rule, backend: Backend, name: str) -> Rule:
    """The rule of an operation for arrays of `backend`, computed at full precision."""
    wide, grow, shrink = converters(backend)
    if wide is backend:
        return rule
    elementwise = isinstance(rule, (Unary, Binary))
    if isinstance(rule, (Unary, Binary)):  # a general rule sums gradients of broadcast operands before it rounds them
        rule = as_general(getattr(backend, name), rule)
    forward = widened_forward(partial(rule.forward, wide), grow, shrink)
    backward = widened(partial(rule.backward, wide), grow, shrink)

    def wide_forward(B: Backend, *arguments: Any) -> tuple[Any, Any]:
        return forward(*arguments)

    def wide_backward(B: Backend, *arguments: Any) -> Gradients:
        return backward(*arguments)

    kind = MultiOutputRule if isinstance(rule, MultiOutputRule) else General
    return kind(rule.operands, rule.forward if elementwise else wide_forward, wide_backward)
