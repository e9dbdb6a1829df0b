"""A training step compiled on PyTorch, 64-128-10, batch 64, AdamW: against itself eagerly and against plain PyTorch.

Compiled, Phlox runs the update as a part of the same program; `torch.compile` of a model leaves it to the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox import nn, optim
from phlox.backend import Autodiff, Torch

BATCH, LR, DECAY = 64, 1e-3, 0.01
_rng = np.random.default_rng(0)
INPUTS = _rng.normal(size=(BATCH, 64)).astype(np.float32)
LABELS = _rng.integers(0, 10, (BATCH,))

Go = Callable[[], float]
"""One step: its loss."""


def with_phlox(compiled: bool) -> Go:
    """Phlox on PyTorch."""
    device = Autodiff(Torch()).device()
    layers = [nn.Linear(64, 128, device=device), nn.Relu(), nn.Linear(128, 10, device=device)]

    def step(model: Any, optimizer: Any, lr: float, x: px.Tensor, labels: Any) -> tuple[Any, px.Tensor]:
        loss = nn.cross_entropy_loss(model(x), labels)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    run = px.compile(step) if compiled else step
    x, labels = px.tensor(INPUTS, device=device), px.tensor(LABELS, device=device)
    optimizer = optim.AdamWConfig(weight_decay=DECAY).init()
    state = [nn.Sequential(layers).init(seed=0)]

    def go() -> float:
        state[0], loss = run(state[0], optimizer, LR, x, labels)
        return loss.item()

    return go


def with_torch(compiled: bool) -> Go:
    """The same in plain PyTorch."""
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    x, labels = torch.tensor(INPUTS), torch.tensor(LABELS)

    def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), labels)

    run: Any = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def go() -> float:
        loss = run(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return go


def run() -> list[Ratio]:
    """All rows."""
    ours, eager, theirs, plain = "Phlox compiled on Torch", "Phlox eager on Torch", "torch.compile", "PyTorch eager"
    contestants = {ours: with_phlox(True), eager: with_phlox(False), theirs: with_torch(True), plain: with_torch(False)}
    for _ in range(3):
        np.testing.assert_allclose(contestants[ours](), contestants[eager](), rtol=1e-4)
    times = measure(contestants, rounds=21)
    workload = f"step of an MLP 64-128-10, batch {BATCH}, AdamW, on PyTorch"
    return [compare(workload, times, ours, peer) for peer in (eager, theirs, plain)]
