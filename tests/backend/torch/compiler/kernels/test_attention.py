"""The attention of programs on PyTorch: results are those of the definition, in float64, and gradients as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.kernels import attention
from tests.backend.errors import error

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
_operations: Any = torch.ops.phlox
AT_MOST = 1e-6
"""Of the norm of the exact result, for the error."""
SHAPES = [(1, 1, 1, 1, 16), (2, 3, 37, 53, 48), (1, 2, 53, 37, 16), (2, 1, 64, 64, 80), (1, 4, 129, 200, 32)]
"""Batch, heads, queries, keys and size of a head."""


def operands(shape: tuple[int, int, int, int, int], scale: float = 1.0) -> list[torch.Tensor]:
    """Queries, keys and values, the heads of which lie beside each other."""
    batch, heads, queries, keys, size = shape
    rng = np.random.default_rng(0)
    arrays = [scale * rng.standard_normal((batch, length, heads, size)) for length in (queries, keys, keys)]
    return [torch.from_numpy(array.astype(np.float32)).transpose(1, 2) for array in arrays]


def exactly(given: list[torch.Tensor], causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (x.double() for x in given)
    scores = scale * (q @ k.transpose(2, 3))
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(shape: tuple[int, int, int, int, int], causal: bool, threads: int) -> None:
    given = operands(shape)
    expected, sums = exactly(given, causal, 0.3)
    torch.set_num_threads(threads)
    found = _operations.attention(*given, causal, 0.3)
    assert error(found[0], expected) < AT_MOST
    np.testing.assert_allclose(found[1].numpy(), sums.numpy(), rtol=1e-6, atol=2e-6)
    torch.set_num_threads(3)
    assert all(map(torch.equal, found, _operations.attention(*given, causal, 0.3)))


def test_any_order_in_memory() -> None:
    q, k, v = operands((2, 3, 40, 40, 32))
    expected = _operations.attention(q, k, v, True, 0.2)
    backwards = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert all(x.stride(-1) != 1 for x in backwards)
    assert all(map(torch.equal, expected, _operations.attention(*backwards, True, 0.2)))
    assert all(map(torch.equal, expected, _operations.attention(q.contiguous(), k, v.contiguous(), True, 0.2)))


def test_scores_that_are_far_apart_and_equal_ones() -> None:
    given = operands((1, 2, 40, 40, 16), scale=30.0)
    expected, sums = exactly(given, True, 1.0)
    found = _operations.attention(*given, True, 1.0)
    assert float(sums.abs().max()) > 1e3
    np.testing.assert_allclose(found[0].numpy(), expected.numpy(), atol=1e-2)
    np.testing.assert_allclose(found[1].numpy(), sums.numpy(), rtol=1e-6, atol=1e-3)
    q, k, v = given
    found, _ = _operations.attention(q * 0, k, v, True, 1.0)
    np.testing.assert_allclose(found.numpy(), exactly([q * 0, k, v], True, 1.0)[0].numpy(), rtol=1e-4, atol=1e-4)


def test_what_is_not_a_number() -> None:
    q, k, v = operands((1, 1, 64, 64, 16))
    q[0, 0, 5, 3] = torch.nan
    y, sums = _operations.attention(q, k, v, True, 0.2)
    assert y[0, 0, 5].isnan().all() and sums[0, 0, 5].isnan()
    assert y[0, 0, [*range(5), *range(6, 64)]].isfinite().all()
    q, k, v = operands((1, 1, 64, 64, 16))
    v[0, 0, 40] = torch.nan
    y, _ = _operations.attention(q, k, v, True, 0.2)
    assert y[0, 0, 40:].isnan().all() and y[0, 0, :33].isfinite().all()
    k[0, 0, 40] = torch.nan
    assert _operations.attention(q, k, v * 0, True, 0.2)[0][0, 0, :33].isfinite().all()


def test_the_operation_keeps_to_what_it_promises() -> None:
    given = (*operands((2, 3, 7, 9, 16)), True, 0.5)
    torch.library.opcheck(_operations.attention, given, test_utils=("test_schema", "test_faketensor"))


def test_its_results_lie_as_those_of_pytorch() -> None:
    given = operands((2, 3, 70, 70, 32))
    theirs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, 0.0, True, scale=0.2)
    for one, other in zip(_operations.attention(*given, True, 0.2), theirs, strict=True):
        assert one.stride() == other.stride()
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize(("length", "size", "is_ours"), [(64, 32, True), (63, 32, False), (64, 20, False)])
def test_a_compiled_layer_is_as_an_eager_one(
    length: int, size: int, is_ours: bool, calls_of: Callable[..., list[str]]
) -> None:
    device = Autodiff(Torch()).device()
    model = nn.MultiHeadAttention(2 * size, 2, causal=True, device=device).init(seed=1)
    x = px.tensor(np.random.default_rng(2).standard_normal((3, length, 2 * size)).astype(np.float32), device=device)

    def gradients(model: Any, x: px.Tensor) -> list[Any]:
        y = model(x)
        grads = y.square().mean().backward()
        return [y, *[param.val().grad(grads) for param in model.params()]]

    calls = calls_of(attention)
    expected, found = gradients(model, x), px.compile(gradients)(model, x)
    assert ("attend" in calls) == is_ours
    assert len(found) == len(expected) > 8
    size = max(np.abs(one.numpy()).max() for one in expected[1:])  # that of the keys' bias is zero but for rounding
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=1e-4, atol=2e-6 * max(size, np.abs(other.numpy()).max())
        )
