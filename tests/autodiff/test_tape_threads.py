"""Training in several threads is training in one, bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy


class Network(px.Module):
    def __init__(self, device: Any) -> None:
        self.first = nn.Linear(6, 16, device=device)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Linear(16, 3, device=device)

    def __call__(self, x: Any) -> Any:
        return self.second(self.dropout(px.checkpoint(self.first)(x).gelu()))


def trained(seed: int, tape: Any, steps: int = 25) -> list[np.ndarray[Any, Any]]:
    with px.random.stream(seed):
        model = Network(tape.device()).init()
        optimizer = optim.AdamWConfig().init()
        for _ in range(steps):
            x = px.random.normal((8, 6), device=tape)
            y = px.random.integers((8,), 0, 3, device=tape)
            grads = nn.cross_entropy_loss(model(x), y).backward()
            model = optimizer.step(1e-2, model, optim.GradientsParams.from_grads(grads, model))
        return [param.val().numpy() for param in model.params()]


@pytest.mark.parametrize("tape", [Autodiff(NumPy()), Autodiff(NumPy(float="f64"), recompute=True)], ids=repr)
def test_threads_train_as_one_does(tape: Any) -> None:
    alone = [trained(seed, tape) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda seed: trained(seed, tape), range(6)))
    for wanted, got in zip(alone, together, strict=True):
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_array_equal(b, a)
    assert not np.array_equal(alone[0][0], alone[1][0])
