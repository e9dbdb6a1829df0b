"""GEMM with packed weights, in programs on a CPU that only predict, by our own kernel.

MKL packs a weight at every call. Where a network only predicts it is packed once; for some dozens to hundreds of rows
that saves a tenth of the time. The weight is held twice then, so programs with large weights are left alone.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch

from phlox.backend.torch.compiler.graph import arguments_of, replace_node
from phlox.backend.torch.compiler.kernels.cpp import POINTER, integers
from phlox.backend.torch.compiler.kernels.gemm import kernel
from phlox.backend.torch.compiler.passes.weight_cache import WeightCache

_aten: Any = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}
_ROWS = range(32, 512)
"""Fewer take little time, and for more the library's order costs little."""
_LEAST = 1 << 22
"""Multiplications that are worth a call."""
_MOST_BYTES = 1 << 26
"""Of the weights of a program."""

# --- the kernel


def _panel() -> int:
    return 2 * kernel().lanes()


def _panels(*weights: torch.Tensor) -> torch.Tensor:
    """Weights [depth, width], of one depth, as the kernel reads them: [panels, depth, columns of a panel]."""
    depth, widths = weights[0].shape[0], [weight.shape[1] for weight in weights]
    found = weights[0].new_empty((sum(widths) // _panel(), depth, _panel()))
    at = found.data_ptr()
    for weight, width in zip(weights, widths, strict=True):
        strides = integers(*weight.stride())
        kernel().put_panels(weight.data_ptr(), strides, depth, width, at, torch.get_num_threads())
        at += depth * width * found.element_size()
    return found


_packed = WeightCache(_panels)
"""By all programs of these weights: there is one for every number of rows."""
_widths = cache(integers)


def _linear(x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, widths: list[int]) -> list[torch.Tensor]:
    x = x.contiguous()
    rows, depth = x.shape
    found = [torch.empty((rows, width), dtype=x.dtype) for width in widths]
    results = (POINTER * len(found))(*[y.data_ptr() for y in found])
    kernel().linear(
        x.data_ptr(), rows, depth, panels.data_ptr(), None if bias is None else bias.data_ptr(),
        len(found), _widths(*widths), results, torch.get_num_threads(),
    )  # fmt: skip
    return found


# --- the operation

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("linear(Tensor x, Tensor panels, Tensor? bias, int[] widths) -> Tensor[]")
_library.impl("linear", _linear, "CPU")


def _linear_on_fakes(x: Any, _: Any, __: Any, widths: list[int]) -> Any:
    return [x.new_empty((x.shape[0], width)) for width in widths]


torch.library.register_fake("phlox::linear", _linear_on_fakes, lib=_library)

# --- in graphs

Made = Callable[..., list[torch.Tensor]]


def lower(graph: Any, weights: Sequence[int]) -> tuple[Made, list[int]] | None:
    """Compute so the products of a graph with its arguments of these positions, if it does nothing else with them.

    The graph has more arguments then. What gives them, of some of those that it had, and the positions of these; None,
    where the graph stays as it is.
    """
    arguments = arguments_of(graph.graph.nodes)
    kept = {arguments[at]: at for at in weights}
    multiplied = [weight for weight in kept if any(_is_by(user, weight) for user in weight.users)]
    if not all(_is_by(user, weight) for weight in multiplied for user in weight.users):
        return None  # there is a backward pass, or weights change
    products = [node for weight in multiplied for node in weight.users if _suits(node, kept)]
    groups: dict[Hashable, list[Any]] = {}
    for node in sorted(products):
        groups.setdefault(_same(node), []).append(node)
    places = [[(kept[node.args[-1]], _bias(node, kept)) for node in group] for group in groups.values()]
    used = sorted({at for place in places for pair in place for at in pair if at is not None})
    if not used or sum(arguments[at].meta["val"].nbytes for at in used) > _MOST_BYTES:
        return None
    last = arguments[-1]
    for number, group in enumerate(groups.values()):
        given: list[Any] = []
        for name in ("panels", "bias") if _is_biased(group[0]) else ("panels",):
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"{name}_{number}")
            given.append(last)
        _multiply_group(graph.graph, group, [*given, None][:2])
    graph.recompile()

    def made(*given: torch.Tensor) -> list[torch.Tensor]:
        by_place = dict(zip(used, given, strict=True))
        found: list[torch.Tensor] = []
        for place in places:
            found.append(_packed(*[by_place[weight] for weight, _ in place]))
            if biases := [by_place[bias] for _, bias in place if bias is not None]:
                found.append(torch.cat(biases))
        return found

    return made, used


def _same(product: Any) -> Hashable:
    """What is equal for products of the same rows, which may be views of one array; all with a bias, or without."""
    x = product.args[-2]
    return product.target, (x.args[0], tuple(x.args[1])) if x.target is _aten.view.default else x


def _is_biased(product: Any) -> bool:
    return product.target is _aten.addmm.default


def _bias(product: Any, kept: dict[Any, int]) -> int | None:
    return kept[product.args[0]] if _is_biased(product) else None


def _multiply_group(graph: Any, group: list[Any], given: list[Any]) -> None:
    widths = [node.args[-1].meta["val"].shape[1] for node in group]
    with graph.inserting_before(group[0]):
        found = graph.call_function(torch.ops.phlox.linear.default, (group[0].args[-2], *given, widths))
        parts = [graph.call_function(operator.getitem, (found, i)) for i in range(len(group))]
    for node, part in zip(group, parts, strict=True):
        replace_node(graph, node, part)


def _is_by(node: Any, weight: Any) -> bool:
    """Is it a product with this weight?"""
    return node.target in _PRODUCTS and node.args[-1] is weight and weight not in node.args[:-1]


def _suits(product: Any, kept: dict[Any, int]) -> bool:
    """Is the kernel faster for it?"""
    x, weight = (node.meta["val"] for node in product.args[-2:])
    if product.kwargs or weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return False
    if _is_biased(product):
        bias = product.args[0]
        if bias not in kept or bias.meta["val"].shape != weight.shape[1:]:
            return False
    (rows, depth), width = x.shape, weight.shape[1]
    if rows not in _ROWS or rows * depth * width < _LEAST:
        return False
    return kernel() is not None and width % _panel() == 0
