"""Symbolic dimensions of `torch.export` and of traces with dynamic shapes."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phlox.backend.tracing.symbolic import RULES, SizeRules, is_symbolic


def _known(question: Any) -> bool:
    """Is it true whatever the sizes are? A question in Python would restrict them to what they are in the trace."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(question)


def _less(one: Any, other: Any) -> bool | None:
    return True if _known(one < other) else False if _known(one >= other) else None


def _same(one: Any, other: Any) -> bool:
    return _known(one == other)


__all__ = ["is_symbolic", "scan_symbolic"]

def _number(size: Any, real: bool) -> Any:
    return torch.sym_float(size) if real else size


RULES[torch.SymInt] = RULES[torch.SymFloat] = SizeRules(_less, _same, torch.sym_min, torch.sym_max, _number)


def scan_symbolic(
    body: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Sequence[Any], Sequence[Any]]],
    carry: tuple[Any, ...],
    xs: tuple[Any, ...],
    reverse: bool,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A loop of as many steps as a symbolic dimension says: one operation of the program, with its body inside."""
    from torch._higher_order_ops.scan import scan

    def step(state: Any, one: Any) -> Any:
        after, found = body(tuple(state), tuple(one))
        # No result may be an operand, or another result.
        return [x.clone() for x in after], [x.clone() for x in found]

    last, found = scan(step, [x.clone() for x in carry], list(xs), dim=0, reverse=reverse)
    return tuple(last), tuple(found)
