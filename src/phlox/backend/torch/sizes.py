"""Symbolic dimensions of `torch.export` and of traces with dynamic shapes."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

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


def is_empty(x: torch.Tensor) -> bool:
    """Has it certainly no elements? What is exported for open sizes takes kernels that do not mind none."""
    return is_known(x) and not x.numel()


def is_known(x: torch.Tensor) -> bool:
    """Are its sizes numbers? A comparison of others would fix them."""
    return type(x.numel()) is int


__all__ = ["is_symbolic"]


def _number(size: Any, real: bool) -> Any:
    return torch.sym_float(size) if real else size


RULES[torch.SymInt] = RULES[torch.SymFloat] = SizeRules(_less, _same, torch.sym_min, torch.sym_max, _number)
