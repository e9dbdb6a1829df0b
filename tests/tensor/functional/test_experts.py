"""Products with the matrices of experts: what does not fit is refused, and programs compute as eager code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import IndexRangeError, KindError, ShapeError


def test_operands_that_do_not_fit() -> None:
    x, weight, experts = px.ones((3, 2)), px.ones((4, 2, 5)), px.tensor([0, 1, 3])
    cases: Any = (
        ((x, px.ones((4, 3, 5)), experts), ShapeError, "does not fit weight of shape"),
        ((x, px.ones((2, 5)), experts), ShapeError, "does not fit weight of shape"),
        ((x, weight, px.tensor([0, 1])), ShapeError, "experts must name one for each row"),
        ((x, weight, experts, px.ones((5,))), ShapeError, "bias of shape"),
        ((x, weight, experts.float()), KindError, "experts"),
    )
    for arguments, error, words in cases:
        with pytest.raises(error, match=words):
            px.functional.expert_linear(*arguments)


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_expert_that_does_not_exist(backend: Backend, wrong: int) -> None:
    x, weight = px.ones((9, 2), device=backend.device()), px.ones((4, 2, 5), device=backend.device())
    experts = px.tensor([0] * 8 + [wrong], device=backend.device())
    with pytest.raises(IndexRangeError, match=f"expert {wrong} is out of range for 4 experts"):
        px.functional.expert_linear(x, weight, experts)


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("backend", [NumPy(), Jax(), pytest.param(Torch(), marks=pytest.mark.full)], ids=repr)
def test_programs_compute_the_same_for_any_choice(backend: Backend, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, weight = rng.normal(size=(rows, 3)), rng.normal(size=(4, 3, 5))
    run: Any = px.compile(px.functional.expert_linear)
    choices = [np.zeros(rows, np.int32), np.arange(rows) % 4, rng.integers(0, 4, rows), np.full(rows, 3)]
    for experts in choices:  # all for one expert, all alike, at random, the last one
        operands = [px.tensor(part, kind=px.Float, device=backend.device()) for part in (x, weight)]
        y = run(*operands, px.tensor(experts, device=backend.device()))
        np.testing.assert_allclose(y.numpy(), np.einsum("ri,rio->ro", x, weight[experts]), atol=1e-5)
