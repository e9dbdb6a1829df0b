"""What pooling says to bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, ShapeError


@pytest.fixture(params=[NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)
def device(request: Any) -> Any:
    return request.param.device()


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def ints(device: Any, *shape: int) -> Any:
    return px.zeros(shape, device=device).int()


Case = tuple[Callable[[Any], Any], tuple[str, ...]]

CASES: dict[str, Case] = {
    "rank": (lambda d: f.max_pool1d(ones(d, 2, 3), 2), ("max_pool1d", "[n, channels, length]", "(2, 3)")),
    "nothing to pool": (lambda d: f.avg_pool2d(ones(d, 2, 3, 0, 4), 2, padding=1),
                        ("avg_pool2d", "no axis of size 0", "(2, 3, 0, 4)")),
    "window": (lambda d: f.max_pool3d(ones(d, 1, 1, 4, 4, 2), 3), ("max_pool3d", "(3, 3, 3)", "larger")),
    "window reaches": (lambda d: f.max_pool1d(ones(d, 1, 1, 4), 3, dilation=2), ("max_pool1d", "(3,)", "larger")),
    "no window": (lambda d: f.max_pool1d(ones(d, 1, 1, 4), 0), ("max_pool1d", "window", "at least 1", "0")),
    "windows": (lambda d: f.avg_pool2d(ones(d, 1, 1, 4, 4), (2, 2, 2)), ("avg_pool2d", "window", "(2, 2, 2)")),
    "stride": (lambda d: f.avg_pool1d(ones(d, 1, 1, 4), 2, stride=0), ("avg_pool1d", "stride", "at least 1")),
    "padding": (lambda d: f.max_pool1d(ones(d, 1, 1, 4), 2, padding=((0, 2),)),
                ("max_pool1d", "((0, 2),)", "less than the window (2,)")),
    "padding by another name": (lambda d: f.max_pool2d(ones(d, 1, 1, 4, 4), 2, padding="all"),
                                ("max_pool2d", "padding", "'all'")),
    "adaptive rank": (lambda d: f.adaptive_avg_pool2d(ones(d, 1, 2, 3), 1), ("adaptive_avg_pool2d", "(1, 2, 3)")),
    "adaptive size": (lambda d: f.adaptive_avg_pool2d(ones(d, 1, 2, 3, 3), (1, 2, 3)),
                      ("adaptive_avg_pool2d", "size", "(1, 2, 3)")),
    "adaptive to nothing": (lambda d: f.adaptive_max_pool1d(ones(d, 1, 2, 3), 0),
                            ("adaptive_max_pool1d", "size", "at least 1", "0")),
    "adaptive by half": (lambda d: f.adaptive_max_pool1d(ones(d, 1, 2, 3), cast(Any, 1.5)),
                         ("adaptive_max_pool1d", "size", "1.5")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_shapes_fit(case: str, device: Any) -> None:
    call, parts = CASES[case]
    with pytest.raises(ShapeError) as caught:
        call(device)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_kinds(device: Any) -> None:
    with pytest.raises(KindError, match=r"adaptive_max_pool1d.*Int.*\.float\(\)"):
        f.adaptive_max_pool1d(ints(device, 1, 1, 3), 1)


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_infinite_gradients_stay_where_they_belong(backend: Any) -> None:
    x = px.tensor([[[1.0, 2.0, 4.0, 3.0]]], device=Autodiff(backend)).require_grad()
    gradient = x.grad(f.max_pool1d(x, 2).backward(px.tensor([[[float("inf"), 1.0]]], device=backend)))
    assert gradient is not None and gradient.tolist() == [[[0.0, float("inf"), 1.0, 0.0]]]
