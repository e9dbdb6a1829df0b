"""Blocks of packed matrices on NumPy: their results depend on no thread, and nothing of the matrix's size is made."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from phlox.backend import NumPy
from phlox.backend.contract.nn.packed import CODINGS, PackedOps, pack

B = NumPy()
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("coding", CODINGS)
def test_levels(coding: str) -> None:
    bits = CODINGS[coding].bits
    codes = np.arange(1 << bits).reshape(2, -1)
    for words in (pack(codes, bits), pack(codes, bits).astype(np.int64), np.asfortranarray(pack(codes, bits))):
        np.testing.assert_array_equal(B.int_unpack(words, coding), CODINGS[coding].levels.reshape(2, -1))


@pytest.mark.parametrize("m", [1, 3, 8, 9])
@pytest.mark.parametrize(("coding", "columns", "groups"), [("int4", 640, 10), ("int8", 320, 5), ("int4", 45, 9)])
def test_a_product(m: int, coding: str, columns: int, groups: int) -> None:
    words = pack(RNG.integers(0, 256, (4000, columns)), CODINGS[coding].bits)
    x, scales = RNG.normal(size=(m, columns)).astype(np.float32), RNG.normal(size=(4000, groups)).astype(np.float32)
    found = B.packed_linear(x, words, scales, None, None, coding)
    wide = PackedOps.packed_linear(
        NumPy("f64"), x.astype(np.float64), words, scales.astype(np.float64), None, None, coding
    )
    np.testing.assert_allclose(found, wide, atol=2e-6 * np.abs(wide).max())


def test_no_matrix_of_floats_is_made() -> None:
    words: Any = np.zeros((8192, 96), np.int32)
    x, scales = np.ones((1, 768), np.float32), np.ones((8192, 12), np.float32)
    B.packed_linear(x, words, scales, None, None, "int4")
    tracemalloc.start()
    B.packed_linear(x, words, scales, None, None, "int4")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8192 * 768  # a byte an element
