"""Common subexpression elimination for scalars: learning rates, step counts, and values computed from them."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import shape_of, written_to


def merge_scalars(graph: Any) -> None:
    """Merge nodes that compute the same scalar, as each parameter does of the learning rate and the number of steps."""
    nodes = list(graph.graph.nodes)
    written = written_to(nodes)
    first_nodes: dict[Any, Any] = {}
    for node in nodes:
        schema = compat.schema_of(node.target)
        if schema is None or shape_of(node) != () or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        parts = node.all_input_nodes
        known_to_stay = all(shape_of(part) == () or part.op == "placeholder" for part in parts)
        if not known_to_stay or not written.isdisjoint([node, *parts]):
            continue
        key = node.target, plain(node.args), plain(tuple(node.kwargs.items()))
        first = first_nodes.setdefault(key, node)
        if first is not node and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(first)
            graph.graph.erase_node(node)
    graph.recompile()


def plain(value: Any) -> Any:
    """A key that is equal only for equal arguments of one type."""
    if isinstance(value, (list, tuple)):
        return tuple([plain(part) for part in value])
    return value if isinstance(value, fx.Node) else (type(value), repr(value))
