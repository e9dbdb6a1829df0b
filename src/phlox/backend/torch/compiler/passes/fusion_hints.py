"""Hints by which Inductor fuses well on a CPU.

Inductor recomputes an operation wherever its result is read, unless that result has to be materialized. For arrays of
one size that is what makes it fast. For scalars, and for rows that all columns share, it is not; and some GEMM kernels
add a bias that a fused loop would add on its way.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import is_elementwise, replace_node, shape_of

_aten: Any = torch.ops.aten
_VIEWS = {_aten.view.default, _aten.reshape.default, _aten.expand.default}


def add_hints(graph: Any) -> None:
    """Change the graph so; it computes what it did. A graphics card's loops stay as they are."""
    for node in list(graph.graph.nodes):
        if is_elementwise(node) and _is_row(node):
            _compute_before(graph.graph, node)
        elif node.target is _aten.addmm.default and _on_cpu(node) and _goes_to_loops(node):
            _add_in_loop(graph.graph, node)
    graph.recompile()


def _is_row(node: Any) -> bool:
    """Is it a number, or a row of them?"""
    shape = shape_of(node)
    return shape is not None and sum(size > 1 for size in shape) <= 1


def _compute_before(graph: Any, row: Any) -> None:
    """Have it computed before the loops over more that read it: what is read through a view has to be in memory.

    In AdamW's loop there would be two `expm1` and two divisions for every sixteen elements, twice the rest of it.
    """
    value = row.meta["val"]
    readers = [user for user in row.users if any(_is_larger(end, value) for end in _ends(user))]
    if readers:
        with graph.inserting_after(row):
            view = graph.call_function(_aten.as_strided.default, (row, value.shape, value.stride()))
        view.meta["val"] = value
        for reader in readers:
            reader.replace_input_with(row, view)


def _ends(reader: Any) -> Iterator[Any]:
    """What reads it in the end, behind views."""
    if reader.target in _VIEWS or compat.is_unsafe_view(reader.target):
        for user in reader.users:
            yield from _ends(user)
    else:
        yield reader


def _is_larger(node: Any, row: Any) -> bool:
    return shape_of(node) is not None and _on_cpu(node) and node.meta["val"].numel() > row.numel()


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
    replace_node(graph, linear, found)


def _goes_to_loops(linear: Any) -> bool:
    """Has the product a bias for its columns, and is it read by loops alone? Halves would be rounded once more."""
    whole = linear.meta["val"].dtype in (torch.float32, torch.float64)
    if not whole or linear.kwargs or len(shape_of(linear.args[0]) or ()) != 1:
        return False
    ends = [end for user in linear.users for end in _ends(user)]
    return bool(ends) and all(map(is_elementwise, ends))


def _on_cpu(node: Any) -> bool:
    return node.meta["val"].device.type == "cpu"
