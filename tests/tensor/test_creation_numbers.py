"""Python numbers that are too large for the elements: infinities, as the results of arithmetic would be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(Torch()), NumPy(float="f16"), Torch(float="f16"), Torch(float="bf16")]
HUGE = 1e300

CALLS: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "maximum": (lambda x: x.maximum(HUGE), [math.inf, math.inf]),
    "minimum": (lambda x: x.minimum(-HUGE), [-math.inf, -math.inf]),
    "minimum of a bound above": (lambda x: x.minimum(HUGE), [1.0, -2.0]),
    "clip": (lambda x: x.clip(-HUGE, HUGE), [1.0, -2.0]),
    "pad": (lambda x: x.pad(((1, 0),), -HUGE), [-math.inf, 1.0, -2.0]),
    "where": (lambda x: px.where(x > 0.0, x, HUGE), [1.0, math.inf]),
    "where of a number first": (lambda x: px.where(x > 0.0, -HUGE, x), [-math.inf, -2.0]),
    "at": (lambda x: x.at[0].set(HUGE), [math.inf, -2.0]),
    "masked_fill": (lambda x: x.masked_fill(x > 0.0, HUGE), [math.inf, -2.0]),
    "add": (lambda x: x + HUGE, [math.inf, math.inf]),
    "divide": (lambda x: x / HUGE, [0.0, -0.0]),
    "less": (lambda x: x < HUGE, [True, True]),
    "equal": (lambda x: x == HUGE, [False, False]),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("name", CALLS)
def test_a_number_too_large_is_an_infinity(name: str, backend: Any) -> None:
    call, wanted = CALLS[name]
    with np.errstate(over="ignore"):
        found = call(px.tensor([1.0, -2.0], device=backend))
    assert found.tolist() == wanted
