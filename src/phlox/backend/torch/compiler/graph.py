"""FX graphs: their arguments, which nodes may be written to, which are views of what, and how one replaces another."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from phlox.backend.torch import compat


def arguments_of(nodes: Iterable[Any]) -> list[Any]:
    """The arguments of a graph, in order."""
    return [node for node in nodes if node.op == "placeholder"]


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape of the tensor that a node returns; None if it returns none."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def dtypes_of(node: Any) -> set[torch.dtype]:
    """The dtypes of the tensors that a node returns."""
    value = node.meta.get("val")
    parts: Iterable[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return {part.dtype for part in parts if isinstance(part, torch.Tensor)}


def is_elementwise(node: Any) -> bool:
    """Is it an operation on single elements?"""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def written_to(nodes: Iterable[Any]) -> set[Any]:
    """The arrays that an operation among these nodes may write to, directly or through a view."""
    schemas = [(node, compat.schema_of(node.target)) for node in nodes]
    mutable = [node for node, schema in schemas if schema is not None and schema.is_mutable]
    return {origin_of(part) for node in mutable for part in node.all_input_nodes}


def origin_of(node: Any) -> Any:
    """The first node that this one may be a view of, through a chain of views."""
    while node.op == "call_function" and node.all_input_nodes:
        schema = compat.schema_of(node.target)
        if schema is not None and all(result.alias_info is None for result in schema.returns):
            break
        node = node.all_input_nodes[0]
    return node


def replace_node(graph: Any, node: Any, replacement: Any) -> None:
    """Replace a node by another that computes the same."""
    replacement.meta["val"] = node.meta.get("val")
    node.replace_all_uses_with(replacement)
    graph.erase_node(node)
