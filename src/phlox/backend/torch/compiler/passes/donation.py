"""Programs that write over what they are given for good, where that costs nothing and nobody else looks at it.

A step that makes new weights and moments beside the old ones needs twice their memory, and brings new pages into the
cache only to write over them. Where a result is elementwise of an argument that is donated, it takes its place.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from sys import getrefcount
from typing import Any

import torch
from torch import fx

from phlox.backend.torch import compat
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


# --- who else looks at an array


def copy_if_aliased(flat: list[Any], places: Iterable[int]) -> None:
    """Copies in these places of a list, wherever something beside the list looks at an array or may do so."""
    for at in places:
        if (_holders(flat, at), _looks(flat[at])) != _fresh:
            flat[at] = flat[at].clone()


def bump_versions(arrays: Iterable[Any]) -> None:
    """Bump the version counters, so that caches derived from these tensors are invalidated."""
    torch.autograd.graph.increment_version([x for x in arrays if not x.is_inference()])


def _holders(flat: Sequence[Any], at: int) -> int:
    return getrefcount(flat[at])


def _looks(x: torch.Tensor) -> tuple[bool, int, int]:
    """Is the memory of PyTorch's own, not a file's or NumPy's? How many share the array, and how many the memory?"""
    return x.untyped_storage().resizable(), *compat.sharers(x)


def _of_a_fresh_one() -> tuple[int, tuple[bool, int, int]] | None:
    if not compat.can_count_sharers():
        return None
    return _holders([torch.empty(1, device="cpu")], 0), _looks(torch.empty(1, device="cpu"))


_fresh = _of_a_fresh_one()
can_tell = _fresh is not None
"""Can it be told of this PyTorch's arrays who looks at them?"""
