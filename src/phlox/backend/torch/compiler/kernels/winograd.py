"""Convolutions with 3x3 filters in programs on a CPU by Winograd's algorithm: half the time of direct convolution.

If there is no kernel for this CPU, convolutions stay as they are. Rounding errors are two to three times as large as in
direct convolution, some 1e-6 of the largest result. An infinity or NaN makes the 4x4 results around it NaN, and values
beyond 1e37 may overflow on the way.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import replace_node
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, SIZE, address, integers, load

_aten: Any = torch.ops.aten
_POINTS = 36
"""The number of points that a filter of nine numbers is transformed to."""
_TILE = 4
"""The number of results along an axis that are computed together."""
_MOST_BYTES = 1 << 25
"""The most bytes of transformed filters: with more, memory is the bottleneck."""
_WORTH = 0.55
"""The largest share of direct convolution's multiplications; tiles that reach beyond the images add some."""
TRAINED, KEPT = 32, 4
"""The number of tiles in all images from which it is faster: if the filters are new in every call, and if not."""

# --- the kernel


@cache
def _kernel() -> Any:
    filters = [POINTER, POINTER, SIZE, SIZE, POINTER, NUMBER]
    convolve = [*[POINTER] * 5, NUMBER, POINTER, NUMBER]
    arguments = {"put_filters": filters, "convolve": convolve, "put_weight_gradient": [*[POINTER] * 6, NUMBER]}
    return load("winograd", arguments)


def _sizes(x: torch.Tensor, out: int, padding: Sequence[int]) -> Any:
    """The sizes that the kernel takes."""
    images, channels, height, width = x.shape
    rows, columns = (size + 2 * pad - 2 for size, pad in zip((height, width), padding, strict=True))
    return integers(images, height, width, channels, out, *padding, rows, columns)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def filters(weight: torch.Tensor, turned: bool) -> torch.Tensor:
    """The transformed filters; for the backward pass, `turned` by 180 degrees, with the channels swapped."""
    out, channels = weight.shape[:2]
    strides, start = weight.stride(), weight.data_ptr()
    if turned:
        out, channels = channels, out
        start += weight.element_size() * 2 * (strides[2] + strides[3])
        strides = strides[1], strides[0], -strides[2], -strides[3]
    points = weight.new_empty((_POINTS, channels, out))
    _kernel().put_filters(start, integers(*strides), channels, out, points.data_ptr(), torch.get_num_threads())
    return points


def convolve(
    x: torch.Tensor,
    points: torch.Tensor,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    clipped: bool,
    padding: Sequence[int],
) -> torch.Tensor:
    """Images convolved with transformed filters, plus a bias, plus images; `clipped` makes negative results zero."""
    x, added = _channels_last(x), None if added is None else _channels_last(added)
    bias = None if bias is None else bias.contiguous()
    sizes = _sizes(x, points.shape[2], padding)
    y = torch.empty((x.shape[0], points.shape[2], *sizes[7:]), dtype=x.dtype, memory_format=torch.channels_last)
    operands = map(address, (x, points, bias, added))
    _kernel().convolve(sizes, *operands, clipped, y.data_ptr(), torch.get_num_threads())
    return y


def weight_gradient(x: torch.Tensor, g: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """The gradient of the weight of a convolution of `x`, from the gradient `g` of its result."""
    x, g = _channels_last(x), _channels_last(g)
    channels, out = x.shape[1], g.shape[1]
    weight = torch.empty((out, channels, 3, 3), dtype=x.dtype, memory_format=torch.channels_last)
    sums = x.new_empty(_POINTS * channels * out)
    operands, strides = map(address, (x, g, sums, weight)), integers(*weight.stride())
    _kernel().put_weight_gradient(_sizes(x, out, padding), *operands, strides, torch.get_num_threads())
    return weight


# --- the operations

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("winograd_filters(Tensor weight, bool turned) -> Tensor")
_library.define("winograd(Tensor x, Tensor points, Tensor? bias, Tensor? added, bool clipped, int[] padding) -> Tensor")
_library.define("winograd_weight_gradient(Tensor x, Tensor g, int[] padding) -> Tensor")
_library.impl("winograd_filters", filters, "CPU")
_library.impl("winograd", convolve, "CPU")
_library.impl("winograd_weight_gradient", weight_gradient, "CPU")
_operations: Any = torch.ops.phlox


def _filters_on_fakes(weight: Any, turned: bool) -> Any:
    out, channels = weight.shape[:2]
    return weight.new_empty((_POINTS, *((out, channels) if turned else (channels, out))))


def _convolve_on_fakes(x: Any, points: Any, bias: Any, added: Any, clipped: bool, padding: Any) -> Any:
    *_, rows, columns = _sizes(x, points.shape[2], padding)
    shape = x.shape[0], points.shape[2], rows, columns
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _weight_gradient_on_fakes(x: Any, g: Any, padding: Any) -> Any:
    shape = g.shape[1], x.shape[1], 3, 3
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


torch.library.register_fake("phlox::winograd_filters", _filters_on_fakes, lib=_library)
torch.library.register_fake("phlox::winograd", _convolve_on_fakes, lib=_library)
torch.library.register_fake("phlox::winograd_weight_gradient", _weight_gradient_on_fakes, lib=_library)

# --- in graphs


def suits(x: Any, y: Any, weight: Any, options: Sequence[Any], tiles: int) -> bool:
    """Is it faster for tensors like these, a convolution's options, and at least `tiles` tiles?"""
    stride, padding, dilation, transposed, _, groups = options
    if transposed or groups != 1 or set(stride) != {1} or set(dilation) != {1} or max(padding) > 2:
        return False
    if tuple(weight.shape[2:]) != (3, 3) or x.dtype is not torch.float32 or x.device.type != "cpu":
        return False
    images, channels, *_ = x.shape
    out, rows, columns = y.shape[1:]
    computed = images * -(-rows // _TILE) * -(-columns // _TILE)
    multiplied = computed * _POINTS / (images * rows * columns * 9)
    if computed < tiles or multiplied > _WORTH or _POINTS * 4 * channels * out > _MOST_BYTES:
        return False
    return _kernel() is not None and channels % _kernel().lanes() == out % _kernel().lanes() == 0


def lower(graph: Any) -> None:
    """Replace the convolutions of a graph, and their gradients, where our kernel is faster."""
    nodes = [
        node
        for node in graph.graph.nodes
        if node.target is _aten.convolution.default or compat.CONVOLUTION_BACKWARD.is_of(node)
    ]
    if not nodes:
        return
    for node in nodes:
        if node.target is _aten.convolution.default:
            x, weight, bias, *options = node.args
            if suits(x.meta["val"], node.meta["val"], weight.meta["val"], options, TRAINED):
                with graph.graph.inserting_before(node):
                    points = graph.graph.call_function(_operations.winograd_filters.default, (weight, False))
                    operands = (x, points, bias, None, False, list(options[1]))
                    replacement = graph.graph.call_function(_operations.winograd.default, operands)
                replace_node(graph.graph, node, replacement)
        else:
            g, x, weight, _, *options, _ = node.args
            if suits(x.meta["val"], g.meta["val"], weight.meta["val"], options, TRAINED):
                _lower_backward(graph.graph, node, list(options[1]))
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _lower_backward(graph: Any, node: Any, padding: list[int]) -> None:
    g, x, weight = node.args[:3]
    for part in list(node.users):
        with graph.inserting_before(part):
            if part.args[1] == 0:
                points = graph.call_function(_operations.winograd_filters.default, (weight, True))
                operands = (g, points, None, None, False, [2 - pad for pad in padding])
                replacement = graph.call_function(_operations.winograd.default, operands)
            elif part.args[1] == 1:
                replacement = graph.call_function(_operations.winograd_weight_gradient.default, (x, g, padding))
            else:
                replacement = graph.call_function(_aten.sum.dim_IntList, (g, [0, 2, 3]))
        replace_node(graph, part, replacement)
