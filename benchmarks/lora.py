"""A step of fine-tuning with LoRA: Phlox on PyTorch beside the same written by hand in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from benchmarks.models import gpt
from benchmarks.models.gpt import with_phlox, with_torch
from phlox import optim
from phlox.backend import Torch

RANK, RATE = 8, 1e-3
LAYERS = ("attention.out", "up", "down")


class LoraLinear(nn.Module):
    """A frozen layer, and what is trained beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(RANK, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, RANK))
        nn.init.kaiming_uniform_(self.A, a=5**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.A), self.B)


def by_hand(sizes: gpt.Sizes, weights: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """A step in PyTorch."""
    net: Any = with_torch.model(sizes, weights).requires_grad_(False)
    for block in net.blocks:
        block.attention.out, block.up, block.down = (
            LoraLinear(it) for it in (block.attention.out, block.up, block.down)
        )
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
    tokens, targets = (torch.tensor(array, dtype=torch.int64) for array in data(sizes))

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(tokens).reshape(-1, sizes.vocabulary), targets.reshape(-1))

    run: Any = torch.compile(loss) if compiled else loss

    def step() -> float:
        optimizer.zero_grad()
        value = run(tokens, targets)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def with_adapters(sizes: gpt.Sizes, weights: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """A step in Phlox on PyTorch."""
    model = px.lora(
        with_phlox.model(sizes, weights, Torch().device()), [f"blocks.*.{name}.weight" for name in LAYERS], rank=RANK
    ).train()
    tokens, targets = (px.tensor(array, device=Torch()) for array in data(sizes))

    def step(model: Any, optimizer: Any, tokens: Any, targets: Any) -> Any:
        loss, grads = px.value_and_grad(lambda model: model.loss(tokens, targets))(model)
        return optimizer.step(RATE, model, grads), optimizer, loss

    run = px.compile(step) if compiled else step
    state: list[Any] = [model, optim.AdamWConfig().init()]

    def again() -> float:
        model, optimizer = state
        *state[:], loss = run(model, optimizer, tokens, targets)
        return loss.item()

    return again


def data(sizes: gpt.Sizes) -> Any:
    """Tokens, and the next tokens."""
    text = np.random.default_rng(1).integers(0, sizes.vocabulary, (sizes.batch, sizes.context + 1)).astype(np.int32)
    return text[:, :-1], text[:, 1:]


def run() -> list[Ratio]:
    """All rows of the table."""
    sizes = gpt.Sizes()
    weights = gpt.weights(sizes)
    contestants: dict[str, Callable[[], Any]] = {
        "Torch, compiled": with_adapters(sizes, weights, True),
        "PyTorch by hand, torch.compile": by_hand(sizes, weights, True),
        "Torch": with_adapters(sizes, weights, False),
        "PyTorch by hand": by_hand(sizes, weights, False),
    }
    first = {name: step() for name, step in contestants.items()}
    np.testing.assert_allclose(list(first.values()), next(iter(first.values())), rtol=1e-4)
    times = measure(contestants, rounds=9, seconds=0.5)
    workload = "a LoRA step of a GPT (4 layers, d=256), rank 8"
    return [
        compare(workload, times, "Torch, compiled", "PyTorch by hand, torch.compile", target=1.0),
        compare(workload, times, "Torch", "PyTorch by hand", target=1.0),
    ]
