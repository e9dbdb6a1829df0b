"""float32 to float16 and back by every way: the bits that NumPy's casts give, for every float16 and all around it.

Serves: phlox/host/simd_casts.py
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phlox.host import float_casts, simd_casts

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)

SIZE = 2 * float_casts._QUICKER * float_casts.SHARE + 3
PLACES = (0, float_casts._BLOCK, float_casts._QUICKER * float_casts._BLOCK, SIZE // 2 - 1, SIZE // 2, SIZE - 1)


@pytest.fixture(autouse=True, scope="module", params=["AVX2", "instructions", "instructions for Python", "integers"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """All ways to cast."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "integers":
            patch.setattr(float_casts, "get_cast", lambda: None)
        elif request.param == "AVX2":
            numkong = pytest.importorskip("numkong")
            library = ctypes.CDLL(numkong._numkong.__file__)
            if simd_casts._by_avx2(library, numkong.__version__) is None:
                pytest.skip("this processor has no AVX2, or the library is another one")
            assert simd_casts._by_address(numkong) is not None
            assert float_casts.has_instructions()
        else:
            pytest.importorskip("numkong")
            skipped = "_by_avx2" if request.param == "instructions" else "_by_address"
            with pytest.MonkeyPatch.context() as without:
                without.setattr(simd_casts, skipped, lambda *_: None)
                again = simd_casts.get_cast.__wrapped__()
            assert again is not None
            patch.setattr(float_casts, "get_cast", lambda: again)
        yield request.param


def test_every_float16_becomes_a_float32() -> None:
    found = float_casts.recast(FINITE, F32)
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint32), FINITE.astype(np.float32).view(np.uint32))


def test_every_tie_and_its_neighbours_round_as_they_should() -> None:
    """Between two float16 next to each other: the number half-way, and the float32 below and above it."""
    ordered = np.sort(FINITE[~np.signbit(FINITE)]).astype(np.float64)
    ties = ((ordered[1:] + ordered[:-1]) / 2).astype(np.float32)
    near = [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(0)), ordered.astype(np.float32)]
    numbers = np.concatenate([*near, *[-x for x in near]]).astype(np.float32)
    found = float_casts.recast(numbers, F16)
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint16), numbers.astype(np.float16).view(np.uint16))


@given(hnp.arrays(np.uint32, st.integers(0, 40)))
def test_any_bits(bits: np.ndarray) -> None:
    numbers = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = numbers.astype(np.float16)
    found = float_casts.recast(numbers, F16)
    if found is None:  # left to NumPy
        assert not np.isfinite(expected).all()
    else:
        np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_codes_that_mean_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    numkong = pytest.importorskip("numkong")
    assert simd_casts._by_address(numkong) is not None
    monkeypatch.setitem(simd_casts._CODES, F16, 1 << 13)  # bfloat16
    assert simd_casts._by_address(numkong) is None
    assert simd_casts._by_address(np) is None


@pytest.mark.parametrize(
    ("version", "capabilities", "found", "asked"),
    [("7.9.1", 0b1111, 0b100, 1), ("8.0.0", 0b1111, 0b100, 0), ("7.8.6", 0b1011, 0b100, 0), ("7.8.6", 0b100, 0, 1)],
)
def test_what_the_processor_or_the_library_has_not_is_not_used(
    version: str, capabilities: int, found: int, asked: int
) -> None:
    calls: list[tuple[int, int, int]] = []

    def find(kind: int, dtype: int, wanted: Any, function: Any, capability: Any) -> None:
        calls.append((kind, dtype, wanted.value))
        capability._obj.value = found

    library: Any = SimpleNamespace(nk_capabilities=lambda: capabilities, nk_find_kernel_punned=find)
    function = simd_casts._by_avx2(library, version)
    assert (function is not None) == bool(asked and found)
    assert calls == [(ord("-"), 0, 0b100)] * asked


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65520.0, -65520.0, 3e38])
def test_what_does_not_fit_is_left_to_others(way: str, number: float) -> None:
    assert float_casts.recast(np.array([1.0, number], np.float32), F16) is None
    if not np.isfinite(number):
        found = float_casts.recast(np.array([1.0, number], np.float16), F32)
        assert (found is None) == (way == "integers")  # the others have an answer
        if found is not None:
            np.testing.assert_array_equal(found, [1.0, number])


def test_the_largest_that_rounds_into_float16() -> None:
    largest = np.nextafter(np.float32(65520), np.float32(0))
    found = float_casts.recast(np.array([largest, -largest], np.float32), F16)
    assert found is not None and found.tolist() == [65504.0, -65504.0]


def test_one_that_does_not_fit_is_found_in_every_thread_and_block() -> None:
    array = np.ones(SIZE, F32)
    for place in PLACES:
        for number in (np.inf, -np.inf, np.nan):
            array[place] = number
            assert float_casts.recast(array, F16) is None
        array[place] = 1
    found = float_casts.recast(array, F16)
    assert found is not None and found.dtype == F16 and (found == 1).all()


def test_what_is_not_finite_is_seen_in_every_thread_and_block(way: str) -> None:
    array = np.ones(SIZE, F16)
    for place in PLACES:
        array[place] = np.inf
        found = float_casts.recast(array, F32)
        assert (found is None) == (way == "integers")
        if found is not None:
            assert np.flatnonzero(found != 1).tolist() == [place] and found[place] == np.inf
        array[place] = 1
    found = float_casts.recast(array, F32)
    assert found is not None and found.dtype == F32 and (found == 1).all()


@pytest.mark.parametrize(
    "array", [np.ones((4, 6), np.float32).T, np.ones(9, np.float32)[::-2], np.array(3, np.float32)]
)
def test_any_order_in_memory(array: np.ndarray) -> None:
    array.flags.writeable = False
    found = float_casts.recast(array, F16)
    assert found is not None and found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    back = float_casts.recast(found, F32)
    assert back is not None
    np.testing.assert_array_equal(back, array)


def test_bytes_at_an_odd_place() -> None:
    raw = np.zeros(2 * FINITE.size + 1, np.uint8)
    raw[1:] = FINITE.view(np.uint8)
    found = float_casts.recast(raw[1:].view(np.float16), F32)
    assert found is not None
    np.testing.assert_array_equal(found, FINITE.astype(np.float32))
