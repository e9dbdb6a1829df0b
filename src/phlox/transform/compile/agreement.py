"""Checking that all processes call a program with the same scalars, within `phlox.debug.checks()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phlox.backend.parallel import row_group
from phlox.module import Module
from phlox.tensor import Tensor
from phlox.transform.tree import leaves_of


def check_scalars(compare: Callable[[Mapping[str, Any]], object], named: Sequence[tuple[str, Any]]) -> None:
    """Raise `DistributedError` if scalars among the arguments, or the random streams, differ between processes.

    Only a call that all processes make is checked: one on sharded arrays, or on the rows of a process. Otherwise one
    process might use another learning rate, and the copies of a model would drift apart without an error.
    """
    if row_group() is not None or any(_is_global(value) for _, value in named):
        compare(dict(leaf for name, value in named for leaf in leaves_of(value, (int, float, str), name)))


def _is_global(value: Any) -> bool:
    for _, leaf in leaves_of(value, (Tensor, Module)):
        tensors: list[Any] = [leaf]
        if isinstance(leaf, Module):
            tensors = [param.val() for param in leaf.params() if param.is_initialized]
        if any(tensor.device.sharding is not None for tensor in tensors):
            return True
    return False
