"""A recorded graph in the form of which PyTorch's compiler makes good loops for a processor.

The compiler puts an operation where its result is read, unless that result has to be in memory. For arrays that is
what makes it fast. For numbers it is not, and some kernels add biases that a loop might have added on its way.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.torch.graphs import is_elementwise, shape_of

_aten: Any = torch.ops.aten
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default}


def prepare(graph: Any) -> None:
    """Change the graph so; it computes what it did. A graphics card's loops stay as they are."""
    for node in list(graph.graph.nodes):
        if shape_of(node) == () and is_elementwise(node):
            _compute_before(graph.graph, node)
        elif node.target is _aten.addmm.default and _on_cpu(node) and _goes_to_loops(node):
            _add_in_loop(graph.graph, node)
    graph.recompile()


def _compute_before(graph: Any, number: Any) -> None:
    """Have a number computed before the loops that read it: what is read through a view has to be in memory.

    In AdamW's loop there would be two `expm1` and two divisions for every sixteen elements, twice the rest of it.
    """
    loops = [user for user in number.users if shape_of(user) not in ((), None) and _on_cpu(user)]
    if loops:
        with graph.inserting_after(number):
            view = graph.call_function(_aten.as_strided.default, (number, (), ()))
        view.meta["val"] = number.meta["val"]
        for loop in loops:
            loop.replace_input_with(number, view)


def _add_in_loop(graph: Any, linear: Any) -> None:
    """Have a bias added by the loop that reads the product.

    The kernel would write the bias to every row before it multiplies, and read it there again. The sum goes by way of
    a view, since the compiler takes one that is next to a product for its own idea of the same kernel.
    """
    bias, x, weight = linear.args
    with graph.inserting_before(linear):
        product = graph.call_function(_aten.mm.default, (x, weight))
        total = graph.call_function(
            _aten.add.Tensor, (graph.call_function(_aten.unsqueeze.default, (product, 0)), bias)
        )
        found = graph.call_function(_aten.squeeze.dim, (total, 0))
    found.meta["val"] = linear.meta["val"]
    linear.replace_all_uses_with(found)
    graph.erase_node(linear)


def _goes_to_loops(linear: Any) -> bool:
    """Has the product a bias for its columns, and is it read by loops alone? Halves would be rounded once more."""
    whole = linear.meta["val"].dtype in (torch.float32, torch.float64)
    if not whole or linear.kwargs or len(shape_of(linear.args[0]) or ()) != 1:
        return False
    readers = list(linear.users)
    for reader in readers:
        if reader.target in _VIEWS:
            readers += reader.users
        elif not is_elementwise(reader):
            return False
    return bool(readers)


def _on_cpu(node: Any) -> bool:
    return node.meta["val"].device.type == "cpu"
