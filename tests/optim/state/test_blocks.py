"""Tensors in 8 bits: against the nearest level by NumPy in float64, and bitsandbytes' tables as it prints them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.contract.nn.packed import CODINGS
from phlox.optim.state.blocks import Blocks

ENGINES = [NumPy(), Jax(), Torch(), NumPy(int="i64")]


def nearest(x: Any, coding: str) -> Any:
    """Each element as the nearest level times the largest magnitude of its block of 256."""
    levels, result = CODINGS[coding].levels.astype(np.float64), x.astype(np.float64).ravel()
    for start in range(0, x.size, 256):
        block = result[start : start + 256]
        largest = np.abs(block).max()
        numbers = np.abs(block[:, None] / (largest or 1.0) - levels).argmin(1)
        numbers = np.maximum(numbers, block > 0.0) if coding == "udynamic8" else numbers
        result[start : start + 256] = levels[numbers] * largest
    return result.reshape(x.shape)


def sample(coding: str) -> Any:
    """Of all magnitudes, with a block of zeros, one of the smallest numbers, and an incomplete one."""
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(scale=4.0, size=(30, 37))) * (
        rng.choice([-1.0, 1.0], (30, 37)) if coding == "dynamic8" else 1
    )
    x.ravel()[256:512], x.ravel()[512:768] = 0.0, 1e-40
    return x.astype(np.float32)


def test_the_tables_are_those_of_bitsandbytes() -> None:
    signed, unsigned = (CODINGS[name].levels for name in ("dynamic8", "udynamic8"))
    np.testing.assert_array_equal(signed[:255], -signed[:255][::-1])  # but 1.0, which has no negative
    np.testing.assert_allclose(signed[127:131], [0.0, 5.5e-07, 3.25e-06, 7.75e-06], rtol=1e-6)
    np.testing.assert_allclose(signed[-3:], [0.9789062, 0.9929687, 1.0], rtol=1e-7)
    np.testing.assert_allclose(unsigned[:5], [0.0, 3.25e-07, 7.75e-07, 2.125e-06, 4.375e-06], rtol=1e-6)
    np.testing.assert_allclose(unsigned[-3:], [0.9894531, 0.9964844, 1.0], rtol=1e-7)
    assert [len(np.unique(levels)) for levels in (signed, unsigned)] == [256, 256]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("coding", ["dynamic8", "udynamic8"])
def test_blocks_hold_the_nearest_levels(coding: str, engine: Backend) -> None:
    x = sample(coding)
    blocks = Blocks.of(px.tensor(x, device=engine.device()), coding)
    assert blocks.codes.shape == (5, 64) and blocks.scales.shape == (5, 1)
    values = blocks.values(x.shape).numpy()
    np.testing.assert_allclose(values, nearest(x, coding), rtol=2e-6, atol=2e-40)
    if coding == "udynamic8":  # nothing that divides becomes zero
        assert (values > 0).sum() >= (x > 1e-38).sum()
