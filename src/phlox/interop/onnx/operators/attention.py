"""Products of matrices, attention, and the fused operators of onnxruntime's own optimizer (`com.microsoft`)."""

from __future__ import annotations

import math
from typing import Any

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import MICROSOFT, operators
from phlox.tensor import Tensor, arange, concat, einsum, functional, linalg, matmul, where

X = Tensor[Any, Any, Any]


def _gemm(node: Node, a: X, b: X, c: X | None = None) -> X:
    y = matmul(a.mT if node.get("transA", 0) else a, b.mT if node.get("transB", 0) else b)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    y = y if alpha == 1.0 else y * alpha
    return y if c is None or beta == 0.0 else y + (c if beta == 1.0 else c * beta)


def _einsum(node: Node, *xs: X) -> X:
    equation = node.get("equation").replace(" ", "")
    return einsum(equation, *xs)


operators(
    {
        "MatMul": lambda node, a, b: matmul(a, b),
        "Gemm": _gemm,
        "Einsum": _einsum,
        "Det": lambda node, x: linalg.det(x),
    }
)


def _heads(x: X, count: int) -> X:
    batch, length, width = x.shape
    return x.reshape((batch, length, count, width // count)).swapaxes(1, 2)


def _attention(
    node: Node,
    q: X,
    k: X,
    v: X,
    mask: X | None = None,
    past_key: X | None = None,
    past_value: X | None = None,
    lengths: X | None = None,
) -> Any:
    flat = q.ndim == 3
    if flat:
        q = _heads(q, node.get("q_num_heads"))
        k, v = (_heads(x, node.get("kv_num_heads")) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = concat([past_key, k], 2), concat([past_value, v], 2)
    scale = node.get("scale", 0.0) or 1.0 / math.sqrt(q.shape[-1])
    cap = node.get("softcap", 0.0)
    allowed, bias = _masks(node, mask, q, k, lengths, 0 if past_key is None else past_key.shape[2])
    if not node.wants(3) and not cap:
        y = functional.attention(q, k, v, mask=allowed, bias=bias, scale=scale)
        seen = None
    else:
        y, seen = _in_steps(node, q, k, v, allowed, bias, scale, cap)
    if flat:
        y = y.swapaxes(1, 2).reshape((y.shape[0], y.shape[2], -1))
    return y, k, v, seen


def _masks(node: Node, mask: X | None, q: X, k: X, lengths: X | None, past: int) -> tuple[X | None, X | None]:
    """Which keys each query may attend to (Bool), and the bias that is added to the scores (Float)."""
    allowed, bias = None, None
    n, m = q.shape[2], k.shape[2]
    device = q.device
    if mask is not None:
        if mask.shape[-1] < m:  # shorter masks hide the keys beyond
            padding = ((0, 0),) * (mask.ndim - 1) + ((0, m - mask.shape[-1]),)
            mask = mask.pad(padding) if mask.kind.name == "bool" else mask.pad(padding, -math.inf)
        allowed, bias = (mask, None) if mask.kind.name == "bool" else (None, mask)
    left = node.get("left_window_size", -1)
    right = 0 if node.get("is_causal", 0) else node.get("right_window_size", -1)
    if left >= 0 or right >= 0:
        rows, columns = arange(n, device=device).reshape((n, 1)) + past, arange(m, device=device)
        if lengths is not None:
            rows = rows + (lengths - n).reshape((-1, 1, 1, 1))
        if right >= 0:
            allowed = _both(allowed, columns <= rows + right)
        if left >= 0:
            allowed = _both(allowed, columns >= rows - left)
    if lengths is not None:
        is_present = arange(m, device=device) < lengths.reshape((-1, 1, 1, 1))
        allowed = _both(allowed, is_present)
    return allowed, bias


def _both(mask: X | None, other: X) -> X:
    return other if mask is None else mask & other


def _in_steps(node: Node, q: X, k: X, v: X, allowed: X | None, bias: X | None, scale: float, cap: float) -> tuple[X, X]:
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = k.repeat(times, 1), v.repeat(times, 1)
    scores = matmul(q, k.mT) * scale
    capped = (scores / cap).tanh() * cap if cap else scores
    masked = capped if bias is None else capped + bias
    masked = masked if allowed is None else where(allowed, masked, -math.inf)
    size = masked.max(-1, keepdims=True)
    shares = (masked - where(size == -math.inf, 0.0, size)).exp()
    total = shares.sum(-1, keepdims=True)
    shares = shares / where(total == 0.0, 1.0, total)
    stage: int = node.get("qk_matmul_output_mode", 0)
    return matmul(shares, v), (scores, capped, masked, shares)[stage]


def _rotary(node: Node, x: X, cos: X, sin: X, positions: X | None = None) -> X:
    flat = x.ndim == 3
    if flat:
        x = _heads(x, node.get("num_heads"))
    width = node.get("rotary_embedding_dim", 0) or x.shape[-1]
    unrotated = x[..., width:]
    x = x[..., :width]
    if positions is not None:
        cos, sin = cos.take(positions, 0), sin.take(positions, 0)
    cos, sin = (table[..., : width // 2].expand_dims(1) for table in (cos, sin))
    if node.get("interleaved", 0):
        left, right = x[..., 0::2], x[..., 1::2]
    else:
        left, right = x[..., : width // 2], x[..., width // 2 :]
    real, imaginary = left * cos - right * sin, left * sin + right * cos
    if node.get("interleaved", 0):
        y = concat([real.expand_dims(-1), imaginary.expand_dims(-1)], -1).reshape(x.shape)
    else:
        y = concat([real, imaginary], -1)
    y = concat([y, unrotated], -1) if unrotated.shape[-1] else y
    return y.swapaxes(1, 2).reshape((y.shape[0], y.shape[2], -1)) if flat else y


operators({"Attention": _attention, "RotaryEmbedding": _rotary})


def _fused_matmul(node: Node, a: X, b: X) -> X:
    y = matmul(a.mT if node.get("transA", 0) else a, b.mT if node.get("transB", 0) else b)
    return y * node.get("alpha", 1.0)


def _fast_gelu(node: Node, x: X, bias: X | None = None) -> X:
    return (x if bias is None else x + bias).gelu(approximate=True)


def _skip_layer_norm(node: Node, x: X, skip: X, gamma: X, beta: X | None = None, bias: X | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    y = functional.layer_norm(total, gamma, beta, epsilon=node.get("epsilon", 1e-12))
    return y, None, None, total


def _skip_rms_norm(node: Node, x: X, skip: X, gamma: X, bias: X | None = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    return functional.rms_norm(total, gamma, epsilon=node.get("epsilon", 1e-12)), None, None, total


operators(
    {
        "Gelu": lambda node, x: x.gelu(),
        "BiasGelu": lambda node, x, bias: (x + bias).gelu(),
        "FastGelu": _fast_gelu,
        "QuickGelu": lambda node, x: x * (x * node.get("alpha", 1.702)).sigmoid(),
        "FusedMatMul": _fused_matmul,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    },
    domain=MICROSOFT,
)
