"""Element types: the names Phlox gives them, and their NumPy counterparts on the host."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

FloatElement = Literal["f64", "f32", "bf16", "f16"]
IntElement = Literal["i64", "i32"]

FLOAT_ELEMENTS: tuple[FloatElement, ...] = get_args(FloatElement)
HALF_ELEMENTS = ("bf16", "f16")
INT_ELEMENTS: tuple[IntElement, ...] = get_args(IntElement)


class _HostDtypes(dict[str, np.dtype[Any]]):
    """The dtypes by name; that of bf16 is another package's, which is imported when it is first asked for."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        if name != "bf16":
            raise KeyError(name)
        import ml_dtypes

        return self.setdefault(name, np.dtype(ml_dtypes.bfloat16))


HOST_DTYPES = _HostDtypes(
    f64=np.dtype(np.float64), f32=np.dtype(np.float32), f16=np.dtype(np.float16),
    i64=np.dtype(np.int64), i32=np.dtype(np.int32), bool=np.dtype(np.bool_),
)  # fmt: skip
"""The NumPy dtype that holds each element type on the host."""

INT_RANGES: dict[str, tuple[int, int]] = {"i64": (-(2**63), 2**63 - 1), "i32": (-(2**31), 2**31 - 1)}
"""The least and the greatest integer of each element type."""

LARGEST: dict[str, float] = {
    "f64": float(np.finfo(np.float64).max),
    "f32": float(np.finfo(np.float32).max),
    "f16": float(np.finfo(np.float16).max),
    "bf16": (2.0 - 2.0**-7) * 2.0**127,
}
"""The greatest finite float of each element type."""
