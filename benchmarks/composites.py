"""Composites on NumPy, on 16 million elements, against PyTorch's own kernels; both may use every core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as torch_functional

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox import functional
from phlox.backend import Autodiff, NumPy
from phlox.backend.contract.update import AdamScalars

ROWS, WIDTH = 16_384, 1_024


def both_ways(name: str, ours: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> list[Ratio]:
    """The function, and the function with its gradient."""
    values = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    x, t = px.tensor(values), torch.tensor(values)
    np.testing.assert_allclose(ours(x).numpy(), theirs(t).numpy(), rtol=1e-4, atol=2e-6)
    leaf = px.tensor(values, device=Autodiff(NumPy())).require_grad()
    torch_leaf = torch.tensor(values).requires_grad_()
    g = px.tensor(values)

    def backward() -> Any:
        return leaf.grad(ours(leaf).backward(g))

    def torch_backward() -> Any:
        return torch.autograd.grad(theirs(torch_leaf), torch_leaf, t)

    rows: list[Ratio] = []
    for what, contestants in {
        name: {"NumPy": lambda: ours(x), "PyTorch": lambda: theirs(t)},
        f"{name}, with gradient": {"NumPy": backward, "PyTorch": torch_backward},
    }.items():
        times = measure(contestants, rounds=9)
        rows.append(compare(f"{what}, 16 M elements", times, "NumPy", "PyTorch", target=1.0))
    return rows


def adam() -> list[Ratio]:
    """One update of Adam."""
    rng = np.random.default_rng(0)
    arrays = [np.abs(rng.normal(size=ROWS * WIDTH)).astype(np.float32) for _ in range(4)]
    ours = [px.tensor(array) for array in arrays]
    x, g = (torch.tensor(array) for array in arrays[:2])
    numbers = AdamScalars(1e-3, 0.9, 0.999, 1e-8, 0.0, False, 0.271, 0.003)
    parameter = torch.nn.Parameter(x)
    parameter.grad = g
    contestants: dict[str, Callable[[], Any]] = {
        "NumPy": lambda: functional.adam_update(ours[0], ours[1], ours[2], ours[3], numbers),
        # PyTorch's update is in place; Phlox's allocates new arrays.
        "PyTorch": torch.optim.Adam([parameter], lr=1e-3, foreach=False, fused=False).step,
        "PyTorch fused": torch.optim.Adam([parameter], lr=1e-3, fused=True).step,
    }
    times = measure(contestants, rounds=9)
    return [
        compare("Adam's update, 16 M elements", times, "NumPy", "PyTorch", target=1.0),
        compare("Adam's update, 16 M elements", times, "NumPy", "PyTorch fused"),
    ]


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(max(torch.get_num_threads(), 2))
    f = torch_functional
    return [
        *both_ways("gelu", lambda x: x.gelu(), f.gelu),
        *both_ways("softmax", lambda x: x.softmax(), lambda x: torch.softmax(x, -1)),
        *both_ways("layer norm", functional.layer_norm, lambda x: f.layer_norm(x, (WIDTH,))),
        *adam(),
    ]
