"""A small problem that every optimizer is run on: tensors of ranks 0 to 3, gradients by a formula, no tape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import phlox as px
from phlox import optim
from phlox.backend import Backend

STEPS = 50
SHAPES = ((4, 3), (2, 5), (2, 3, 2), (3,), ())
RATES = [0.02 * (1.2 + math.cos(number - 1.0)) for number in range(STEPS)]
"""They rise above the first and fall to a tenth of it."""

Arrays = list[np.ndarray[Any, Any]]


def initial() -> Arrays:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in SHAPES]


def drifts(number: int) -> list[float]:
    """What pushes each tensor aside at a step, never the same."""
    return [0.3 * math.cos((1.0 + place) * number + place) for place in range(len(SHAPES))]


def gradients(weights: list[Any], number: int, given: list[Any] | None = None) -> list[Any]:
    """Of a sum of double wells and slopes that change from step to step; on arrays and tensors of any library."""
    slopes = drifts(number) if given is None else given
    return [w * (w * w - 1.0) * 0.4 + slope for w, slope in zip(weights, slopes, strict=True)]


class Weights(px.Module):
    def __init__(self, values: Arrays, device: Any) -> None:
        self.weights = [px.Param(px.tensor(value, device=device, kind=px.Float)) for value in values]


def step(model: Weights, optimizer: optim.Optimizer, lr: float, slopes: list[float]) -> Weights:
    grads = gradients([param.val() for param in model.weights], 0, slopes)
    named = {param.id: grad for param, grad in zip(model.weights, grads, strict=True)}
    return optimizer.step(lr, model, optim.GradientsParams(named))


def arrays(model: px.Module) -> Arrays:
    return [param.val().numpy() for param in model.params()]


def run(
    optimizer: optim.Optimizer, backend: Backend, compiled: bool = False, steps: int = STEPS, tensors: int = len(SHAPES)
) -> Weights:
    program = px.compile(step)
    one = program if compiled else step
    model = Weights(initial()[:tensors], backend.device())
    for number in range(steps):
        model = one(model, optimizer, RATES[number], drifts(number)[:tensors])
    assert program.programs == int(compiled and backend.compiles)
    return model
