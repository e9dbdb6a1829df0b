"""GEMM with packed weights, in programs on a CPU that only predict, by our own kernel.

MKL packs a weight at every call. If a network only predicts, its weights are packed once; for some dozens to hundreds
of rows that saves a tenth of the time. Weights are then held twice, so programs with large weights are left alone.
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
"""Fewer rows take little time; with more, packing at every call costs little."""
_LEAST = 1 << 22
"""The least number of multiplications that is worth a call."""
_MOST_BYTES = 1 << 26
"""The most bytes in the weights of a program."""

# --- the kernel


def _panel() -> int:
    return 2 * kernel().lanes()


def _panels(*weights: torch.Tensor) -> torch.Tensor:
    """Weights [depth, width], of one depth, as the kernel reads them: [panels, depth, columns of a panel]."""
    depth, widths = weights[0].shape[0], [weight.shape[1] for weight in weights]
    panels = weights[0].new_empty((sum(widths) // _panel(), depth, _panel()))
    address = panels.data_ptr()
    for weight, width in zip(weights, widths, strict=True):
        strides = integers(*weight.stride())
        kernel().put_panels(weight.data_ptr(), strides, depth, width, address, torch.get_num_threads())
        address += depth * width * panels.element_size()
    return panels


_packed = WeightCache(_panels)
"""Shared by all programs with these weights: there is one for every number of rows."""
_widths = cache(integers)


def _linear(x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, widths: list[int]) -> list[torch.Tensor]:
    x = x.contiguous()
    rows, depth = x.shape
    results = [torch.empty((rows, width), dtype=x.dtype) for width in widths]
    addresses = (POINTER * len(results))(*[y.data_ptr() for y in results])
    kernel().linear(
        x.data_ptr(), rows, depth, panels.data_ptr(), None if bias is None else bias.data_ptr(),
        len(results), _widths(*widths), addresses, torch.get_num_threads(),
    )  # fmt: skip
    return results


# --- the operation

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("linear(Tensor x, Tensor panels, Tensor? bias, int[] widths) -> Tensor[]")
_library.impl("linear", _linear, "CPU")


def _linear_on_fakes(x: Any, _: Any, __: Any, widths: list[int]) -> Any:
    return [x.new_empty((x.shape[0], width)) for width in widths]


torch.library.register_fake("phlox::linear", _linear_on_fakes, lib=_library)

# --- in graphs

Pack = Callable[..., list[torch.Tensor]]


def lower(graph: Any, weights: Sequence[int]) -> tuple[Pack, list[int]] | None:
    """Compute a graph's products with weights, its arguments at these positions, by packed weights.

    The graph then has more arguments. Returns the function that makes these of some weights, and the positions of those
    weights; None if the graph stays as it is, for example if it uses the weights in other ways.
    """
    arguments = arguments_of(graph.graph.nodes)
    positions = {arguments[index]: index for index in weights}
    multiplied = [weight for weight in positions if any(_is_product_with(user, weight) for user in weight.users)]
    if not all(_is_product_with(user, weight) for weight in multiplied for user in weight.users):
        return None  # there is a backward pass, or the weights change
    products = [node for weight in multiplied for node in weight.users if _is_faster(node, positions)]
    groups: dict[Hashable, list[Any]] = {}
    for node in sorted(products):
        groups.setdefault(_rows_key(node), []).append(node)
    pairs_of_groups = [[(positions[x.args[-1]], _bias(x, positions)) for x in group] for group in groups.values()]
    used = sorted({index for pairs in pairs_of_groups for pair in pairs for index in pair if index is not None})
    if not used or sum(arguments[index].meta["val"].nbytes for index in used) > _MOST_BYTES:
        return None
    last = arguments[-1]
    for number, group in enumerate(groups.values()):
        packed: list[Any] = []
        for name in ("panels", "bias") if _is_biased(group[0]) else ("panels",):
            with graph.graph.inserting_after(last):
                last = graph.graph.placeholder(f"{name}_{number}")
            packed.append(last)
        _multiply_group(graph.graph, group, [*packed, None][:2])
    graph.recompile()

    def pack(*weights: torch.Tensor) -> list[torch.Tensor]:
        by_position = dict(zip(used, weights, strict=True))
        packed: list[torch.Tensor] = []
        for pairs in pairs_of_groups:
            packed.append(_packed(*[by_position[weight] for weight, _ in pairs]))
            if biases := [by_position[bias] for _, bias in pairs if bias is not None]:
                packed.append(torch.cat(biases))
        return packed

    return pack, used


def _rows_key(product: Any) -> Hashable:
    """A key that is equal for products of the same rows (or of equal views of one array), with or without a bias."""
    x = product.args[-2]
    return product.target, (x.args[0], tuple(x.args[1])) if x.target is _aten.view.default else x


def _is_biased(product: Any) -> bool:
    return product.target is _aten.addmm.default


def _bias(product: Any, positions: dict[Any, int]) -> int | None:
    return positions[product.args[0]] if _is_biased(product) else None


def _multiply_group(graph: Any, group: list[Any], packed: list[Any]) -> None:
    widths = [node.args[-1].meta["val"].shape[1] for node in group]
    with graph.inserting_before(group[0]):
        results = graph.call_function(torch.ops.phlox.linear.default, (group[0].args[-2], *packed, widths))
        parts = [graph.call_function(operator.getitem, (results, i)) for i in range(len(group))]
    for node, part in zip(group, parts, strict=True):
        replace_node(graph, node, part)


def _is_product_with(node: Any, weight: Any) -> bool:
    """Is it a product with this weight?"""
    return node.target in _PRODUCTS and node.args[-1] is weight and weight not in node.args[:-1]


def _is_faster(product: Any, positions: dict[Any, int]) -> bool:
    """Is the kernel faster for this product?"""
    x, weight = (node.meta["val"] for node in product.args[-2:])
    if product.kwargs or weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return False
    if _is_biased(product):
        bias = product.args[0]
        if bias not in positions or bias.meta["val"].shape != weight.shape[1:]:
            return False
    (rows, depth), width = x.shape, weight.shape[1]
    if rows not in _ROWS or rows * depth * width < _LEAST:
        return False
    return kernel() is not None and width % _panel() == 0
