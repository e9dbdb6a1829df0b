"""Attention on NumPy whose weights are not kept: the same bits, in memory that grows as the length does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox.backend import NumPy
from phlox.backend.numpy import attention

RNG = np.random.default_rng(0)
BIAS = RNG.normal(size=(1, 4, 300, 300)).astype(np.float32)
ALLOWED = RNG.random((2, 1, 1, 300)) < 0.9
KEPT = RNG.random((2, 4, 300, 300)) < 0.7


def arrays(n: int, groups: int = 4) -> list[Any]:
    """Queries, keys, values, and the gradient of the result."""
    return [RNG.normal(size=(2, heads, n, 8)).astype(np.float32) for heads in (4, groups, groups, 4)]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("bias", "allowed", "kept"),
    [(None, None, None), (BIAS, None, None), (None, ALLOWED, None), (None, None, KEPT), (BIAS, ALLOWED, KEPT)],
    ids=["plain", "bias", "mask", "dropout", "all"],
)
@pytest.mark.parametrize("of_bias", [False, True])
def test_weights_that_are_computed_again_are_the_same(
    causal: bool, groups: int, bias: Any, allowed: Any, kept: Any, of_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, g = arrays(300, groups)
    options = (causal, 0.3, 0.0 if kept is None else 0.3)
    backend = NumPy()
    results: list[list[Any]] = []
    for most in (1 << 24, 0):
        monkeypatch.setattr(attention, "_KEPT", most)
        y, saved = backend.attention_forward(q, k, v, bias, allowed, kept, options)
        needed = (True, True, True, of_bias and bias is not None)
        results.append([y, *backend.attention_backward(saved, g, needed, options)])
    for again, before in zip(*reversed(results), strict=True):
        assert (again is None) == (before is None)
        if before is not None:
            np.testing.assert_array_equal(again, before)


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 0, 8), (2, 4, 3, 0)])
def test_nothing_to_attend_to(shape: tuple[int, ...]) -> None:
    x: Any = np.ones(shape, np.float32)
    y, saved = NumPy().attention_forward(x, x, x, None, None, None, (True, 1.0, 0.0))
    gradients = NumPy().attention_backward(saved, y, (True, True, True, False), (True, 1.0, 0.0))
    assert y.shape == shape and all(dx is not None and dx.shape == shape for dx in gradients[:3])


def test_what_is_kept_of_long_texts_grows_as_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_KEPT", 1 << 17)
    sizes: list[int] = []
    for n in (64, 256, 1024):
        q, k, v, _ = arrays(n)
        _, saved = NumPy().attention_forward(q, k, v, None, None, None, (True, 0.3, 0.0))
        sizes.append(sum(x.size for x in saved if x is not None) // n)
    assert sizes[0] > sizes[1] == sizes[2] == 4 * 4 * 2 * 8
