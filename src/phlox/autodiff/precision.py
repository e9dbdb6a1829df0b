"""Half precision on the tape: derivatives of several steps, and sums of gradients, are f32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.autodiff.build import Binary, General, Rule, Several, Unary, as_general
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.contract.widening import Convert, converters, each
from phlox.errors import UnsupportedError


def sums_of_gradients(backend: Backend) -> tuple[Callable[[Array, Array], Array], Convert | None]:
    """`add` and `settle` of `Tracked` for values of this backend."""
    wide, grow, shrink = converters(backend)
    if wide is backend:
        return getattr(backend, "float_add", _lacking), None
    add = getattr(wide, "float_add", _lacking)
    return lambda lhs, rhs: add(grow(lhs), grow(rhs)), shrink


def _lacking(lhs: Array, rhs: Array) -> Array:
    """In place of the sum for a backend that has none, which has no use for a tape."""
    raise UnsupportedError("gradients cannot be added up without `float_add`")


def at_full_precision(rule: Rule, backend: Backend, name: str) -> Rule:
    """The rule of an operation for arrays of `backend`, carried out at full precision.

    What it saves is wide, but for the operands.
    """
    wide, grow, shrink = converters(backend)
    if wide is backend:
        return rule
    elementwise = isinstance(rule, (Unary, Binary))
    if isinstance(rule, (Unary, Binary)):  # as a general one, so that what was broadcast is summed before it is rounded
        rule = as_general(getattr(backend, name), rule)
    forward, backward = rule.forward, rule.backward

    def wide_forward(B: Backend, *arguments: Any) -> tuple[Any, Any]:
        grown = [each(grow, x) for x in arguments]
        y, saved = forward(wide, *grown)
        given = {id(new): x for new, x in zip(grown, arguments, strict=True) if new is not x}
        return each(shrink, y), each(lambda x: given.get(id(x), x), saved)

    def wide_backward(B: Backend, saved: Any, g: Any, needed: Needed, *options: Any) -> Gradients:
        found = backward(wide, each(grow, saved), each(grow, g), needed, *options)
        return tuple([shrink(x) for x in found])

    kind = Several if isinstance(rule, Several) else General
    return kind(rule.operands, forward if elementwise else wide_forward, wide_backward)
