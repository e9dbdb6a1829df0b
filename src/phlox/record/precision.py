"""Precision settings: the dtypes in which the tensors of a record are written."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from phlox.errors import RecordError, RecordWarning
from phlox.other_names import equivalent
from phlox.record.dtypes import DTYPES, DType, canonical, kind_of

FloatName: TypeAlias = Literal["f64", "f32", "f16", "bf16"]
IntName: TypeAlias = Literal["i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"]


class Precision(Protocol):
    """The protocol of a precision for recorders and `Record.with_precision`.

    >>> class HalfButNorms:
    ...     def stored(self, path, dtype):
    ...         return dtype if "norm" in path else HALF.stored(path, dtype)
    """

    def stored(self, path: str, dtype: DType) -> DType:
        """The dtype in which to write the tensor at `path` with `dtype`; it must be of the same kind."""
        ...


PrecisionLike: TypeAlias = Precision | FloatName
"""A precision, or the name of that of all floats: "f64", "f32", "bf16" or "f16"."""


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """A precision with one dtype for all floats and one for all ints; None keeps them unchanged.

    Floats that accumulate over training steps stay at least f32 under `float`, since resuming from less would fail:
    moments and averages of optimizers, and parameters kept at full precision, such as running statistics. Use `state`
    to set their dtype explicitly. Raises RecordError for an unknown dtype.

    >>> str(PrecisionSettings(float="bf16", int="i32"))
    'float=bf16, int=i32'
    >>> moments, dtype = "optimizer.states.1.state.moment_2", np.dtype(np.float32)
    >>> HALF.stored(moments, dtype), PrecisionSettings(float="f16", state="f16").stored(moments, dtype)
    (dtype('float32'), dtype('float16'))
    """

    float: FloatName | None = None
    int: IntName | None = None
    state: FloatName | None = None

    def __post_init__(self) -> None:
        for field, name, names in (
            ("float", self.float, FloatName), ("int", self.int, IntName), ("state", self.state, FloatName)
        ):  # fmt: skip
            if name is not None and name not in get_args(names):
                raise RecordError(
                    f"PrecisionSettings({field}={name!r}): expected None or one of {', '.join(get_args(names))}"
                    f"{equivalent(name, 'precision')}"
                )

    def stored(self, path: str, dtype: DType) -> DType:
        """See `Precision.stored`; the path identifies optimizer states."""
        kind = kind_of(dtype)
        name = self.float if kind == "float" else self.int if kind == "int" else None
        result = dtype if name is None else DTYPES[name]
        if (result.itemsize <= 2 or self.state) and _OF_OPTIMIZER.search(path):
            return self.stored_state(dtype)
        return result

    def stored_state(self, dtype: DType) -> DType:
        """Like `stored`, for tensors that accumulate over training steps."""
        if kind_of(dtype) != "float":
            return self.stored("", dtype)
        if self.state is not None:
            return DTYPES[self.state]
        result = self.stored("", dtype)
        if result.itemsize > 2:
            return result
        return DTYPES["f32"] if dtype.itemsize > 2 else dtype

    def __str__(self) -> str:
        state = f", state={self.state}" if self.state else ""
        return f"float={self.float or 'as is'}, int={self.int or 'as is'}{state}"


_OF_OPTIMIZER = re.compile(r"(?:^|\.)states\.[^.]+\.state(?:\.|$)")
"""The paths of optimizer states, also within a larger record."""


DOUBLE = PrecisionSettings(float="f64")
"""Floats are stored in 64 bits."""
FULL = PrecisionSettings(float="f32")
"""Floats are stored in 32 bits."""
HALF = PrecisionSettings(float="f16")
"""Floats are stored in 16 bits, optimizer state in 32."""
BFLOAT16 = PrecisionSettings(float="bf16")
"""Floats are stored in bfloat16, which has the range of f32; optimizer state in 32 bits."""


Underflow: TypeAlias = list[tuple[str, DType, int]]
"""(path, dtype, count) of values that casts made zero; several threads append to it."""
_SHOWN = 5


def warn_of_underflow(underflow: Underflow, task: str) -> None:
    """Give one `RecordWarning` for all values."""
    paths = list(dict.fromkeys([path for path, _, _ in underflow]))
    dtypes = " and ".join(dict.fromkeys([str(dtype) for _, dtype, _ in underflow]))
    others = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    message = underflow_message(f"{sum([count for _, _, count in underflow])} values", dtypes)
    warnings.warn(f"{task}: {message}, in {', '.join(paths[:_SHOWN])}{others}", RecordWarning, stacklevel=4)


def underflow_message(what: str, dtype: object) -> str:
    """The message for values that became zero because they are too small."""
    return f"{what} that are not zero became zero at {dtype}, because they are too small; BFLOAT16 and FULL keep them"


def checked_precision(precision: PrecisionLike) -> Precision:
    """The precision that is meant: itself, or that of all floats by its name, such as "f16"; RecordError otherwise."""
    if isinstance(precision, str) and precision in get_args(FloatName):
        return PrecisionSettings(float=precision)
    if (
        not isinstance(precision, str)
        and callable(getattr(precision, "stored", None))
        and not isinstance(precision, type)
    ):
        return precision
    raise RecordError(
        f"precision={precision!r}: expected {', '.join(map(repr, get_args(FloatName)))}, a phlox.record."
        "PrecisionSettings(float=..., int=..., state=...), or an object with a method stored(path, dtype)"
        f"{equivalent(precision, 'precision')}"
    )


def stored_type(precision: Precision, path: str, dtype: DType, state: bool = False) -> DType:
    """The result of `precision.stored`; RecordError, naming `path`, if it is not a dtype of the kind of `dtype`.

    With `state` (accumulating tensors), the result of `stored_state` if it exists.

    >>> stored_type(HALF, "weight", np.dtype(np.float32))
    dtype('float16')
    """
    stored = cast("object", precision.stored(path, dtype))
    if state and isinstance(precision, PrecisionSettings):
        stored = precision.stored_state(dtype)
    if stored is dtype:
        return dtype
    # np.dtype(None) is float64, and np.dtype("i8") is the dtype that is called i64 here.
    if not isinstance(stored, (np.dtype, type)):
        raise RecordError(
            f"{path}: {precision_label(precision)}.stored gave {stored!r:.100}; "
            "expected a dtype, such as np.dtype(np.float16)"
        )
    result = canonical(stored, path)
    if kind_of(result) != kind_of(dtype):
        raise RecordError(
            f"{path}: {precision_label(precision)}.stored gave {result} for {dtype}; "
            "a record does not cast between floats, ints and bools"
        )
    return result


def precision_label(precision: Precision) -> str:
    """The name of a precision in a file; it is informative only, no reader depends on it."""
    return str(precision) if isinstance(precision, PrecisionSettings) else type(precision).__qualname__
