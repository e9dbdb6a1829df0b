"""Rotary encodings beyond the first context: against the formulas of the papers in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError
from phlox.models import LinearScaling, Llama3Scaling
from phlox.models.rotary_scaling import ScaledRotaryEncoding

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]

SCALINGS: dict[str, Any] = {"linear": LinearScaling(2.5), "llama 3": Llama3Scaling(4.0, 1.0, 3.0, 8)}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", SCALINGS)
def test_scaled_turns(case: str, backend: Backend) -> None:
    scaling = SCALINGS[case]
    layer = ScaledRotaryEncoding(8, base=20.0, scaling=scaling)
    x = np.random.default_rng(2).normal(size=(2, 5, 8))
    at = np.array([0, 3, 4, 9, 30])
    turn = np.array([scaling.scaled(20.0 ** (-i / 4)) for i in range(4)])
    angle = at[:, None] * turn
    a, b = x[..., :4], x[..., 4:]
    expected = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)
    tensor = px.tensor(x, device=backend, kind=px.Float)
    found = layer(tensor, px.tensor(at, device=backend))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    first = layer(tensor)  # at 0, 1, ...
    np.testing.assert_allclose(
        first.numpy(), layer(tensor, px.tensor(np.arange(5), device=backend)).numpy(), rtol=1e-6, atol=1e-6
    )


def test_what_turns_slower() -> None:
    scaling = Llama3Scaling(factor=8.0, low=1.0, high=4.0, context=8192)
    round_of = 2 * math.pi / 8192  # a turn of which goes around once in the former context
    assert scaling.scaled(4.01 * round_of) == 4.01 * round_of and scaling.scaled(1.0) == 1.0
    assert scaling.scaled(0.99 * round_of) == pytest.approx(0.99 * round_of / 8)
    assert scaling.scaled(2.5 * round_of) == pytest.approx(2.5 * round_of * (0.5 + 0.5 / 8))
    assert LinearScaling(4.0).scaled(0.5) == 0.125


def test_half_precision_turns_at_full() -> None:
    layer = ScaledRotaryEncoding(4, scaling=LinearScaling(1.0))
    x, at = px.ones((1, 4), device=Jax(float="bf16")), px.tensor([1001], device=Jax(float="bf16"))
    found = layer(x, at).numpy().astype(np.float64)[0]
    angle = np.array([1001.0, 10.01])
    np.testing.assert_allclose(found[:2], np.cos(angle) - np.sin(angle), atol=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearScaling(0.5), "factor must be at least one, got 0.5"),
        (lambda: Llama3Scaling(factor=0.0), "factor must be at least one, got 0.0"),
        (lambda: Llama3Scaling(low=4.0, high=4.0), "low and high must be positive and low below high, got 4.0 and 4.0"),
        (lambda: Llama3Scaling(context=0), "context must be at least one, got 0"),
    ],
    ids=["linear", "factor", "order", "context"],
)
def test_scaling_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
