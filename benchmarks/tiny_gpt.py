"""A GPT of two layers and width 32, forward and backward, eagerly: the cost of the tape and the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as torch_functional

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox import functional
from phlox.backend import Autodiff, Backend, NumPy, Torch

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 2, 32, 4, 32, 4, 64


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """The parameters, by name."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape, scale=0.1).astype(np.float32)

    found = {"tokens": matrix(VOCABULARY, WIDTH), "places": matrix(CONTEXT, WIDTH), "head": matrix(WIDTH, VOCABULARY)}
    for layer in range(LAYERS):
        found |= {
            f"{layer}.qkv": matrix(WIDTH, 3 * WIDTH), f"{layer}.qkv_bias": matrix(3 * WIDTH),
            f"{layer}.out": matrix(WIDTH, WIDTH), f"{layer}.out_bias": matrix(WIDTH),
            f"{layer}.up": matrix(WIDTH, 4 * WIDTH), f"{layer}.up_bias": matrix(4 * WIDTH),
            f"{layer}.down": matrix(4 * WIDTH, WIDTH), f"{layer}.down_bias": matrix(WIDTH),
        }  # fmt: skip
        for norm in ("norm_1", "norm_2"):
            found |= {f"{layer}.{norm}": matrix(WIDTH) + 1.0, f"{layer}.{norm}_bias": matrix(WIDTH)}
    return found | {"norm": matrix(WIDTH) + 1.0, "norm_bias": matrix(WIDTH)}


def batch() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tokens, and the next tokens."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, (BATCH, CONTEXT + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def phlox_loss(p: dict[str, px.Tensor], tokens: Any, targets: Any) -> px.Tensor:
    """Cross-entropy of the next token."""
    x = functional.embedding(p["tokens"], tokens) + p["places"]
    for layer in range(LAYERS):
        h = functional.layer_norm(x, p[f"{layer}.norm_1"], p[f"{layer}.norm_1_bias"])
        qkv = functional.linear(h, p[f"{layer}.qkv"], p[f"{layer}.qkv_bias"])
        qkv = qkv.reshape(BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS).permute_dims(2, 0, 3, 1, 4)
        h = functional.attention(qkv[0], qkv[1], qkv[2], causal=True)
        h = h.permute_dims(0, 2, 1, 3).reshape(BATCH, CONTEXT, WIDTH)
        x = x + functional.linear(h, p[f"{layer}.out"], p[f"{layer}.out_bias"])
        h = functional.layer_norm(x, p[f"{layer}.norm_2"], p[f"{layer}.norm_2_bias"])
        h = functional.linear(h, p[f"{layer}.up"], p[f"{layer}.up_bias"]).gelu()
        x = x + functional.linear(h, p[f"{layer}.down"], p[f"{layer}.down_bias"])
    x = functional.layer_norm(x, p["norm"], p["norm_bias"])
    return functional.cross_entropy(functional.linear(x, p["head"]), targets).mean()


def torch_loss(p: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, whose linear layers have transposed weights."""
    f = torch_functional
    x = f.embedding(tokens, p["tokens"]) + p["places"]
    for layer in range(LAYERS):
        h = f.layer_norm(x, (WIDTH,), p[f"{layer}.norm_1"], p[f"{layer}.norm_1_bias"])
        qkv = f.linear(h, p[f"{layer}.qkv"], p[f"{layer}.qkv_bias"])
        qkv = qkv.view(BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = f.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        h = h.permute(0, 2, 1, 3).reshape(BATCH, CONTEXT, WIDTH)
        x = x + f.linear(h, p[f"{layer}.out"], p[f"{layer}.out_bias"])
        h = f.layer_norm(x, (WIDTH,), p[f"{layer}.norm_2"], p[f"{layer}.norm_2_bias"])
        h = f.gelu(f.linear(h, p[f"{layer}.up"], p[f"{layer}.up_bias"]))
        x = x + f.linear(h, p[f"{layer}.down"], p[f"{layer}.down_bias"])
    x = f.layer_norm(x, (WIDTH,), p["norm"], p["norm_bias"])
    return f.cross_entropy(f.linear(x, p["head"]).view(-1, VOCABULARY), targets.reshape(-1))


def with_phlox(backend: Backend) -> Callable[[], Any]:
    """Loss and gradients by Phlox."""
    device = Autodiff(backend).device()
    p = {name: px.tensor(value, device=device).require_grad() for name, value in weights().items()}
    tokens, targets = (px.tensor(value, device=device) for value in batch())

    def run() -> Any:
        loss = phlox_loss(p, tokens, targets)
        grads = loss.backward()
        return loss, {name: value.grad(grads) for name, value in p.items()}

    return run


def with_torch() -> Callable[[], Any]:
    """Loss and gradients by PyTorch's autograd."""
    matrices = {"qkv", "out", "up", "down", "head"}
    p = {
        name: torch.tensor(value.T.copy() if name.split(".")[-1] in matrices else value).requires_grad_()
        for name, value in weights().items()
    }
    tokens, targets = (torch.tensor(value, dtype=torch.int64) for value in batch())

    def run() -> Any:
        loss = torch_loss(p, tokens, targets)
        return loss, dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))

    return run


def check(contestants: dict[str, Callable[[], Any]]) -> None:
    """Check that all compute the same loss and gradients."""
    loss, gradients = contestants["PyTorch eager"]()
    for name, run in contestants.items():
        own, found = run()
        assert abs(own.item() - loss.item()) < 1e-4, name
        for key in ("tokens", "0.qkv_bias", "norm"):
            np.testing.assert_allclose(found[key].numpy(), gradients[key].numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(1)
    contestants = {
        "Autodiff(NumPy)": with_phlox(NumPy()),
        "PyTorch eager": with_torch(),
        "Autodiff(Torch)": with_phlox(Torch()),
    }
    check(contestants)
    times = measure(contestants)
    workload = "tiny GPT (2 layers, d=32), forward and backward"
    return [
        compare(workload, times, "Autodiff(NumPy)", "PyTorch eager", target=0.7),
        compare(workload, times, "Autodiff(Torch)", "PyTorch eager", target=1.0),
    ]
