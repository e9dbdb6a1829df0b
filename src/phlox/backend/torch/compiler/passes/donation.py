"""Donation: results overwrite donated arguments, if that costs nothing and nothing else refers to their memory.

A step that makes new weights and moments beside the old ones needs twice their memory, and brings new pages into the
cache only to overwrite them. A result that is an elementwise function of a donated argument takes the argument's
memory. Whether something else refers to it is known by ownership: a program lends its own memory, see `LentMemory`.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from phlox.backend.contract.update import ReusedBuffer
from phlox.backend.torch.compiler.graph import arguments_of, is_elementwise, origin_of, written_to

_WORTH, MUCH = 1 << 16, 1 << 22
"""The least bytes of one array, and of all: for smaller ones, finding their owners takes longer than new memory."""

_aten: Any = torch.ops.aten


def successors(graph: Any, donated: Collection[int]) -> dict[int, int]:
    """The positions of arguments, and of the results that may take their memory.

    Such a result is an elementwise function of the argument, of the same shape and type; and no result is the argument
    itself, or a view of it.
    """
    nodes = list(graph.graph.nodes)
    results = list(nodes[-1].args[0])
    shown = {origin_of(node) for node in results if isinstance(node, fx.Node)}
    shown |= written_to(nodes)
    positions = {node: i for i, node in enumerate(arguments_of(nodes)) if i in donated and node not in shown}
    reach: dict[Any, frozenset[Any]] = {node: frozenset([node]) for node in positions}
    for node in nodes:
        if is_elementwise(node):
            parts = [reach[part] for part in node.all_input_nodes if part in reach and _type_of(part) == _type_of(node)]
            if parts:
                reach[node] = frozenset[Any]().union(*parts)
    # Results of few arguments first: so the moments take their own memory, not the weights' memory.
    assigned: dict[Any, int] = {}
    times = Counter(results)
    candidates = [(index, node) for index, node in enumerate(results) if node in reach and times[node] == 1]
    for index, node in sorted(candidates, key=lambda candidate: len(reach[candidate[1]])):
        free = reach[node].difference(assigned)
        if free:
            assigned[min(free, key=positions.__getitem__)] = index
    return {positions[argument]: index for argument, index in assigned.items()}


def worthwhile(graph: Any, pairs: Mapping[int, int]) -> dict[int, int]:
    """The pairs of large arrays, if together they are large enough."""
    arguments = arguments_of(graph.graph.nodes)
    large = {argument: result for argument, result in pairs.items() if size_of(arguments[argument]) >= _WORTH}
    return large if sum(size_of(arguments[argument]) for argument in large) >= MUCH else {}


def write_over(graph: Any, pairs: Mapping[int, int]) -> list[int | None]:
    """Change the graph so that these results are written into these arguments, and no longer returned.

    Returns for every result the argument that holds it, or None if the graph returns it.
    """
    nodes = list(graph.graph.nodes)
    arguments, output = arguments_of(nodes), nodes[-1]
    results = list(output.args[0])
    sources: list[int | None] = [None] * len(results)
    with graph.graph.inserting_before(output):
        for argument, index in pairs.items():
            graph.graph.call_function(_aten.copy_.default, (arguments[argument], results[index]))
            sources[index] = argument
    output.args = ([node for node, source in zip(results, sources, strict=True) if source is None],)
    graph.recompile()
    return sources


def together(sources: Sequence[int | None], flat: Sequence[Any], returned: Iterable[Any]) -> list[Any]:
    """All results of a run: arguments that it overwrote, and arrays that it returned."""
    remaining = iter(returned)
    return [next(remaining) if source is None else flat[source] for source in sources]


def size_of(node: Any) -> int:
    """The bytes of an array."""
    value = node.meta["val"]
    return value.numel() * value.element_size()


def _type_of(node: Any) -> tuple[Any, Any]:
    value = node.meta.get("val")
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else (None, None)


# --- the owners of memory


class LentMemory(ReusedBuffer):
    """Memory that programs own, lent to one tensor after another: see `ReusedBuffer`.

    The lent tensor keeps a NumPy array alive, as does every tensor or array that shares its memory.
    """

    def __init__(self, like: torch.Tensor) -> None:
        """New memory with the values of a contiguous tensor."""
        size, self._shape = like.nbytes, like.shape
        room = np.empty(size + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        self._bytes = room[start : start + size]
        self.flat = torch.from_numpy(self._bytes).view(like.dtype)
        self._full_view().copy_(like)
        self._view: weakref.ref[Any] | None = None
        self._lent: weakref.ref[torch.Tensor] | None = None

    def _full_view(self) -> torch.Tensor:
        return self.flat.view(self._shape)

    def lend(self) -> torch.Tensor:
        view = self._bytes[...]
        lent = torch.from_numpy(view).view(self.flat.dtype).view(self._shape)
        key = id(lent)
        self._view, self._lent = weakref.ref(view), weakref.ref(lent, lambda _: _memories.pop(key, None))
        _memories[key] = self
        return lent

    def has_lent(self, x: Any) -> bool:
        return self._lent is not None and self._lent() is x

    def is_free(self) -> bool:
        return self._view is None or self._view() is None

    def copy(self) -> LentMemory:
        """New memory with the same values."""
        return LentMemory(self._full_view())


_ALIGNMENT = 64
"""The bytes of a cache line, and of the widest vectors."""
_memories: dict[int, LentMemory] = {}
"""The owner of a lent tensor's memory, by the id of the tensor; an entry is removed with its tensor."""


def take_over(flat: list[Any], positions: Iterable[int]) -> None:
    """Replace the tensors at these positions of a list by tensors of equal values, whose memory nothing else refers to.

    Only the list may still hold the tensors. A tensor lent by a program keeps its memory, unless something else refers
    to it. All others are copied: those that the caller made, and those on a GPU, whose owners are unknown.
    """
    for index in positions:
        flat[index] = _with_own_memory(flat, index)


def _with_own_memory(flat: list[Any], index: int) -> torch.Tensor:
    if flat[index].device.type != "cpu":
        return flat[index].clone()
    memory = _memories.get(id(flat[index]))
    if memory is None or not memory.has_lent(flat[index]):
        return LentMemory(flat[index]).lend()
    flat[index] = None  # deletes the tensor, which frees its memory
    return (memory if memory.is_free() else memory.copy()).lend()
