"""Metrics: what is measured of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import ShapeError
from phlox.train import accuracy

each_backend = pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)


@each_backend
def test_accuracy(backend: Any) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 5, 4)), rng.integers(0, 4, (2, 5))
    got = accuracy(px.tensor(logits, device=backend), px.tensor(labels, device=backend))
    assert got.item() == pytest.approx((logits.argmax(-1) == labels).mean())


@each_backend
@pytest.mark.parametrize("shape", [(5, 1), (1, 5), (1,), (), (4,)])
def test_labels_of_another_shape_are_refused(backend: Any, shape: tuple[int, ...]) -> None:
    logits, labels = px.zeros((5, 3), device=backend), px.zeros(shape, kind=px.Int, device=backend)
    with pytest.raises(ShapeError) as refused:
        accuracy(logits, labels)
    assert str(shape) in str(refused.value) and "(5, 3)" in str(refused.value) and "(5,)" in str(refused.value)
