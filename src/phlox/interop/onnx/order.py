"""The order of nodes: each after those whose results it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from phlox.errors import RecordError


def sorted_nodes(nodes: Sequence[Any], initial: set[str], around: Iterable[str], location: str) -> Iterator[Any]:
    """The nodes in an order in which each comes after those whose results it uses.

    `initial` are the values that the graph begins with, `around` those of the enclosing graphs. Raises `RecordError`,
    which begins with `location`, for a value that no node or more than one node makes, and for cycles.
    """
    available = initial.union(around)
    outputs = {name for proto in nodes for name in proto.output if name}
    seen: set[str] = set()
    for name in (name for proto in nodes for name in proto.output if name):
        if name in seen or name in initial:
            raise RecordError(f"{location}: `{name}` is made twice")
        seen.add(name)
    missing: list[set[str]] = []
    waiting: dict[str, list[int]] = {}
    for index, proto in enumerate(nodes):
        lacking = {name for name in inputs_of(proto, outputs) if name not in available}
        if nowhere := sorted(lacking - outputs):
            raise RecordError(f"{location}: the node {called(proto)} uses `{nowhere[0]}`, which nothing makes")
        missing.append(lacking)
        for name in lacking:
            waiting.setdefault(name, []).append(index)
    ready = [index for index, lacking in enumerate(missing) if not lacking]  # sorted, and so a heap
    count = 0
    while ready:
        proto = nodes[heappop(ready)]
        count += 1
        yield proto
        for name in proto.output:
            for index in waiting.pop(name, ()):
                missing[index].discard(name)
                if not missing[index]:
                    heappush(ready, index)
    if count < len(nodes):
        stuck = [called(nodes[index]) for index, lacking in enumerate(missing) if lacking]
        raise RecordError(f"{location}: these nodes wait for each other's results: {', '.join(stuck[:5])}")


def domain_of(name: str) -> str:
    """The domain of an operator set; ONNX's own is "", whose other name is ai.onnx."""
    return "" if name == "ai.onnx" else name


def called(proto: Any) -> str:
    """The name of a `NodeProto` in error messages."""
    whole = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
    return f"`{proto.name}` ({whole})" if proto.name else f"({whole}) that makes `{', '.join(proto.output)}`"


def inputs_of(proto: Any, outputs: set[str]) -> Iterator[str]:
    """The values that a node uses, with those that its subgraphs use of the other nodes of this graph."""
    yield from (name for name in proto.input if name)
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                yield from (name for name in inputs_of(inner, outputs) if name in outputs and name not in own)
            yield from (value.name for value in graph.output if value.name in outputs and value.name not in own)
