"""Numbers in a recorded graph: learning rates, counts of steps, and what is computed of them.

They have no axes, and what is computed of them is meant to be computed once a run: neither for every parameter again,
nor, as a compiler would that puts an operation where its result is read, in every round of a loop over an array.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from phlox.backend.torch.graphs import is_elementwise, shape_of, written_to

_aten: Any = torch.ops.aten


def before_loops(graph: Any) -> None:
    """Have the compiler compute numbers before the loops of a processor that read them.

    In AdamW's loop there would be two `expm1` and two divisions for every sixteen elements, twice the rest of it. What
    is read through a view has to be in memory. A graphics card reads its memory too slowly for that to pay.
    """
    for node in list(graph.graph.nodes):
        if shape_of(node) != () or not is_elementwise(node):
            continue
        loops = [user for user in node.users if shape_of(user) not in ((), None) and _on_cpu(user)]
        if loops:
            with graph.graph.inserting_after(node):
                view = graph.graph.call_function(_aten.as_strided.default, (node, (), ()))
            view.meta["val"] = node.meta["val"]
            for loop in loops:
                loop.replace_input_with(node, view)
    graph.recompile()


def _on_cpu(node: Any) -> bool:
    return node.meta["val"].device.type == "cpu"


def merge(graph: Any) -> None:
    """Compute once what is computed for each parameter from the rate and the number of steps."""
    nodes = list(graph.graph.nodes)
    written = written_to(nodes)
    known: dict[Any, Any] = {}
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or shape_of(node) != () or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        parts = node.all_input_nodes
        known_to_stay = all(shape_of(part) == () or part.op == "placeholder" for part in parts)
        if not known_to_stay or not written.isdisjoint([node, *parts]):
            continue
        key = node.target, plain(node.args), plain(tuple(node.kwargs.items()))
        first = known.setdefault(key, node)
        if first is not node and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(first)
            graph.graph.erase_node(node)
    graph.recompile()


def plain(value: Any) -> Any:
    """What is equal only for equal arguments of one type."""
    if isinstance(value, (list, tuple)):
        return tuple([plain(one) for one in value])
    return value if isinstance(value, fx.Node) else (type(value), repr(value))
