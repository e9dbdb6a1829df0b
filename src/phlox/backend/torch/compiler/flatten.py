"""Arguments and results of a compiled function as flat lists of arrays, and back."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from phlox.backend import pytree
from phlox.backend.torch.tracer import RngState

Sizes: TypeAlias = list[int | None]
"""For each leaf: the length of its tuple of arrays, -1 for the words of a random stream, or None for one array."""

_nodes: dict[type[Any], pytree.PyTreeNode] = {}
pytree.add_listener(lambda node: _nodes.__setitem__(node.cls, node))


def flatten_arguments(leaves: Sequence[Any], flat: list[Any]) -> Sizes:
    """Append the arrays of these leaves: arrays, tuples of them, scalars, and the words of a random stream."""
    sizes: Sizes = []
    for leaf in leaves:
        if isinstance(leaf, tuple):
            parts = cast("tuple[Any, ...]", leaf)
            sizes.append(len(parts))
            flat.extend([x if isinstance(x, torch.Tensor) else as_tensor(x) for x in parts])
        elif isinstance(leaf, RngState):
            sizes.append(-1)
            flat.append(leaf.words)
        elif isinstance(leaf, np.ndarray) and leaf.dtype == np.uint32:
            sizes.append(-1)
            flat.append(torch.from_numpy(leaf.astype(np.int64)))
        else:
            sizes.append(None)
            flat.append(leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf))
    return sizes


def unflatten_arguments(sizes: Sizes, arrays: Iterator[Any]) -> list[Any]:
    """The leaves, built from the next arrays."""
    leaves: list[Any] = []
    for size in sizes:
        if size is None:
            leaves.append(next(arrays))
        elif size < 0:
            leaves.append(RngState(next(arrays)))
        else:
            leaves.append(tuple([next(arrays) for _ in range(size)]))
    return leaves


def count(sizes: Sizes) -> int:
    """The number of arrays of these leaves."""
    return sum([1 if size is None or size < 0 else size for size in sizes])


def in_tuples(sizes: Sizes) -> list[int]:
    """The positions of arrays in tuples: the arrays of modules and states."""
    start, positions = 0, list[int]()
    for size in sizes:
        positions += range(start, start + size) if size is not None and size >= 0 else ()
        start += count([size])
    return positions


def as_tensor(x: Any, number: torch.dtype = torch.float64, integer: torch.dtype = torch.int64) -> torch.Tensor:
    """A tensor unchanged; a scalar, or an array of scalars, as a tensor."""
    if isinstance(x, torch.Tensor):
        return x
    is_integer = x.dtype.kind == "i" if isinstance(x, (np.ndarray, np.generic)) else isinstance(x, int)
    return torch.tensor(x, dtype=integer if is_integer else number)


def flatten_result(value: Any, flat: list[Any]) -> Callable[[Iterator[Any]], Any]:
    """Append the arrays of a result; returns a function that rebuilds the result from other arrays."""

    def leaf(part: Any, path: str) -> pytree.Build | None:
        node = _nodes.get(type(part))
        if node is not None:
            parts, structure = node.flatten(part)
            inner = flatten_result(list(parts), flat)
            return lambda arrays: node.unflatten(structure, inner(arrays))
        if isinstance(part, (list, tuple)):
            return None
        flat.append(part)
        return next

    return pytree.take_apart(value, leaf)
