"""Large products in programs on PyTorch: results are those in float64, whoever multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.kernels import cpp, gemm
from tests.backend.errors import error
from tests.backend.matrices import array

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
_operations: Any = torch.ops.phlox
AT_MOST = 1e-6
"""Of the norm of the exact result, for the error."""
ROWS, WIDTH = 600, 256


@pytest.mark.covering(2)
@pytest.mark.parametrize("layouts", [("by rows",) * 2, ("by rows", "by columns"), ("by columns", "by rows")])
@pytest.mark.parametrize("rows", [1, 8, 67, 200])
@pytest.mark.parametrize("depth", [1, 67, 256, 1100, 2100])
@pytest.mark.parametrize("width", [1, 31, 64, 150])
def test_results(rows: int, depth: int, width: int, layouts: tuple[str, str]) -> None:
    x, weight, bias = array(rows, depth, layouts[0]), array(depth, width, layouts[1], 1), array(1, width, seed=2)[0]
    exact = x.double() @ weight.double()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert error(_operations.product(x, weight, None), exact) < AT_MOST
        found.append(_operations.product(x, weight, bias))
        assert error(found[-1], exact + bias.double()) < AT_MOST
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("sizes", [(40, 20, 5000), (5000, 20, 40), (5000, 20, 4200), (4200, 20, 5000)])
def test_more_rows_and_columns_than_are_put_in_order_at_once(sizes: tuple[int, int, int]) -> None:
    rows, depth, width = sizes
    x, weight = array(rows, depth, "by columns"), array(depth, width, seed=1)
    assert error(_operations.product(x, weight, None), x.double() @ weight.double()) < AT_MOST


@pytest.mark.parametrize("layouts", [("apart", "by rows"), ("by rows", "apart"), ("apart", "apart")])
def test_numbers_that_lie_apart(layouts: tuple[str, str]) -> None:
    x, weight = array(75, 130, layouts[0]), array(130, 70, layouts[1], 1)
    assert error(_operations.product(x, weight, None), x.double() @ weight.double()) < AT_MOST


@pytest.mark.parametrize("layouts", [("by rows", "by rows"), ("by rows", "by columns"), ("by columns", "by rows")])
def test_results_with_narrower_vectors(layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = cpp.source
    monkeypatch.setattr(cpp, "source", lambda file: "#undef __AVX512F__\n" * (file == "vectors.h") + text(file))
    narrow = gemm.kernel.__wrapped__()
    assert narrow.lanes() == 8
    monkeypatch.setattr(gemm, "kernel", lambda: narrow)
    for sizes in [(67, 500, 350), (350, 500, 67)]:
        rows, depth, width = sizes
        x, weight = array(rows, depth, layouts[0]), array(depth, width, layouts[1], 1)
        assert error(gemm.product(x, weight), x.double() @ weight.double()) < AT_MOST


@pytest.mark.parametrize("width", [32, 90])
def test_what_is_not_a_number_stays_in_its_row_and_column(width: int) -> None:
    x, weight = array(40, 64), array(64, width, seed=1)
    x[7, 3], weight[5, 9] = torch.nan, torch.inf
    y = _operations.product(x, weight, None)
    rows, columns = [*range(7), *range(8, 40)], [*range(9), *range(10, width)]
    assert y[7].isnan().all() and not y[:, 9].isfinite().any() and y[rows][:, columns].isfinite().all()


def test_the_operation_keeps_to_what_it_promises() -> None:
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        _operations.product, (array(5, 8), array(8, 30, "by columns"), array(1, 30)[0]), test_utils=checks
    )
    torch.library.opcheck(_operations.product, (array(5, 8), array(8, 30), None), test_utils=checks)


# --- which of the two


@pytest.mark.parametrize(("lanes", "are_idle", "is_ours"), [(16, True, True), (16, False, False), (8, True, False)])
def test_which_processors_it_is_for(lanes: int, are_idle: bool, is_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def lanes(self) -> int:
            return lanes

    monkeypatch.setattr(gemm, "kernel", Kernel)
    monkeypatch.setattr(gemm, "has_idle_vectors", lambda: are_idle)
    assert gemm.suits(array(ROWS, WIDTH), array(WIDTH, WIDTH)) == is_ours


def test_what_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_is_faster", lambda: True)
    x, weight = array(ROWS, WIDTH), array(WIDTH, WIDTH)
    assert gemm.suits(x, weight)
    assert not gemm.suits(x[:30], weight)  # small
    assert not gemm.suits(x.double(), weight.double())
    assert not gemm.suits(x.bfloat16(), weight.bfloat16())
    assert not gemm.suits(x.to("meta"), weight.to("meta"))


def test_processors_that_no_kernel_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "kernel", lambda: None)
    monkeypatch.setattr(gemm, "has_idle_vectors", lambda: True)
    assert not gemm.suits(array(ROWS, WIDTH), array(WIDTH, WIDTH))


# --- in programs


@pytest.fixture
def calls(calls_of: Callable[..., list[str]]) -> list[str]:
    return calls_of(gemm, "kernel")


class Maps(px.Module):
    """A map with a bias, whose result is bent, and one without."""

    def __init__(self, device: Any) -> None:
        self.one = nn.Linear(WIDTH, WIDTH, device=device)
        self.two = nn.Linear(WIDTH, WIDTH, bias=False, device=device)
        self.three = nn.Linear(WIDTH, WIDTH, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.three(self.two(self.one(x).relu()))


@pytest.mark.full
@pytest.mark.parametrize("is_faster", [True, False])
def test_a_compiled_step_is_as_an_eager_one(is_faster: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_is_faster", lambda: is_faster)
    device = Autodiff(Torch()).device()
    model, x = Maps(device).init(seed=0), px.tensor(array(ROWS, WIDTH).numpy(), device=device)

    def gradients(model: Any, x: px.Tensor) -> list[Any]:
        grads = model(x).square().mean().backward()
        return [param.val().grad(grads) for param in model.params()]

    for one, other in zip(px.compile(gradients)(model, x), gradients(model, x), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3, atol=1e-5 * np.abs(other.numpy()).max())
    assert calls == ["multiply"] * 8 * is_faster  # three forward, two for what they are of, three for the weights


def test_a_compiled_prediction_is_as_an_eager_one(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_is_faster", lambda: True)
    device = Torch().device()
    model, x = Maps(device).init(seed=0), px.tensor(array(ROWS, WIDTH).numpy(), device=device)
    found = px.compile(lambda model, x: model(x))(model, x)
    np.testing.assert_allclose(found.numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)
    assert calls == ["multiply"] * 3
