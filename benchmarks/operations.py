"""Single operations of Phlox on each engine, against the same engine's own; and some against the other engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as torch_functional

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox import functional
from phlox.backend import Autodiff, Jax, NumPy, Torch

Fn = Callable[..., Any]


def _reduce_window(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _convolve(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def _jax_attention(q: Any, k: Any, v: Any) -> Any:
    swapped = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return jax.nn.dot_product_attention(*swapped, is_causal=True).transpose(0, 2, 1, 3)


WORK: dict[str, tuple[list[tuple[int, ...]], Fn, Fn, Fn]] = {
    "einsum bhnd,bhmd->bhnm": (
        [(8, 4, 128, 32), (8, 4, 128, 32)],
        lambda x, y: px.einsum("bhnd,bhmd->bhnm", x, y),
        lambda x, y: torch.einsum("bhnd,bhmd->bhnm", x, y),
        lambda x, y: jnp.einsum("bhnd,bhmd->bhnm", x, y),
    ),
    "einsum bij,jk,bkl->bil": (
        [(16, 64, 128), (128, 32), (16, 32, 64)],
        lambda x, y, z: px.einsum("bij,jk,bkl->bil", x, y, z),
        lambda x, y, z: torch.einsum("bij,jk,bkl->bil", x, y, z),
        lambda x, y, z: jnp.einsum("bij,jk,bkl->bil", x, y, z),
    ),
    "conv2d 16x16x32x32, 32 out, 3x3": (
        [(16, 16, 32, 32), (32, 16, 3, 3)],
        lambda x, w: functional.conv2d(x, w, padding=1),
        lambda x, w: torch_functional.conv2d(x, w, padding=1),
        _convolve,
    ),
    "conv2d 8x64x16x16, 64 out, 3x3": (
        [(8, 64, 16, 16), (64, 64, 3, 3)],
        lambda x, w: functional.conv2d(x, w, padding=1),
        lambda x, w: torch_functional.conv2d(x, w, padding=1),
        _convolve,
    ),
    "max pool 16x32x32x32, 2x2": (
        [(16, 32, 32, 32)],
        lambda x: functional.max_pool2d(x, 2),
        lambda x: torch_functional.max_pool2d(x, 2),
        _reduce_window,
    ),
    "causal attention 4x8x128x32": (
        [(4, 8, 128, 32)] * 3,
        lambda q, k, v: functional.attention(q, k, v, causal=True),
        lambda q, k, v: torch_functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        _jax_attention,
    ),
    "causal attention 2x8x512x64": (
        [(2, 8, 512, 64)] * 3,
        lambda q, k, v: functional.attention(q, k, v, causal=True),
        lambda q, k, v: torch_functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        _jax_attention,
    ),
    "sort 256x4096": (
        [(256, 4096)],
        lambda x: x.sort(),
        lambda x: torch.sort(x, stable=True).values,
        lambda x: jnp.sort(x, stable=True),
    ),
}
"""Shapes of the operands; the operation by Phlox, by PyTorch, by JAX."""


def contestants(shapes: list[tuple[int, ...]], ours: Fn, by_torch: Fn, by_jax: Fn) -> dict[str, Callable[[], Any]]:
    """The operation with the gradients with respect to all operands, in all libraries."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    found: dict[str, Callable[[], Any]] = {}
    for name, engine in {"Phlox on NumPy": NumPy(), "Phlox on Torch": Torch()}.items():
        leaves = [px.tensor(value, device=Autodiff(engine)).require_grad() for value in values]
        g = px.ones(ours(*leaves).shape, device=engine)

        def backward(leaves: Any = leaves, g: Any = g) -> Any:
            grads = ours(*leaves).backward(g)
            return [leaf.grad(grads).numpy() for leaf in leaves]

        found[name] = backward
    torch_leaves = [torch.tensor(value).requires_grad_() for value in values]
    ones = torch.ones(by_torch(*torch_leaves).shape)
    found["PyTorch"] = lambda: torch.autograd.grad(by_torch(*torch_leaves), torch_leaves, ones)

    device = Autodiff(Jax()).device()
    tensors = [px.tensor(value, device=device) for value in values]

    @px.compile
    def compiled(*tensors: Any) -> Any:
        leaves = [x.require_grad() for x in tensors]
        grads = ours(*leaves).sum().backward()
        return [leaf.grad(grads) for leaf in leaves]

    raw = [jnp.asarray(value) for value in values]
    native = jax.jit(jax.grad(lambda xs: by_jax(*xs).sum()))
    found["Phlox compiled on JAX"] = lambda: [x.primitive.block_until_ready() for x in compiled(*tensors)]
    found["JAX"] = lambda: jax.block_until_ready(native(raw))
    wanted = found["PyTorch"]()
    for name, run in found.items():
        for got, right in zip(run(), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got), right.numpy(), rtol=1e-3, atol=1e-3, err_msg=name)
    return found


def bf16() -> list[Ratio]:
    """A matrix product in bfloat16."""
    values = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    x = px.tensor(values, device=Torch(float="bf16"))
    t = torch.tensor(values, dtype=torch.bfloat16)
    y = px.tensor(values, device=Torch())
    times = measure({
        "Phlox on Torch, bf16": lambda: x @ x,
        "PyTorch, bf16": lambda: t @ t,
        "Phlox on Torch, f32": lambda: y @ y,
    })  # fmt: skip
    return [
        compare("matmul 1024^3", times, "Phlox on Torch, bf16", "PyTorch, bf16", target=1.0),
        compare("matmul 1024^3", times, "Phlox on Torch, bf16", "Phlox on Torch, f32"),
    ]


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(max(torch.get_num_threads(), 2))
    rows: list[Ratio] = []
    for workload, (shapes, ours, by_torch, by_jax) in WORK.items():
        times = measure(contestants(shapes, ours, by_torch, by_jax), rounds=9)
        for subject, peer in (
            ("Phlox on Torch", "PyTorch"),
            ("Phlox on NumPy", "PyTorch"),
            ("Phlox compiled on JAX", "JAX"),
            ("Phlox compiled on JAX", "PyTorch"),
        ):
            rows.append(compare(f"{workload}, with gradients", times, subject, peer))
    return rows + bf16()
