"""Has the transformation that a tracer belongs to ended?"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import cache
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from jax.interpreters.partial_eval import DynamicJaxprTracer

with jax.ensure_compile_time_eval():
    _OUTSIDE = get_opaque_trace_state()  # of all transformations


def is_outside() -> bool:
    """Is no transformation running? True also while JAX unpacks the results of a function under jvp."""
    return get_opaque_trace_state() == _OUTSIDE


def has_ended(x: Any) -> bool:
    """Has the transformation certainly ended? For grad and jvp that is never certain, unless others lie below."""
    while isinstance(x, Tracer):
        if not x._trace.is_valid():  # pyright: ignore[reportPrivateUsage]
            return True
        if isinstance(x, DynamicJaxprTracer):
            return _is_closed(x) and _closing_shows()
        x = getattr(x, "primal", getattr(x, "val", None))
    return False


def _is_closed(x: Any) -> bool:
    # A finished trace drops its constants: its table of them is then of another type.
    return type(getattr(getattr(x._trace, "frame", None), "constid_to_tracer", None)) is dict


@cache
def _closing_shows() -> bool:
    """Can it be seen in this version of JAX?"""
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        seen.extend([x, _is_closed(x)])
        return x

    jax.make_jaxpr(fn)(0.0)
    tracer, closed_before = seen
    return not closed_before and _is_closed(tracer)
