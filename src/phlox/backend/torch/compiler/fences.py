"""Known cases that Inductor compiles into wrong numbers without an error, and how we avoid them.

An operation of `FENCES` is replaced by an operator of our own, which calls PyTorch's and which Inductor neither fuses
nor runs in place. A function of `MENDS` is one of Inductor's own, corrected while it compiles for us. `settings` are
Inductor's own switches. Files that leave Phlox hold PyTorch's own operations: all of this happens when a graph is
compiled, not in a trace.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import dtypes_of, origin_of, replace_node

_aten: Any = torch.ops.aten

FAULTS: dict[str, str] = {
    "written over its operand": (
        "The inputs of a concatenation become views of its result, and an update of that result in place then changes "
        "them too, although they are used again (pytorch#177821)."
    ),
    "read before it is written": (
        "A loop that reads the result is fused with the one that fills it with zeros, and runs before the scatter "
        "(of the family of pytorch#108963, #171493 and #191571)."
    ),
    "freed while it is in use": (
        "An input of a concatenation, by then a view of its result, is overwritten by a result that needs it last. The "
        "memory of the concatenation is then given to another one (of the family of pytorch#100314)."
    ),
    "stored beyond its end": (
        "A sum that is computed in tiles of two axes, with one between them, stores whole vectors in the last tile: "
        "over the next row, and over what follows the array (pytorch#196681; with one axis #181690)."
    ),
    "rounding left out": (
        "A loop that writes numbers of half precision goes on with those that it has not rounded yet: x less x rounded "
        "is zero, and what overflows is finite (pytorch#185337, #183607)."
    ),
    "terms left out": "x + 0 is taken for x, of a zero of either sign, and x * 0 for 0, of NaN and infinity.",
    "taken for attention": (
        "Products and a softmax are taken for attention whatever axes are swapped and summed (pytorch#195320), and a "
        "row that an added mask shuts out is zeros and not NaN. Constants of PyTorch's patterns are not compared."
    ),
    "computed twice": (
        "A value that two loops read is computed in both, and vectors and single elements round functions differently "
        "(gelu, sin, pow, ...). What is compared with a result of its own, such as its maximum, then equals it "
        "nowhere, and the gradient of the maximum is zero or NaN (pytorch#186799, #168358)."
    ),
    "eight bits": (
        "The minimum and maximum of 16 or more elements of eight bits may come from unused lanes; of zeros alone, "
        "argmax gives a number that is no index (pytorch#191499). Our operations reduce no such elements."
    ),
}
"""What goes wrong, with the thread of each fault. A remedy may be removed when `test_fences.py` passes without it on
every version of PyTorch that Phlox supports."""


class Fence(NamedTuple):
    """An operation that is not handed to Inductor."""

    target: str
    """The operation of PyTorch, and its overload."""
    schema: str
    """The arguments of our operation, which has the same name."""
    faults: tuple[str, ...]
    """What is known to go wrong: keys of `FAULTS`."""


class Mend(NamedTuple):
    """A method of Inductor that is corrected."""

    owner: compat.Private
    """The class."""
    name: str
    correct: Callable[[Callable[..., Any]], Callable[..., Any]]
    """From the method to its corrected version; both take the class or the object first."""
    faults: tuple[str, ...]
    """What goes wrong without it: keys of `FAULTS`."""


_SCATTERS = ("written over its operand", "read before it is written")

FENCES: list[Fence] = [
    Fence("index_add.default", "Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1", _SCATTERS),
    Fence("index_copy.default", "Tensor self, int dim, Tensor index, Tensor source", _SCATTERS),
    Fence("scatter_add.default", "Tensor self, int dim, Tensor index, Tensor src", _SCATTERS),
    Fence(
        "scatter_reduce.two",
        "Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True",
        _SCATTERS,
    ),
    # Inductor makes scatters of these.
    Fence(
        "embedding_dense_backward.default",
        "Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq",
        _SCATTERS,
    ),
    Fence(
        "unfold_backward.default",
        "Tensor grad_in, SymInt[] input_sizes, int dim, SymInt size, SymInt step",
        _SCATTERS,
    ),
]


def _copied(realize_into: Callable[..., Any]) -> Callable[..., Any]:
    """The inputs of a concatenation are copied into its result, mostly in the loop that computes them."""

    @wraps(realize_into)
    def corrected(cls: Any, source: Any, *options: Any, **named: Any) -> Any:
        if not _compiling.get():
            return realize_into(cls, source, *options, **named)
        token = _compiling.set(False)  # it calls itself, with the copy
        try:
            return realize_into(cls, compat.inductor_clone(source), *options, **named)
        finally:
            _compiling.reset(token)

    return corrected


def _by_tiles(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction inside an axis that is computed in tiles is stored with the width of the tile."""

    @wraps(aggregate)
    def corrected(self: Any, *options: Any, **named: Any) -> Any:
        if _compiling.get() and len(options) == 2:  # other options come from an unknown PyTorch
            _, outer = options
            if outer is not None and not outer.is_reduction:
                loops: list[Any] = self.loop_nest.loops
                depth = next((depth for depth, loop in enumerate(loops) if loop.var == outer.var), len(loops))
                options = any(loop.is_reduction for loop in loops[depth + 1 :]), outer
        return aggregate(self, *options, **named)

    return corrected


def _of_the_same_formula(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A match of attention is compared with the pattern as traced for these very operands; none may have a mask."""

    @wraps(apply)
    def corrected(self: Any, match: Any, *options: Any, **named: Any) -> Any:
        if _compiling.get():
            attention = [node for node in match.replacement_graph.graph.nodes if "dot_product" in str(node.target)]
            masked = any(node.kwargs.get("attn_mask") or node.args[3:4] not in ((), (None,)) for node in attention)
            if attention and (masked or not _compared(self.extra_check)(match)):
                return None
        return apply(self, match, *options, **named)

    return corrected


def _compared(check: Any) -> Callable[[Any], bool]:
    """The check of a pattern, which traces the pattern for its operands instead of using an earlier trace."""
    names: tuple[str, ...] = getattr(getattr(check, "__code__", None), "co_freevars", ())
    if "search_fn_pattern" not in names:
        return check
    cells = [
        CellType(None) if name == "search_fn_pattern" else cell
        for name, cell in zip(names, check.__closure__, strict=True)
    ]
    return FunctionType(check.__code__, check.__globals__, check.__name__, check.__defaults__, tuple(cells))


MENDS: list[Mend] = [
    Mend(compat.CONCAT_KERNEL, "realize_into", _copied, ("freed while it is in use", "written over its operand")),
    Mend(compat.REPLACEMENT, "apply", _of_the_same_formula, ("taken for attention",)),
    Mend(compat.CPP_KERNELS, "aggregate_reduction_buffers", _by_tiles, ("stored beyond its end",)),
]

_compiling: ContextVar[bool] = ContextVar("_compiling", default=False)
"""Does Inductor compile for Phlox? The user's own `torch.compile` stays uncorrected."""
_mended: set[str] = set()


@contextmanager
def mended() -> Generator[None]:
    """A scope in which Inductor uses its corrected functions."""
    for mend in MENDS:
        owner: Any = mend.owner.find()
        if mend.name not in _mended and owner is not None and mend.name in vars(owner):
            method: Any = vars(owner)[mend.name]
            of_class = hasattr(method, "__func__")
            corrected = mend.correct(method.__func__ if of_class else method)
            setattr(owner, mend.name, classmethod(corrected) if of_class else corrected)
            _mended.add(mend.name)
    token = _compiling.set(True)
    config: Any = torch.compiler.config
    # Without this tag, Inductor would load programs from disk that were compiled without corrections.
    tag = ", ".join(["phlox", *sorted(_mended)])
    try:
        with config.patch(cache_key_tag=f"{config.cache_key_tag} {tag}".strip()):
            yield
    finally:
        _compiling.reset(token)


_library = torch.library.Library("phlox", "FRAGMENT")
_operations: Any = torch.ops.phlox
_COMPARISONS: set[Any] = {
    getattr(_aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge") if hasattr(_aten, name)
}
_fenced: dict[Any, Any] = {}


for _fence in FENCES:
    _name, _overload = _fence.target.split(".")
    _original = getattr(getattr(_aten, _name), _overload)
    _library.define(f"{_name}({_fence.schema}) -> Tensor")
    _library.impl(_name, _original, "CompositeExplicitAutograd")
    torch.library.register_fake(f"phlox::{_name}", _original, lib=_library)
    _fenced[_original] = getattr(_operations, _name).default


_library.define("kept(Tensor x) -> Tensor")
_library.impl("kept", torch.clone, "CompositeExplicitAutograd")
torch.library.register_fake("phlox::kept", torch.clone, lib=_library)


def settings(graph: Any) -> dict[str, bool]:
    """Inductor's settings for a graph, against "terms left out" and "rounding left out"."""
    halves = any(dtypes_of(node) & {torch.float16, torch.bfloat16} for node in graph.graph.nodes)
    return {"joint_graph_constant_folding": False, "emulate_precision_casts": halves}


def fence(graph: Any) -> None:
    """Replace the operations of a graph that Inductor must not see."""
    nodes = [node for node in graph.graph.nodes if node.target in _fenced]
    for node in nodes:
        with graph.graph.inserting_before(node):
            replacement = graph.graph.call_function(_fenced[node.target], node.args, node.kwargs)
        replace_node(graph.graph, node, replacement)
    kept = _compared_with_own_results(graph.graph)
    for node in kept:
        with graph.graph.inserting_after(node):
            copy = graph.graph.call_function(_operations.kept.default, (node,))
        copy.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(copy)
        copy.args = (node,)
    if nodes or kept:
        graph.recompile()


def _compared_with_own_results(graph: Any) -> list[Any]:
    """The computed floats that are compared with something that was computed from them, against "computed twice"."""
    found: dict[Any, None] = {}
    for node in graph.nodes:
        if node.target not in _COMPARISONS or not all(isinstance(part, torch.fx.Node) for part in node.args[:2]):
            continue
        bases = [_computed_tensor(part) for part in node.args[:2]]
        for base, other in (bases, bases[::-1]):
            is_computed = base.op == "call_function" and any(dtype.is_floating_point for dtype in dtypes_of(base))
            if is_computed and base not in found and _is_computed_from(other, base):
                found[base] = None
    return list(found)


def _computed_tensor(node: Any) -> Any:
    """The first tensor that this one may be a view of; of an operation with several results, the one that is taken."""
    origin = origin_of(node)
    if not isinstance(origin.meta.get("val"), (list, tuple)):
        return origin
    while node.all_input_nodes[0] is not origin:
        node = node.all_input_nodes[0]
    return node


def _is_computed_from(node: Any, source: Any) -> bool:
    """Is a node, or what it is computed from, this source?"""
    seen, open_nodes = {node}, [node]
    while open_nodes:
        current = open_nodes.pop()
        if current is source:
            return True
        for part in current.all_input_nodes:
            if part not in seen:
                seen.add(part)
                open_nodes.append(part)
    return False
