"""Attention in programs on a CPU by our own kernel, for sequences of some dozens to a thousand.

PyTorch's flash attention is made for thousands: it calls BLAS for each block, and gains nothing from a causal mask.
A value that is not finite may affect the results of the seven queries before it.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import replace_node
from phlox.backend.torch.compiler.kernels.cpp import NUMBER, POINTER, address, integers, load

_FEWEST = 64
"""The least number of queries: with fewer, gathering the keys takes too large a share of the time."""
_MOST = {True: 1 << 16, False: 1 << 14}
"""The most elements in a head's keys, by `causal`: keys and values must fit a core's cache."""
_integers = lru_cache(maxsize=256)(integers)

# --- the kernel


@cache
def _kernel() -> Any:
    return load("attention", {"attend": [*[POINTER] * 5, ctypes.c_float, POINTER, POINTER, NUMBER]})


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    y, sums = _on_fakes(query)
    sizes = _integers(*query.shape[:3], key.shape[2], query.shape[3], causal)
    strides = _integers(*(step for x in (query, key, value, y) for step in x.stride()[:3]), *sums.stride())
    operands, results = map(address, (query, key, value)), map(address, (y, sums))
    _kernel().attend(sizes, strides, *operands, scale, *results, torch.get_num_threads())
    return y, sums


def _on_fakes(query: Any, *_: Any) -> tuple[Any, Any]:
    """New arrays for results, with the memory order of PyTorch's kernel: the heads of a query are adjacent."""
    batch, heads, length, size = query.shape
    y, sums = query.new_empty((batch, length, heads, size)), query.new_empty((batch, length, heads))
    return y.transpose(1, 2), sums.transpose(1, 2)


# --- the operation

_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("attention(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> (Tensor, Tensor)")
_library.impl("attention", _attend, "CPU")
torch.library.register_fake("phlox::attention", _on_fakes, lib=_library)

# --- in graphs


def lower(graph: Any) -> None:
    """Replace PyTorch's kernel in a graph, where ours is faster; the backward pass stays PyTorch's."""
    nodes = [node for node in graph.graph.nodes if compat.FLASH_ATTENTION.is_of(node) and _is_supported(node)]
    for node in nodes:
        query, key, value, _, causal = _arguments(node)
        scale = node.kwargs.get("scale")
        operands = (query, key, value, causal, query.meta["val"].shape[3] ** -0.5 if scale is None else scale)
        with graph.graph.inserting_before(node):
            replacement = graph.graph.call_function(torch.ops.phlox.attention.default, operands)
        replace_node(graph.graph, node, replacement)
    if nodes:
        graph.recompile()


def _arguments(node: Any) -> list[Any]:
    """Query, key, value, dropout, and whether it is causal."""
    return [*node.args, *[0.0, False][len(node.args) - 3 :]]


def _is_supported(node: Any) -> bool:
    query, key, _, dropout, causal = _arguments(node)
    q, k = query.meta["val"], key.meta["val"]
    if dropout or node.kwargs.get("attn_mask") is not None or q.dtype is not torch.float32 or q.device.type != "cpu":
        return False
    if q.shape[2] < _FEWEST or not 0 < k.shape[2] * k.shape[3] <= _MOST[causal]:
        return False
    return _kernel() is not None and q.shape[3] % _kernel().lanes() == 0
