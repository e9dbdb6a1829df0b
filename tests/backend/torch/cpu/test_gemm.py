"""Products that PyTorch computes at once: by whichever library, results are those in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.cpu import gemm
from tests.backend.errors import error
from tests.backend.matrices import array

AT_MOST = 1e-6
"""Of the norm of the exact result, for the error."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN multiplies what is not small, on any processor; the shapes of the factors to which it came."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch comes without oneDNN")
    monkeypatch.setattr(gemm, "_is_faster", lambda: True)
    monkeypatch.setattr(gemm, "LEAST", 1)
    found: list[tuple[int, ...]] = []
    run = gemm._multiply

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found.append((*x.shape, weight.shape[1]))
        return run(x, weight, bias)

    monkeypatch.setattr(gemm, "_multiply", watched)
    return found


@pytest.mark.covering(2)
@pytest.mark.parametrize("left", ["by rows", "by columns", "apart"])
@pytest.mark.parametrize("right", ["by rows", "by columns", "apart"])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (2, 70, 33), (3, 70, 33), (67, 130, 31), (200, 31, 150), (31, 500, 260)], ids=str
)
def test_results(sizes: tuple[int, int, int], left: str, right: str, calls: list[tuple[int, ...]]) -> None:
    rows, depth, width = sizes
    x, weight, bias = array(rows, depth, left), array(depth, width, right, 1), array(1, width, seed=2)[0]
    exact = x.double() @ weight.double()
    assert error(gemm.multiply(x, weight), exact) < AT_MOST
    assert error(gemm.multiply(x, weight, bias), exact + bias.double()) < AT_MOST
    assert error(gemm.matmul(x, weight), exact) < AT_MOST
    assert len(calls) == (3 if rows >= gemm.FEW else 0) and all(sorted(call) == sorted(sizes) for call in calls)
    assert gemm.multiply(x, weight).is_contiguous() and gemm.multiply(x, weight, bias).is_contiguous()


@pytest.mark.parametrize("shapes", [((3, 5, 40), (40, 30)), ((2, 3, 5, 40), (40, 30)), ((3, 5, 40), (3, 40, 30))])
def test_batches_of_rows(shapes: Any, calls: list[tuple[int, ...]]) -> None:
    x, weight = (
        torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32)) for shape in shapes
    )
    y = gemm.matmul(x, weight)
    assert y.shape == (*shapes[0][:-1], 30) and error(y, x.double() @ weight.double()) < AT_MOST
    assert len(calls) == (weight.ndim == 2)
    assert torch.equal(gemm.matmul(x.double(), weight.double()), x.double() @ weight.double())
    turned = x.transpose(0, 1)
    assert weight.ndim > 2 or error(gemm.matmul(turned, weight), turned.double() @ weight.double()) < AT_MOST


def test_what_is_not_a_number_stays_in_its_row_and_column(calls: list[tuple[int, ...]]) -> None:
    x, weight = array(40, 64), array(64, 90, seed=1)
    x[7, 3], weight[5, 9] = torch.nan, torch.inf
    y = gemm.multiply(x, weight)
    rows, columns = [*range(7), *range(8, 40)], [*range(9), *range(10, 90)]
    assert y[7].isnan().all() and not y[:, 9].isfinite().any() and y[rows][:, columns].isfinite().all()
    assert calls


def test_a_map_and_its_gradients(calls: list[tuple[int, ...]]) -> None:
    device = Autodiff(Torch()).device()
    layer = nn.Linear(48, 20, device=device)
    x = px.random.normal((7, 5, 48), device=device).require_grad()
    factor = px.random.normal((7, 5, 20), device=device)
    grads = (layer(x) * factor).sum().backward()
    host, weight, g = (tensor.numpy().astype(np.float64) for tensor in (x, layer.weight.val(), factor))
    assert layer.bias is not None
    expected = {
        "x": (x.grad(grads), g @ weight.T),
        "weight": (layer.weight.val().grad(grads), host.reshape(-1, 48).T @ g.reshape(-1, 20)),
        "bias": (layer.bias.val().grad(grads), g.sum((0, 1))),
    }
    for found, exact in expected.values():
        assert found is not None
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5, atol=1e-5)
    assert sorted(calls) == sorted([(35, 48, 20), (35, 20, 48), (20, 35, 48)])  # the last one is turned


def test_shapes_that_do_not_fit_are_told_as_ever(calls: list[tuple[int, ...]]) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        gemm.multiply(array(40, 64), array(65, 90))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        gemm.matmul(array(40, 64), array(65, 90))
    assert not calls


# --- what is left to PyTorch's own function


@pytest.mark.parametrize("make", [torch.Tensor.double, torch.Tensor.bfloat16, lambda x: x.to("meta")])
def test_other_elements_and_devices(make: Callable[[torch.Tensor], torch.Tensor], calls: list[tuple[int, ...]]) -> None:
    x, weight = make(array(40, 64)), make(array(64, 90))
    assert gemm.multiply(x, weight).dtype is x.dtype and gemm.matmul(x, weight).shape == (40, 90) and not calls


def test_what_is_small(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "LEAST", 40 * 64 * 90)
    gemm.matmul(array(40, 64), array(64, 89))
    assert not calls
    gemm.matmul(array(40, 64), array(64, 90))
    assert calls


def test_what_pytorch_differentiates_or_maps_itself(calls: list[tuple[int, ...]]) -> None:
    x, weight = array(40, 64), array(64, 90, seed=1)
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(gemm.multiply(leaf, weight).sum(), leaf)
    assert error(found, weight.double().sum(1).expand(40, 64)) < AT_MOST
    by_function = torch.func.grad(lambda x: gemm.multiply(x, weight).sum())(x)
    assert error(by_function, weight.double().sum(1).expand(40, 64)) < AT_MOST
    several = torch.func.vmap(gemm.multiply, (0, None))(torch.stack([x, x + 1.0]), weight)
    assert error(several, torch.stack([x, x + 1.0]).double() @ weight.double()) < AT_MOST
    assert not calls


def test_programs_record_the_product_that_they_are_to_choose_for(
    calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")
    device = Torch().device()
    x, weight = (px.random.normal(shape, device=device) for shape in ((40, 64), (64, 90)))
    found = px.compile(lambda x, weight: x @ weight)(x, weight)
    assert not calls
    np.testing.assert_allclose(found.numpy(), x.numpy() @ weight.numpy(), rtol=1e-4, atol=1e-4)


def test_processors_that_the_other_library_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "has_idle_vectors", lambda: False)
    assert not gemm._is_faster.__wrapped__()
