"""GEMM in programs on a CPU by our own kernel, if MKL's is slower.

That is so if MKL does not use the CPU's AVX-512 (`cpu/features.py`): the kernel takes 0.4 of its time on an AMD
Zen 5, and three quarters to nine tenths on a Zen 4.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch

from phlox.backend.torch.compiler.graph import replace_node
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, SIZE, address, integers, load
from phlox.backend.torch.cpu.features import has_idle_vectors

_aten: Any = torch.ops.aten
_LEAST = 1 << 21
"""The least number of multiplications that is worth a call."""
_LANES = 16
"""The number of floats in a vector of AVX-512."""

# --- the kernel


@cache
def kernel() -> Any:
    """The kernel with its functions `put_panels`, `linear` and `multiply`; None if there is none for this CPU."""
    panels = [POINTER, POINTER, SIZE, SIZE, POINTER, NUMBER]
    linear = [POINTER, SIZE, SIZE, POINTER, POINTER, SIZE, POINTER, POINTER, NUMBER]
    return load("gemm", {"put_panels": panels, "linear": linear, "multiply": [*[POINTER] * 5, NUMBER]})


_sizes = lru_cache(maxsize=1024)(integers)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Rows [rows, depth] times a weight [depth, width], both of any strides, plus a bias: [rows, width]."""
    y = x.new_empty((x.shape[0], weight.shape[1]))
    sizes = _sizes(*x.shape, weight.shape[1], *x.stride(), *weight.stride())
    bias = None if bias is None else bias.contiguous()
    kernel().multiply(sizes, *map(address, (x, weight, bias, y)), torch.get_num_threads())
    return y


def suits(x: Any, weight: Any) -> bool:
    """Is it faster than the library for matrices like these?"""
    if x.dtype is not torch.float32 or weight.dtype is not torch.float32 or x.device.type != "cpu":
        return False
    return x.shape[0] * weight.numel() >= _LEAST and _is_faster()


def _is_faster() -> bool:
    return has_idle_vectors() and kernel() is not None and kernel().lanes() == _LANES


# --- the operation

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("product", product, "CPU")


def _product_on_fakes(x: Any, weight: Any, _: Any) -> Any:
    return x.new_empty((x.shape[0], weight.shape[1]))


torch.library.register_fake("phlox::product", _product_on_fakes, lib=_library)

# --- in graphs


def lower(graph: Any) -> None:
    """Replace the matrix products of a graph, where our kernel is faster."""
    nodes = [node for node in graph.graph.nodes if _is_product(node) and suits(*_factors(node))]
    for node in nodes:
        bias = node.args[0] if node.target is _aten.addmm.default else None
        with graph.graph.inserting_before(node):
            replacement = graph.graph.call_function(torch.ops.phlox.product.default, (*node.args[-2:], bias))
        replace_node(graph.graph, node, replacement)
    if nodes:
        graph.recompile()


def _factors(product: Any) -> tuple[Any, Any]:
    x, weight = product.args[-2:]
    return x.meta["val"], weight.meta["val"]


def _is_product(node: Any) -> bool:
    """Is it a product of two matrices, plus at most a row?"""
    if node.target is _aten.mm.default:
        return not node.kwargs
    if node.target is not _aten.addmm.default or node.kwargs:
        return False
    return node.args[0].meta["val"].shape == node.args[2].meta["val"].shape[1:]
