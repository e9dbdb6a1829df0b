"""The dtypes of a record, their short names, and correctly rounded casts between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from phlox.errors import RecordError
from phlox.host import float_casts
from phlox.host.thread_pool import parallel_for

Kind: TypeAlias = Literal["float", "int", "bool"]
DType: TypeAlias = np.dtype[Any]
Array: TypeAlias = NDArray[Any]
Recast: TypeAlias = Callable[[Array, DType], Array | None]
"""A function that casts floats faster than NumPy, see `phlox.backend.EngineBackend.recast`."""

FLOAT8 = {
    "f8_e4m3": "e4m3fn",
    "f8_e5m2": "e5m2",
    "f8_e8m0": "e8m0fnu",
    "f8_e4m3fnuz": "e4m3fnuz",
    "f8_e5m2fnuz": "e5m2fnuz",
}
"""The 8-bit floats: short name (as in safetensors) -> suffix after "float8_" in `ml_dtypes` and PyTorch."""

DTYPES: dict[str, DType] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    **{name: np.dtype(getattr(ml_dtypes, f"float8_{suffix}")) for name, suffix in FLOAT8.items()},
}
"""Every dtype of a record, by its short name in files."""

SHORT_NAMES: dict[DType, str] = {dtype: name for name, dtype in DTYPES.items()}
BLOCK = 1 << 16
"""Elements per NumPy cast: few enough to stay in the cache (measured: 1.4x as fast as 4 times as many)."""

_KINDS: dict[str, Kind] = {"b": "bool", "i": "int", "u": "int"}
_BY_NUMPY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}
_CANONICAL = {dtype: dtype for dtype in DTYPES.values()}
_MAX_RANK = 64  # NumPy's own limit
_MAX_BYTES = 2**63 - 1


def canonical(dtype: Any, path: str = "tensor") -> DType:
    """The native-endian dtype of a record that equals `dtype`; RecordError if a record has no such dtype.

    >>> canonical(">f4")
    dtype('float32')
    """
    if isinstance(dtype, np.dtype):
        dtype = cast("DType", dtype)
        if (own := _CANONICAL.get(dtype)) is not None:
            return own  # avoids computing its name, which is slow
    try:
        return _BY_NUMPY_NAME[np.dtype(dtype).name]
    except (KeyError, TypeError):
        raise RecordError(
            f"{path}: a record cannot hold elements of type {dtype}; it holds {', '.join(DTYPES)}"
        ) from None


def kind_of(dtype: DType) -> Kind:
    """The kind of a tensor with `dtype`."""
    return _KINDS.get(dtype.kind, "float")


def checked_shape(shape: object, dtype: DType, path: str = "tensor") -> tuple[int, ...]:
    """`shape` as a tuple; RecordError if no array can have it. Allocates nothing, for any sizes."""
    if not isinstance(shape, (tuple, list)):
        raise RecordError(f"{path}: a shape is a list of sizes, not {type(shape).__name__}")
    sizes = tuple(cast("list[Any]", shape))
    if len(sizes) > _MAX_RANK:
        raise RecordError(f"{path}: a tensor of {len(sizes)} axes; the most is {_MAX_RANK}")
    needed = dtype.itemsize
    for size in sizes:
        if type(size) is not int or size < 0:
            raise RecordError(f"{path}: a shape is a list of whole numbers from 0, not {_shortened(sizes)}")
        needed *= size or 1
    if needed > _MAX_BYTES:
        raise RecordError(f"{path}: shape {_shortened(sizes)} overflows the address space")
    return sizes


def cast_elements(
    array: Array,
    dtype: DType,
    path: str = "tensor",
    recast: Recast = float_casts.recast,
    underflow: Callable[[int], object] | None = None,
) -> Array:
    """Cast a contiguous `array` to another dtype of its kind, rounding to nearest.

    Beyond the result it needs only a small block of memory. Raises RecordError for a value that does not fit: a finite
    float that would become infinite, or an int out of range. If nonzero values become zero, `underflow` is called with
    their number.
    """
    if kind_of(array.dtype) != kind_of(dtype):
        raise RecordError(f"{path}: a record does not cast between kinds, here {array.dtype} to {dtype}")
    if array.dtype == dtype:
        return array
    result = recast(array, dtype)
    if result is None:
        result = _cast(array, dtype, path)
    if underflow is not None and kind_of(dtype) == "float" and (count := _became_zero(array, result)):
        underflow(count)
    return result


def _cast(array: Array, dtype: DType, path: str) -> Array:
    result = np.empty(array.shape, dtype)
    source, target = array.reshape(-1), result.reshape(-1)
    cast_block = _cast_ints if dtype.kind in "iu" else _cast_floats

    def work(start: int, stop: int) -> None:
        for at in range(start, stop, BLOCK):
            block = slice(at, min(at + BLOCK, stop))
            target[block] = cast_block(source[block], dtype, path)

    parallel_for(work, source.size, float_casts.SHARE, float_casts.THREADS)
    return result


def _became_zero(array: Array, result: Array) -> int:
    """The number of nonzero floats that are zero in the result."""
    if not result.size or np.can_cast(array.dtype, result.dtype) or not _has_zeros(result):
        return 0
    source, bits, count = array.reshape(-1), result.reshape(-1).view(f"u{result.dtype.itemsize}"), 0
    for at in range(0, source.size, BLOCK):  # in NumPy, the 16-bit floats have no fast comparisons either
        zeros = np.flatnonzero((bits[at : at + BLOCK] << 1) == 0)
        count += int(np.count_nonzero(source[at : at + BLOCK][zeros])) if zeros.size else 0
    return count


def _has_zeros(array: Array) -> bool:
    # By bits, as two minima: 0.0 is the smallest unsigned integer, -0.0 the smallest signed one.
    bits, width = array.reshape(-1), array.dtype.itemsize
    signed = bits.view(f"i{width}")
    return bool(bits.view(f"u{width}").min() == 0 or signed.min() == np.iinfo(signed.dtype).min)


def _cast_floats(array: Array, dtype: DType, path: str) -> Array:
    with np.errstate(all="ignore"):  # overflow is reported below; signalling NaNs are allowed
        if array.dtype == np.float64 and dtype == ml_dtypes.bfloat16:
            array = _rounded_to_odd(array)
        result = array.astype(dtype)
        if np.can_cast(array.dtype, dtype):
            return result
        # Some 8-bit dtypes have no infinity and give NaN instead.
        overflown = ~np.isfinite(result.astype(np.float32)) if dtype.itemsize == 1 else _is_infinite(result)
        if not overflown.any() or not (overflown := overflown & np.isfinite(array)).any():
            return result
    limit = float(cast("Any", ml_dtypes.finfo(dtype)).max)
    raise RecordError(
        f"{path}: the value {float(array[overflown][0])!r} does not fit {dtype} (largest {limit:.6g}); "
        "use another precision, such as FULL, BFLOAT16 or PrecisionSettings(float=None)"
    )


def _cast_ints(array: Array, dtype: DType, path: str) -> Array:
    if array.size and not np.can_cast(array.dtype, dtype):
        low, high = int(array.min()), int(array.max())
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            value = low if low < limits.min else high
            raise RecordError(
                f"{path}: the value {value} does not fit {dtype} ({limits.min} to {limits.max}); "
                "use another precision, such as PrecisionSettings(int=None)"
            )
    return array.astype(dtype)


def _is_infinite(array: Array) -> NDArray[np.bool_]:
    # By bits: np.isinf has no fast loop for the 16-bit types.
    bits = array.view(f"u{array.dtype.itemsize}")
    infinity = np.array(np.inf, array.dtype).view(bits.dtype)
    return (bits & ~np.array(-0.0, array.dtype).view(bits.dtype)) == infinity


def _rounded_to_odd(array: Array) -> Array:
    """Cast float64 to float32 with rounding to odd, so that a second rounding gives the correctly rounded result.

    ml_dtypes casts float64 to bfloat16 via the nearest float32, which rounds twice. See Boldo and Melquiond, "Emulation
    of a FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    nearest = array.astype(np.float32)
    inexact = nearest != array
    bits = nearest.view(np.uint32)
    bits = bits - (np.abs(nearest) > np.abs(array))
    return np.where(inexact, bits | 1, bits).astype(np.uint32).view(np.float32)


def _shortened(sizes: tuple[Any, ...]) -> str:
    text = str(sizes[:8])
    return text if len(sizes) <= 8 and len(text) < 200 else text[:200] + "..."


def element_bytes(array: Array) -> memoryview:
    """The elements of a contiguous array as little-endian bytes; a view, where the machine is little-endian."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    return (flat if sys.byteorder == "little" else flat.byteswap()).view(np.uint8).data
