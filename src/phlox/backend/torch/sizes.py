"""Symbolic dimensions of `torch.export` and of traces with dynamic shapes."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.tracing.symbolic import RULES, SizeRules, is_symbolic


def _is_certain(question: Any) -> bool:
    """Is it true whatever the sizes are? `bool(question)` would fix them to their values in the trace."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(question)


def _less(lhs: Any, rhs: Any) -> bool | None:
    return True if _is_certain(lhs < rhs) else False if _is_certain(lhs >= rhs) else None


def _same(lhs: Any, rhs: Any) -> bool:
    return _is_certain(lhs == rhs)


def is_empty(x: torch.Tensor) -> bool:
    """Has it certainly no elements? Programs exported for open sizes use kernels that work without elements."""
    return is_known(x) and not x.numel()


def is_known(x: torch.Tensor) -> bool:
    """Are its sizes numbers? Comparing symbolic sizes would fix them."""
    return type(x.numel()) is int


__all__ = ["is_symbolic"]


def _number(size: Any, real: bool) -> Any:
    return torch.sym_float(size) if real else size


RULES[torch.SymInt] = RULES[torch.SymFloat] = SizeRules(_less, _same, torch.sym_min, torch.sym_max, _number)
