"""What a program does again and again with arrays of one shape, traced once: later calls copy its operations.

A traced operation takes some hundred times as long as a copy of its node, and the graph is the same.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from phlox.backend.torch import compat


class _Recorded(NamedTuple):
    """The operations of one call."""

    nodes: list[Any]
    arguments: list[Any]
    """The nodes of its arrays."""
    results: list[Any]
    """The nodes of its results."""
    examples: Sequence[torch.Tensor]
    """Its results."""
    numbers: Sequence[Any]
    """Its scalars, kept alive because their identities are in the key."""


_recorded: WeakKeyDictionary[Any, dict[Hashable, _Recorded]] = WeakKeyDictionary()
"""For each trace, the calls by function, shapes and scalars."""


def repeated(
    function: Callable[..., Sequence[torch.Tensor]], arrays: Sequence[torch.Tensor], numbers: Sequence[Any]
) -> Sequence[torch.Tensor]:
    """`function(*arrays, numbers)`, new tensors; in a trace it must depend on nothing else."""
    tracer = compat.graph_tracer()
    arguments = [] if tracer is None else [compat.node_of(x, tracer) for x in arrays]
    if tracer is None or None in arguments:
        return function(*arrays, numbers)
    shapes = [(x.shape, x.stride(), x.dtype, x.device) for x in arrays]
    same = [arguments.index(node) for node in arguments]
    scalars = [("", id(x)) if isinstance(x, torch.Tensor) else (type(x), repr(x)) for x in numbers]
    key = function.__qualname__, *shapes, *same, *scalars
    calls = _recorded.setdefault(tracer, {})
    call = calls.get(key)
    if call is not None:
        return _copy(call, arguments, tracer)
    last = next(iter(reversed(tracer.graph.nodes)))
    results = function(*arrays, numbers)
    nodes: list[Any] = []
    for node in reversed(tracer.graph.nodes):
        if node is last:
            break
        nodes.insert(0, node)
    found = [compat.node_of(x, tracer) for x in results]
    if all(node.op == "call_function" for node in nodes) and all(node in nodes for node in found):
        calls[key] = _Recorded(nodes, arguments, found, results, numbers)
    return results


def _copy(call: _Recorded, arguments: Sequence[Any], tracer: Any) -> Sequence[torch.Tensor]:
    """New tensors, whose nodes are computed from other arrays."""
    copies: dict[Any, Any] = dict(zip(call.arguments, arguments, strict=True))

    def argument(node: Any) -> Any:
        return copies.get(node, node)

    for node in call.nodes:
        copies[node] = tracer.graph.node_copy(node, argument)
    with compat.without_proxies():
        results = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in call.examples]
    for x, node in zip(results, call.results, strict=True):
        compat.set_node(x, copies[node], tracer)
    return results
