"""Operations that Inductor must not see, since it is known to compile them into wrong numbers without an error.

Each is replaced by an operator of our own, which calls PyTorch's and which Inductor neither fuses nor runs in place.
Files that leave Phlox hold PyTorch's own operations: the replacement happens when a graph is compiled, not in a trace.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from phlox.backend.torch.compiler.graph import replace_node

_aten: Any = torch.ops.aten


class Fence(NamedTuple):
    """An operation that is not handed to Inductor."""

    target: str
    """The operation of PyTorch, and its overload."""
    schema: str
    """The arguments of ours, which has the same name."""
    faults: tuple[str, ...]
    """What is known to go wrong: keys of `FAULTS`."""


FAULTS: dict[str, str] = {
    "written over its operand": (
        "The inputs of a concatenation become views of its result, and an update of that result in place then changes "
        "them too, although they are used again (pytorch#177821)."
    ),
    "read before it is written": (
        "A loop that reads the result is fused with the one that fills it with zeros, and runs before the scatter "
        "(of the family of pytorch#108963 and #171493)."
    ),
}
"""What goes wrong, each with its thread. A fence may go when `tests/backend/torch/compiler/test_fences.py` passes
without it on every version of PyTorch that Phlox supports."""

_BOTH = tuple(FAULTS)

FENCES: list[Fence] = [
    Fence("index_add.default", "Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1", _BOTH),
    Fence("index_copy.default", "Tensor self, int dim, Tensor index, Tensor source", _BOTH),
    Fence("scatter_add.default", "Tensor self, int dim, Tensor index, Tensor src", _BOTH),
    Fence(
        "scatter_reduce.two",
        "Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True",
        _BOTH,
    ),
]

_library = torch.library.Library("phlox", "FRAGMENT")
_operations: Any = torch.ops.phlox
_fenced: dict[Any, Any] = {}


def _like_first(x: Any, *_: Any, **__: Any) -> Any:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


for _fence in FENCES:
    _name, _overload = _fence.target.split(".")
    _original = getattr(getattr(_aten, _name), _overload)
    _library.define(f"{_name}({_fence.schema}) -> Tensor")
    _library.impl(_name, _original, "CompositeExplicitAutograd")
    torch.library.register_fake(f"phlox::{_name}", _like_first, lib=_library)
    _fenced[_original] = getattr(_operations, _name).default


def fence(graph: Any) -> None:
    """Replace the operations of a graph that Inductor must not see."""
    nodes = [node for node in graph.graph.nodes if node.target in _fenced]
    for node in nodes:
        with graph.graph.inserting_before(node):
            found = graph.graph.call_function(_fenced[node.target], node.args, node.kwargs)
        replace_node(graph.graph, node, found)
    if nodes:
        graph.recompile()
