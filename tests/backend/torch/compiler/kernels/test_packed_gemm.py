"""The linear maps of programs on PyTorch that predict: results are those in float64, of the weights as they are now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.kernels import packed_gemm
from tests.backend.errors import error

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
_operations: Any = torch.ops.phlox
AT_MOST = 1e-6
"""Of the norm of the exact result, for the error."""


def array(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 67, 200])
@pytest.mark.parametrize(("depth", "widths"), [(1, [32]), (67, [64, 32]), (256, [32]), (700, [96, 32, 64])])
def test_results(rows: int, depth: int, widths: list[int], turned: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    x = array(rows, depth)
    weights = [array(width, depth, seed=width).t() if turned else array(depth, width, seed=width) for width in widths]
    bias = array(sum(widths), seed=1)
    panels = packed_gemm._panels(*weights)
    found = _operations.linear(x, panels, bias, widths)
    for y, weight, b in zip(found, weights, bias.split(widths), strict=True):
        assert error(y, x.double() @ weight.double() + b.double()) < AT_MOST
    for y, weight in zip(_operations.linear(x, panels, None, widths), weights, strict=True):
        assert error(y, x.double() @ weight.double()) < AT_MOST
    torch.set_num_threads(3)
    assert all(map(torch.equal, found, _operations.linear(x, panels, bias, widths)))


def test_what_is_not_a_number_stays_in_its_row() -> None:
    x, weight = array(40, 64), array(64, 32)
    x[7, 3] = torch.nan
    (y,) = _operations.linear(x, packed_gemm._panels(weight), None, [32])
    assert y[7].isnan().all() and y[[*range(7), *range(8, 40)]].isfinite().all()


def test_the_operation_keeps_to_what_it_promises() -> None:
    given = (array(5, 8), packed_gemm._panels(array(8, 32), array(8, 64)), array(96), [32, 64])
    torch.library.opcheck(_operations.linear, given, test_utils=("test_schema", "test_faketensor"))


# --- in programs


@pytest.fixture
def calls(calls_of: Callable[..., list[str]]) -> list[str]:
    return calls_of(packed_gemm, "kernel")


class Branches(px.Module):
    """Three maps of one input, one of them without a bias."""

    def __init__(self, device: Any, width: int = 128) -> None:
        inner = 2 * width
        self.one = nn.Linear(width, inner, device=device)
        self.two = nn.Linear(width, inner, device=device)
        self.three = nn.Linear(width, inner, bias=False, device=device)
        self.last = nn.Linear(inner, width, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.last(self.one(x).relu() + self.two(x) * self.three(x))


def branches(device: Any, width: int = 128) -> Branches:
    return Branches(device, width).init(seed=0)


def predicted(model: Any, x: px.Tensor) -> Any:
    return model(x)


@pytest.mark.parametrize(("rows", "width", "is_ours"), [(150, 128, True), (150, 116, False), (600, 128, False)])
def test_a_compiled_prediction_is_as_an_eager_one(rows: int, width: int, is_ours: bool, calls: list[str]) -> None:
    device = Torch().device()
    model, x = branches(device, width), px.tensor(array(2, rows // 2, width).numpy(), device=device)
    predict = px.compile(predicted)
    for _ in range(3):
        np.testing.assert_allclose(predict(model, x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert calls.count("linear") == 3 * 3 * is_ours  # the two with a bias together
    assert calls.count("put_panels") == 4 * is_ours


def test_programs_for_several_numbers_of_rows_share_the_panels(calls: list[str]) -> None:
    device = Torch().device()
    model, predict = branches(device), px.compile(predicted)
    for rows in (150, 140, 160):
        x = px.tensor(array(rows, 128).numpy(), device=device)
        np.testing.assert_allclose(predict(model, x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert calls.count("put_panels") == 4 and calls.count("linear") == 3 * 3


def test_other_weights_and_weights_that_are_written_to(calls: list[str]) -> None:
    device = Torch().device()
    model, x = branches(device), px.tensor(array(150, 128).numpy(), device=device)
    predict = px.compile(predicted)
    before = predict(model, x).numpy()
    other = model.map(lambda _, param: param.holding(param.val() * 2.0))
    np.testing.assert_allclose(predict(other, x).numpy(), other(x).numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(predict(other, x).numpy(), before)
    model.one.weight.val().primitive.mul_(3.0)
    np.testing.assert_allclose(predict(model, x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert calls.count("put_panels") == 4 + 4 + 2  # of those two that are in one


@pytest.mark.full
def test_what_has_a_way_back_is_left_alone(calls: list[str]) -> None:
    device = Autodiff(Torch()).device()
    model, x = branches(device), px.tensor(array(150, 128).numpy(), device=device)

    def gradients(model: Any, x: px.Tensor) -> list[Any]:
        grads = model(x).square().mean().backward()
        return [param.val().grad(grads) for param in model.params()]

    for one, other in zip(px.compile(gradients)(model, x), gradients(model, x), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3, atol=1e-5 * np.abs(other.numpy()).max())
    assert "linear" not in calls


def test_large_weights_are_kept_once(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_gemm, "_MOST_BYTES", 4 * 128 * 256 * 4 - 1)
    device = Torch().device()
    model, x = branches(device), px.tensor(array(150, 128).numpy(), device=device)
    np.testing.assert_allclose(px.compile(predicted)(model, x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert "linear" not in calls
