"""What metrics are given: kinds, weights, precision."""

from __future__ import annotations

import numpy as np
import pytest

import phlox as px
from phlox import metrics
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.metrics.inputs import Classes, masked, meet, row_weights


def test_operands_meet_where_the_tensors_are() -> None:
    device = Autodiff(Torch(float="bf16")).device()
    x, y, nothing = meet("m", x=px.ones((2,), device=device).require_grad(), y=[1, 2], weights=None)
    assert x.backend == y.backend == Torch() and y.kind is px.Int and nothing is None
    assert not x.is_require_grad()
    assert meet("m", x=np.ones(2, np.float32))[0].backend == NumPy()
    assert meet("m", x=np.ones(2, np.float32), y=[1.0])[0].backend == NumPy(float="f64")
    with pytest.raises(KindError, match="m: y: tensor: cannot make a tensor from"):
        meet("m", x=[1.0], y=[object()])
    with pytest.raises(ShapeError, match="m: x: tensor: the values do not form an array"):
        meet("m", y=px.ones((2,)), x=[[1.0], [1.0, 2.0]])


def test_row_weights() -> None:
    by_row = row_weights("m", px.tensor([1, 2]), (2, 3))
    assert by_row is not None and by_row.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert row_weights("m", None, (2, 3)) is None
    with pytest.raises(ShapeError, match=r"m: weights of shape \(3,\) do not fit rows of shape \(2, 3\)"):
        row_weights("m", px.ones((3,)), (2, 3))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(RangeError, match="m: weights must be finite and not negative; leave a row out"):
            row_weights("m", px.tensor([1.0, bad]), (2,))
    mask = px.tensor([True, False])
    assert masked(None, mask) is mask and masked(None, None) is None
    for weights, want in ((px.tensor([2.0, 3.0]), [2.0, 0.0]), (px.tensor([True, True]), [True, False])):
        kept = masked(weights, mask)
        assert kept is not None and kept.tolist() == want


@pytest.mark.parametrize("backend", [Jax(float="bf16"), Torch(float="f16"), Autodiff(Torch(float="bf16"))], ids=repr)
def test_half_precision_is_measured_at_full(backend: object) -> None:
    """A mean of 3000 ones, which bf16 cannot count."""
    x = px.ones((3000,), device=backend)  # pyright: ignore[reportArgumentType]
    assert metrics.MeanSquaredError()(x, x * 0.0) == 1.0
    assert metrics.Mean()(x) == 1.0


def test_classes_are_equal_whatever_the_metric_is_called() -> None:
    assert Classes(name="a", num_classes=3) == Classes(name="b", num_classes=3) != Classes(name="a", num_classes=4)
