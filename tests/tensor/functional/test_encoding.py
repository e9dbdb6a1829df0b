# pyright: reportArgumentType=false
"""Codes are those of the nearest levels, on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.backend.contract.nn.packed import CODINGS
from phlox.errors import KindError, RangeError, ShapeError

CODED = [name for name in CODINGS if CODINGS[name].bits < 16]


@pytest.mark.parametrize("backend", [NumPy(), NumPy(int="i64"), Jax(), Torch()], ids=repr)
def test_codes_are_of_the_nearest_levels(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    for coding in CODED:
        levels = CODINGS[coding].levels.astype(np.float64)
        finite = np.sort(levels[np.isfinite(levels)])
        middles = (finite[1:] + finite[:-1]) / 2.0
        drawn = rng.uniform(-1.2, 1.2, 301) * finite[-1] if coding != "e8m0" else 2.0 ** rng.uniform(-126, 126, 301)
        # The middles only where f32 has them, so that they are ties.
        exact = middles[middles.astype(np.float32) == middles]
        values = np.concatenate([drawn, finite, exact, [0.0]]).astype(np.float32)
        x = px.tensor(values, device=backend)
        codes = f.encode(x, coding)
        assert int(codes.min().item()) >= 0 and int(codes.max().item()) < 2 ** CODINGS[coding].bits
        decoded = levels[codes.numpy()]
        least = np.abs(values[:, None].astype(np.float64) - finite).min(axis=1)
        np.testing.assert_array_equal(np.abs(values - decoded), least, err_msg=coding)
        words = f.pack(codes, coding)
        assert words.shape == (-(-len(values) // (32 // CODINGS[coding].bits)),)
        np.testing.assert_array_equal(f.unpack(words, coding).numpy()[: len(values)], decoded.astype(np.float32))


def test_ties_are_those_of_ieee() -> None:
    types: Any = pytest.importorskip("ml_dtypes")
    for coding, dtype in (("e4m3", types.float8_e4m3fn), ("e2m1", types.float4_e2m1fn), ("e5m2", types.float8_e5m2)):
        levels = CODINGS[coding].levels.astype(np.float64)
        finite = np.sort(levels[np.isfinite(levels)])
        middles = ((finite[1:] + finite[:-1]) / 2.0).astype(np.float32)
        expected = middles.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(levels[f.encode(px.tensor(middles), coding).numpy()], expected, err_msg=coding)
    whole = px.tensor([0.5, 1.5, -0.5, -2.5, 200.0, -200.0])
    assert f.encode(whole, "int8").tolist() == [0, 2, 0, 254, 127, 128]


def test_what_cannot_be_encoded_says_so() -> None:
    x = px.ones((2,))
    for call, error, words in (
        (lambda: f.encode(x, "int5"), RangeError, ("encode", "int5", "int4")),
        (lambda: f.encode(x, "f16"), RangeError, ("encode", "f16")),
        (lambda: f.encode(x.int(), "int4"), KindError, ("encode", "Int")),
        (lambda: f.pack(x, "int4"), KindError, ("pack", "Float")),
        (lambda: f.pack(px.tensor(3), "int4"), ShapeError, ("pack", "axis")),
    ):
        with pytest.raises(error) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)
