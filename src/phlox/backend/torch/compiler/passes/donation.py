"""Donation: results are written over donated arguments, where that costs nothing and nobody else looks at them.

A step that makes new weights and moments beside the old ones needs twice their memory, and brings new pages into the
cache only to write over them. Where a result is elementwise of an argument that is donated, it takes its memory. Who
else looks at that memory is known by ownership: a program lends its own, see `LentMemory`.
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
"""Bytes of one array, and of all: to ask who else holds less takes longer than to make others."""

_aten: Any = torch.ops.aten


def successors(graph: Any, donated: Collection[int]) -> dict[int, int]:
    """For arguments by position the results, by position, that may take their memory.

    They are elementwise of the argument, of its shape and type; no result is the argument itself, or a view of it.
    """
    nodes = list(graph.graph.nodes)
    results = list(nodes[-1].args[0])
    shown = {origin_of(node) for node in results if isinstance(node, fx.Node)}
    shown |= written_to(nodes)
    places = {node: at for at, node in enumerate(arguments_of(nodes)) if at in donated and node not in shown}
    reach: dict[Any, frozenset[Any]] = {node: frozenset([node]) for node in places}
    for node in nodes:
        if is_elementwise(node):
            parts = [reach[part] for part in node.all_input_nodes if part in reach and _look(part) == _look(node)]
            if parts:
                reach[node] = frozenset[Any]().union(*parts)
    # First what follows from few: of moments and weights, the moments take their own memory and leave the weights'.
    found: dict[Any, int] = {}
    times = Counter(results)
    candidates = [(at, node) for at, node in enumerate(results) if node in reach and times[node] == 1]
    for at, node in sorted(candidates, key=lambda one: len(reach[one[1]])):
        free = reach[node].difference(found)
        if free:
            found[min(free, key=places.__getitem__)] = at
    return {places[argument]: at for argument, at in found.items()}


def worthwhile(graph: Any, pairs: Mapping[int, int]) -> dict[int, int]:
    """Those of the pairs that are large, if there is much in them."""
    taken = arguments_of(graph.graph.nodes)
    large = {argument: at for argument, at in pairs.items() if size_of(taken[argument]) >= _WORTH}
    return large if sum(size_of(taken[argument]) for argument in large) >= MUCH else {}


def write_over(graph: Any, pairs: Mapping[int, int]) -> list[int | None]:
    """Change the graph so that these results are written into these arguments, and no longer returned.

    Gives for every result the argument that it then is, None for those that are returned.
    """
    nodes = list(graph.graph.nodes)
    taken, output = arguments_of(nodes), nodes[-1]
    results = list(output.args[0])
    sources: list[int | None] = [None] * len(results)
    with graph.graph.inserting_before(output):
        for argument, at in pairs.items():
            graph.graph.call_function(_aten.copy_.default, (taken[argument], results[at]))
            sources[at] = argument
    output.args = ([node for node, source in zip(results, sources, strict=True) if source is None],)
    graph.recompile()
    return sources


def together(sources: Sequence[int | None], flat: Sequence[Any], returned: Iterable[Any]) -> list[Any]:
    """All results, of the arguments of a run and of what it has returned."""
    rest = iter(returned)
    return [next(rest) if source is None else flat[source] for source in sources]


def size_of(node: Any) -> int:
    """The bytes of an array."""
    value = node.meta["val"]
    return value.numel() * value.element_size()


def _look(node: Any) -> tuple[Any, Any]:
    value = node.meta.get("val")
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else (None, None)


# --- whose memory it is


class LentMemory(ReusedBuffer):
    """Memory that programs own, lent to one tensor after another: see `ReusedBuffer`.

    What is lent keeps an array of NumPy alive, as long as any tensor or array looks at it.
    """

    def __init__(self, like: torch.Tensor) -> None:
        """New memory with the values of a tensor that lies row by row."""
        size, self._shape = like.nbytes, like.shape
        room = np.empty(size + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        self._bytes = room[start : start + size]
        self.flat = torch.from_numpy(self._bytes).view(like.dtype)
        self._all().copy_(like)
        self._view: weakref.ref[Any] | None = None
        self._lent: weakref.ref[torch.Tensor] | None = None

    def _all(self) -> torch.Tensor:
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
        """Other memory with the same values."""
        return LentMemory(self._all())


_ALIGNMENT = 64
"""Bytes: of a line of the cache, and of the widest vectors."""
_memories: dict[int, LentMemory] = {}
"""Who owns the memory of a tensor that was lent, by the identity of the tensor; it goes when the tensor does."""


def own(flat: list[Any], places: Iterable[int]) -> None:
    """Have the tensors in these places of a list in memory that nobody else can see, with their values.

    The list has to be what still holds them. What a program has lent is lent anew, unless something looks at it; all
    else is copied: what the caller made, and what is not on a processor, where nobody can tell.
    """
    for at in places:
        flat[at] = _owned(flat, at)


def _owned(flat: list[Any], at: int) -> torch.Tensor:
    if flat[at].device.type != "cpu":
        return flat[at].clone()
    memory = _memories.get(id(flat[at]))
    if memory is None or not memory.has_lent(flat[at]):
        return LentMemory(flat[at]).lend()
    flat[at] = None  # with which the tensor goes, and with that its memory is free
    return (memory if memory.is_free() else memory.copy()).lend()
