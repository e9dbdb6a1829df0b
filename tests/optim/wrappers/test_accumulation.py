"""Accumulated gradients: eagerly and compiled, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.errors import OptimizerError
from tests.optim.wrappers.small import COMPILED, ON, data, gradients, values


@COMPILED
@ON
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_small_batches_make_the_step_of_a_large_one(mean: bool, engine: str, compiled: bool) -> None:
    """Twice three batches, and at last one: the sum of torch's gradients of all of them."""
    model = nn.Linear(3, 2).init(seed=2, device=engine).train()
    weight, bias = (torch.nn.Parameter(torch.tensor(value)) for value in values(model).values())

    def add(accumulator: Any, model: Any, x: Any) -> None:
        accumulator.add(gradients(model, x), model)

    def take(accumulator: Any, model: Any, optimizer: Any) -> Any:
        return optimizer.step(0.1, model, accumulator.take(model))

    run_add: Callable[..., Any] = px.compile(add) if compiled else add
    run_take: Callable[..., Any] = px.compile(take) if compiled else take
    accumulator = optim.GradientsAccumulator(model, mean=mean)
    optimizer = optim.AdamWConfig().init()
    theirs = torch.optim.AdamW([weight, bias], lr=0.1)
    seed = 0
    for size in (3, 3, 1):
        theirs.zero_grad()
        for _ in range(size):
            x = data(engine, seed)
            seed += 1
            run_add(accumulator, model, x)
            loss = (torch.tensor(x.numpy()) @ weight + bias).square().mean()
            (loss / size if mean else loss).backward()
        theirs.step()
        model = run_take(accumulator, model, optimizer)
        np.testing.assert_allclose(model.weight.val().numpy(), weight.detach().numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.bias.val().numpy(), bias.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert accumulator.weight.val().item() == 0.0


def test_an_accumulator_of_another_model() -> None:
    model, other = nn.Linear(3, 2).train(), nn.Linear(4, 2).train()
    accumulator = optim.GradientsAccumulator(model)
    with pytest.raises(OptimizerError, match="this Linear has other parameters than the model that it was made for"):
        accumulator.take(other)
    twin = nn.Linear(3, 2).train()
    with pytest.raises(OptimizerError, match="none of the 2 gradients is of a parameter of this Linear"):
        accumulator.add(gradients(twin, data("numpy", 0)), model)
    assert accumulator.weight.val().item() == 0.0
