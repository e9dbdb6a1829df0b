"""The element types of ONNX: the kind of tensor for each, and conversions to narrower types."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend import Bool, Float, Int, Kind, load_backend
from phlox.backend.contract.backend import without_autodiff
from phlox.errors import RangeError, RecordError
from phlox.tensor import Tensor, tensor, where

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL = 1, 2, 3, 4, 5, 6, 7, 8, 9
FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16 = 10, 11, 12, 13, 16
FLOAT4 = 23
UINT4, INT4, UINT2, INT2 = 21, 22, 25, 26

INTEGERS: dict[int, tuple[int, bool]] = {
    UINT8: (8, False), INT8: (8, True), UINT16: (16, False), INT16: (16, True), INT32: (32, True), INT64: (64, True),
    UINT32: (32, False), UINT64: (64, False), UINT4: (4, False), INT4: (4, True), UINT2: (2, False), INT2: (2, True),
}  # fmt: skip
"""The number of bits, and whether the type is signed."""

SMALL_FLOATS: dict[int, tuple[int, int, float]] = {
    FLOAT16: (10, -14, 65504.0), BFLOAT16: (7, -126, 3.3895313892515355e38), 17: (3, -6, 448.0), 18: (3, -7, 240.0),
    19: (2, -14, 57344.0), 20: (2, -15, 57344.0), 23: (1, 0, 6.0),
}  # fmt: skip
"""Floats of 16, 8 and 4 bits: bits of the mantissa, the smallest exponent of normal numbers, the largest number."""

HAS_INFINITY = frozenset({FLOAT16, BFLOAT16, 19})
POWERS_OF_TWO = 24
FLOATS = frozenset({FLOAT, DOUBLE, POWERS_OF_TWO, *SMALL_FLOATS})

NAMES = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
BY_NAME = {name: number for number, name in NAMES.items()}

_numpy: Any = load_backend("numpy")
HOST: Any = _numpy(float="f64", int="i64")
"""The backend for shapes and other small values known without the inputs: in 64 bits, outside of any trace."""


def kind_of(element: int, subject: str = "a value") -> type[Kind]:
    """The kind of tensor that holds elements of this type; `RecordError` for text and complex numbers."""
    if element in FLOATS:
        return Float
    if element in INTEGERS:
        return Int
    if element == BOOL:
        return Bool
    raise RecordError(f"{subject}: no kind of tensor holds elements of the type {NAMES.get(element, element)}")


def known_to_numpy(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Values of types that ml_dtypes adds (bfloat16, int4, ...) in types that all of NumPy takes."""
    if values.dtype.type.__module__ == "numpy":
        return values
    return values.astype(np.int64 if values.dtype.name.startswith(("int", "uint")) else np.float32)


def host(value: Any) -> Tensor[Any, Any, Any]:
    """A small value as a tensor on the host."""
    values = np.asarray(value)
    values = known_to_numpy(values)
    if values.dtype == np.uint64 and values.size and values.max() >= 2**63:
        raise RangeError(f"{values.max()} is an unsigned integer of 64 bits that no backend holds")
    return tensor(values, device=HOST.device())


def is_host(value: object) -> bool:
    """Is the value on the host, and so known without the inputs?"""
    return isinstance(value, Tensor) and value.backend is HOST


def moved(value: Tensor[Any, Any, Any], device: Any, *, ends: bool = True) -> Tensor[Any, Any, Any]:
    """A value of the host on a device; with `ends`, the least and the largest int64, "to the end", fit anywhere."""
    values = value.numpy()
    try:
        return tensor(values, device=device)
    except RangeError:
        extreme = np.abs(values) >= 2**62
        if not (ends and values.dtype.kind == "i" and extreme.any()):
            raise
        return tensor(np.where(extreme, np.sign(values) * (2**31 - 1), values), device=device)


def values_of(x: Any) -> np.ndarray[Any, Any]:
    """The values of a tensor on the host; an error of its backend if they are unknown during tracing."""
    return x.numpy() if hasattr(x, "primitive") else np.asarray(x)


def cast(
    x: Tensor[Any, Any, Any], element: int, *, saturate: bool = True, round_mode: str = "up"
) -> Tensor[Any, Any, Any]:
    """`x` with elements of another type: its kind changes; a narrower type wraps (Int) or rounds (Float).

    f16 and bf16 overflow to infinity; on a backend of half precision the backend has rounded already.
    """
    kind = kind_of(element, "Cast")
    if kind is Bool:
        return x if x.kind is Bool else x != (0.0 if x.kind is Float else 0)
    if kind is Int:
        return wrapped(x.int(), element) if x.kind is not Int else wrapped(x, element)
    x = x.float()
    if element == POWERS_OF_TWO:
        return rounded_to_power(x, round_mode)
    return rounded(x, element, saturate=saturate) if element in SMALL_FLOATS else x


def wrapped(x: Tensor[Any, Any, Any], element: int) -> Tensor[Any, Any, Any]:
    """Integers modulo the range of their type, if that is narrower than the backend's."""
    bits, signed = INTEGERS.get(element, (64, True))
    if bits >= (64 if without_autodiff(x.backend).int_element == "i64" else 32):
        return x
    half = 1 << (bits - 1)
    return ((x + half) & (2 * half - 1)) - half if signed else x & (2 * half - 1)


def limits(element: int) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    bits, signed = INTEGERS[element]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def rounded(x: Tensor[Any, Any, Any], element: int, *, saturate: bool = True) -> Tensor[Any, Any, Any]:
    """Floats rounded to a narrower type, ties to even; the gradient passes unchanged."""
    mantissa, smallest, largest = SMALL_FLOATS[element]
    plain = x.detach()
    if without_autodiff(plain.backend).float_element in ("f16", "bf16") and element in (FLOAT16, BFLOAT16):
        return x
    size = plain.abs()
    finite = size.isfinite()
    usual = where(finite & (size > 0.0), size, 1.0)
    exponent = usual.log2().floor().clip(float(smallest), None)
    step = (exponent - float(mantissa)).exp2()
    near = (usual / step).round() * step
    beyond = near > largest
    if element in HAS_INFINITY and not (saturate and element == 19):
        near = where(beyond, float("inf"), near)
        special = size
    else:
        near = where(beyond, largest if saturate or element == FLOAT4 else float("nan"), near)
        over = largest if saturate or element == FLOAT4 else float("nan")
        special = where(size.isinf(), over, size)
    result = where(finite, where(size > 0.0, near, size), special)
    result = where(plain < 0.0, -result, result)
    if element == FLOAT4:  # the type has no NaN
        result = where(plain.isnan(), 0.0, result)
    return x + (result - plain).detach() if x.backend.differentiates else result


def rounded_to_power(x: Tensor[Any, Any, Any], mode: str) -> Tensor[Any, Any, Any]:
    """Positive floats as powers of two, which is all that float8e8m0 holds."""
    exponent = x.detach().abs().log2()
    whole = exponent.ceil() if mode == "up" else exponent.floor() if mode == "down" else exponent.round()
    return whole.clip(-127.0, 127.0).exp2()


def element_of_type(proto: Any) -> int:
    """The element type of a `TypeProto`: of a tensor, or of the tensors in a sequence or an optional."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return int(getattr(proto, kind).elem_type)
    if kind in ("sequence_type", "optional_type"):
        return element_of_type(getattr(proto, kind).elem_type)
    return 0
