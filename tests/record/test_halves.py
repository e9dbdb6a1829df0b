"""float32 to float16 and back by integers: the bits that NumPy's casts give, for every float16 and all around it."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phlox.backend.halves import from_half, to_half
from phlox.record import parallel

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]


def test_every_float16_becomes_a_float32() -> None:
    found = from_half(FINITE)
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint32), FINITE.astype(np.float32).view(np.uint32))


def test_every_tie_and_its_neighbours_round_as_they_should() -> None:
    """Between two float16 next to each other: the number half-way, and the float32 below and above it."""
    ordered = np.sort(FINITE[~np.signbit(FINITE)]).astype(np.float64)
    ties = ((ordered[1:] + ordered[:-1]) / 2).astype(np.float32)
    near = [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(0)), ordered.astype(np.float32)]
    numbers = np.concatenate([*near, *[-x for x in near]]).astype(np.float32)
    found = to_half(np.ascontiguousarray(numbers))
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint16), numbers.astype(np.float16).view(np.uint16))


@given(hnp.arrays(np.uint32, st.integers(0, 40)))
def test_any_bits(bits: np.ndarray) -> None:
    numbers = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = numbers.astype(np.float16)
    found = to_half(numbers)
    if found is None:  # left to NumPy
        assert not np.isfinite(expected).all()
    else:
        np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65520.0, -65520.0, 3e38])
def test_what_does_not_fit_is_left_to_others(number: float) -> None:
    assert to_half(np.array([1.0, number], np.float32)) is None
    if not np.isfinite(number):
        assert from_half(np.array([1.0, number], np.float16)) is None


def test_the_largest_that_rounds_into_float16() -> None:
    largest = np.nextafter(np.float32(65520), np.float32(0))
    found = to_half(np.array([largest, -largest], np.float32))
    assert found is not None and found.tolist() == [65504.0, -65504.0]


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_checksums_of_parts_are_joined(data: bytes, start: int, part: int) -> None:
    before = parallel._PART
    try:
        parallel._PART = part
        assert parallel.crc32(memoryview(data), start) == zlib.crc32(data, start)
    finally:
        parallel._PART = before


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_joined(first: bytes, second: bytes) -> None:
    assert parallel.joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
