"""Lazy tensors: laziness, layouts, and casts against PyTorch and exact rational arithmetic.

Serves: phlox/record/dtypes.py
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phlox.record import DOUBLE, FULL, HALF, LazyTensor, PrecisionSettings, RecordError
from tests.record.support import DTYPES, FLOATS, INTS, arrays, assert_same_elements

BF16 = np.dtype(ml_dtypes.bfloat16)
TORCH = {np.dtype(np.float64): torch.float64, np.dtype(np.float32): torch.float32}
TORCH |= {np.dtype(np.float16): torch.float16, BF16: torch.bfloat16}


@given(arrays())
def test_an_array_comes_back_bit_for_bit(array: np.ndarray) -> None:
    tensor = LazyTensor.from_array(array)
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == (array.shape, array.dtype, array.nbytes)
    assert_same_elements(tensor.read(), array)


def test_kinds() -> None:
    kinds = {dtype: LazyTensor.from_array(np.zeros(1, dtype)).kind for dtype in DTYPES}
    assert kinds == {**dict.fromkeys(FLOATS, "float"), **dict.fromkeys(INTS, "int"), np.dtype(bool): "bool"}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-1],
        np.arange(24.0).reshape(2, 3, 4)[:, ::2, ::-2],
        np.broadcast_to(np.float64(3), (2, 3)),
        np.arange(5, dtype=">f8"),
        np.arange(5, dtype=">i2"),
        np.array(7, dtype=">u4"),
    ],
)
def test_every_layout_reads_contiguous_and_native(array: np.ndarray) -> None:
    read = LazyTensor.from_array(array).read()
    assert read.flags.c_contiguous and read.dtype.isnative and read.shape == array.shape
    np.testing.assert_array_equal(read, array)


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.ones((3, 2), np.float32)
    assert np.shares_memory(LazyTensor.from_array(array).read(), array)


def test_a_function_is_called_by_read_alone() -> None:
    calls: list[int] = []

    def function() -> np.ndarray:
        calls.append(1)
        return np.ones((2, 2))

    tensor = LazyTensor.from_function((2, 2), np.float64, function)
    narrow = tensor.astype(np.float16).astype(np.float32)
    assert (tensor.nbytes, narrow.nbytes, narrow.dtype, calls) == (32, 16, np.float32, [])
    narrow.read()
    assert calls == [1]


@pytest.mark.parametrize("given_shape, given_dtype", [((2, 3), np.float64), ((2, 2), np.float32)])
def test_a_function_that_breaks_its_promise_is_refused(given_shape: tuple[int, ...], given_dtype: Any) -> None:
    tensor = LazyTensor.from_function((2, 2), np.float64, lambda: np.ones(given_shape, given_dtype), "a.b")
    with pytest.raises(RecordError, match=r"a\.b: its source gave"):
        tensor.read()


@pytest.mark.parametrize("array", [np.zeros(2, complex), np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]")])
def test_other_element_types_are_refused(array: np.ndarray) -> None:
    with pytest.raises(RecordError, match="cannot hold elements of type"):
        LazyTensor.from_array(array)


@pytest.mark.parametrize("shape", [(-1,), (2.0,), (2**62, 2**62), (1,) * 65, "ab", (True,)])
def test_impossible_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(RecordError):
        LazyTensor.from_function(shape, np.float32, lambda: np.zeros(1))


SMALL = pytest.mark.filterwarnings("ignore::phlox.errors.RecordWarning")
"""Of values that become zero, as the nearest of them."""


@SMALL
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", [dtype for dtype in FLOATS if dtype.itemsize == 2])
def test_casting_all_16_bit_floats(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    array = np.arange(2**16, dtype=np.uint16).view(source)
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float64)
    if target == np.float16:
        fits = ~(np.abs(wide) >= 65520) | np.isinf(wide)
        array, wide = array[fits], wide[fits]
    expected = torch.tensor(wide).to(TORCH[target]).to(torch.float64).numpy()
    result = LazyTensor.from_array(array).astype(target).read()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.testing.assert_array_equal(result.astype(np.float64), expected)


@SMALL
@pytest.mark.parametrize("target", [np.dtype(np.float32), np.dtype(np.float16), BF16])
@given(value=st.floats(-6e4, 6e4), nudge=st.integers(-2, 2))
def test_a_double_rounds_once_to_the_nearest(target: np.dtype[Any], value: float, nudge: int) -> None:
    # A tie of the target, moved by a few units in the last place of a double: rounding twice gets it wrong.
    rounded = np.array(value).astype(np.float32).astype(target)
    following = np.nextafter(rounded, np.array(np.inf, target))
    tie = (float(rounded) + float(following)) / 2
    double = np.float64(tie) + nudge * np.spacing(np.float64(tie))
    result = float(LazyTensor.from_array(double).astype(target).read())
    exact = Fraction(float(double))
    assert abs(Fraction(result) - exact) == min(abs(Fraction(float(x)) - exact) for x in (rounded, following))


def test_casting_keeps_nan_infinity_and_signed_zero() -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
    for target in FLOATS:
        result = LazyTensor.from_array(special).astype(target).read().astype(np.float64)
        np.testing.assert_array_equal(result, special)
        np.testing.assert_array_equal(np.signbit(result)[3:], [True, False])


@pytest.mark.parametrize(
    "value, target", [(65520.0, np.float16), (-1e39, np.float32), (3.4e38, BF16), (1e300, BF16), (1e300, np.float16)]
)
def test_a_float_that_would_become_infinite_is_refused(value: float, target: Any) -> None:
    tensor = LazyTensor.from_array(np.array([np.inf, np.nan, 1.0, value])).astype(target, "layers.0.weight")
    for read in (tensor.read, lambda: list(tensor.blocks())):
        with pytest.raises(RecordError, match=r"layers\.0\.weight: the value .* does not fit .* another precision"):
            read()


def test_the_largest_floats_fit() -> None:
    for target, largest in ((np.float16, 65519.99), (np.float32, 3.4028235e38), (BF16, 3.3961e38)):
        assert np.isfinite(float(LazyTensor.from_array(np.float64(largest)).astype(target).read()))


@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize("source", INTS)
def test_ints_fit_or_are_refused(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    limits = np.iinfo(source)
    for value in (limits.min, limits.max, 0, 100):
        tensor = LazyTensor.from_array(np.array([1, value], source)).astype(target)
        if np.iinfo(target).min <= value <= np.iinfo(target).max:
            assert tensor.read().tolist() == [1, value]
        else:
            with pytest.raises(RecordError, match=f"the value {value} does not fit {target}"):
                tensor.read()


def test_kinds_are_never_cast_into_each_other() -> None:
    for source, target in ((np.float32, np.int32), (np.int64, np.float64), (np.bool_, np.int8), (np.int8, np.bool_)):
        with pytest.raises(RecordError, match="does not cast between kinds"):
            LazyTensor.from_array(np.ones(2, source)).astype(target)


def test_casting_goes_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.record.entry.PORTION", 2 * 7)
    array = np.arange(30.0).reshape(5, 6)
    tensor = LazyTensor.from_array(array.T).astype(np.float16)
    np.testing.assert_array_equal(tensor.read(), array.T)
    blocks = list(tensor.blocks())
    assert [block.size for block in blocks] == [7, 7, 7, 7, 2]
    np.testing.assert_array_equal(np.concatenate(blocks), array.T.reshape(-1))


def test_precision_settings() -> None:
    floats = [[settings.stored("x", dtype).name for dtype in FLOATS] for settings in (DOUBLE, FULL, HALF)]
    assert floats == [["float64"] * 4, ["float32"] * 4, ["float16"] * 4]
    assert all(FULL.stored("x", dtype) == dtype for dtype in (*INTS, np.dtype(bool)))
    assert PrecisionSettings(int="i32").stored("x", np.dtype(np.uint8)) == np.int32
    with pytest.raises(RecordError, match="float='f8'.*expected None or one of f64"):
        PrecisionSettings(float="f8")  # type: ignore[arg-type]
