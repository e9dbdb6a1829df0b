"""Precision settings: at which element type each tensor of a record is written."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from phlox.errors import RecordError, RecordWarning
from phlox.record.dtypes import DTYPES, DType, canonical, kind_of

FloatName: TypeAlias = Literal["f64", "f32", "f16", "bf16"]
IntName: TypeAlias = Literal["i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"]


class Precision(Protocol):
    """Anything with this one method is a precision that recorders accept, and `Record.with_precision` too.

    >>> class HalfButNorms:
    ...     def stored(self, path, dtype):
    ...         return dtype if "norm" in path else HALF.stored(path, dtype)
    """

    def stored(self, path: str, dtype: DType) -> DType:
        """The element type, of the kind of `dtype`, at which to write the tensor at `path` that has `dtype`."""
        ...


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """One element type for all floats and one for all ints, or None: as they are. Raises RecordError for other names.

    Floats that accumulate over the steps of a training (moments and averages of optimizers, and parameters that are
    kept at full precision, as running statistics are) are not narrowed below f32 by `float`, for a training that goes
    on from them would be ruined. `state` says by name at which type they are written.

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
                )

    def stored(self, path: str, dtype: DType) -> DType:
        """See `Precision.stored`; the path matters for what optimizers keep."""
        kind = kind_of(dtype)
        name = self.float if kind == "float" else self.int if kind == "int" else None
        chosen = dtype if name is None else DTYPES[name]
        if (chosen.itemsize <= 2 or self.state) and _OF_OPTIMIZER.search(path):
            return self.stored_state(dtype)
        return chosen

    def stored_state(self, dtype: DType) -> DType:
        """As `stored`, of what accumulates over the steps of a training."""
        if kind_of(dtype) != "float":
            return self.stored("", dtype)
        if self.state is not None:
            return DTYPES[self.state]
        chosen = self.stored("", dtype)
        if chosen.itemsize > 2:
            return chosen
        return DTYPES["f32"] if dtype.itemsize > 2 else dtype

    def __str__(self) -> str:
        state = f", state={self.state}" if self.state else ""
        return f"float={self.float or 'as is'}, int={self.int or 'as is'}{state}"


_OF_OPTIMIZER = re.compile(r"(?:^|\.)states\.[^.]+\.state(?:\.|$)")
"""The paths of what an optimizer's record holds, in whichever record it is a part of."""


DOUBLE = PrecisionSettings(float="f64")
FULL = PrecisionSettings(float="f32")
HALF = PrecisionSettings(float="f16")
BFLOAT16 = PrecisionSettings(float="bf16")


Underflow: TypeAlias = list[tuple[str, DType, int]]
"""How many values of which tensor were made zero by casts, at which element type; several threads append to it."""
_SHOWN = 5


def warn_of_underflow(found: Underflow, what: str) -> None:
    """One `RecordWarning` of all."""
    paths = list(dict.fromkeys([path for path, _, _ in found]))
    dtypes = " and ".join(dict.fromkeys([str(dtype) for _, dtype, _ in found]))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    message = underflow_message(f"{sum([count for _, _, count in found])} values", dtypes)
    warnings.warn(f"{what}: {message}, in {', '.join(paths[:_SHOWN])}{more}", RecordWarning, stacklevel=4)


def underflow_message(what: str, dtype: object) -> str:
    """What there is to say of values that do not fit since they are too small."""
    return f"{what} that are not zero became zero at {dtype}, which has none as small; BFLOAT16 and FULL keep them"


def checked_precision(precision: Precision) -> Precision:
    """`precision` itself; RecordError where it is none."""
    if callable(getattr(precision, "stored", None)) and not isinstance(precision, type):
        return precision
    raise RecordError(
        f"precision={precision!r}: expected FULL, HALF, BFLOAT16, DOUBLE, a PrecisionSettings(float=..., int=..., "
        "state=...), or an object with a method stored(path, dtype)"
    )


def stored_type(precision: Precision, path: str, dtype: DType, state: bool = False) -> DType:
    """What `precision.stored` says; RecordError naming `path` where that is no element type of the kind of `dtype`.

    With `state`, of what accumulates over steps, what `stored_state` says where there is one.

    >>> stored_type(HALF, "weight", np.dtype(np.float32))
    dtype('float16')
    """
    given = cast("object", precision.stored(path, dtype))
    if state and isinstance(precision, PrecisionSettings):
        given = precision.stored_state(dtype)
    # np.dtype would make float64 of None, and of "i8" what is i64 here.
    if not isinstance(given, (np.dtype, type)):
        raise RecordError(
            f"{path}: {precision_label(precision)}.stored gave {given!r:.100}; "
            "expected an element type, such as np.dtype(np.float16)"
        )
    result = canonical(given, path)
    if kind_of(result) != kind_of(dtype):
        raise RecordError(
            f"{path}: {precision_label(precision)}.stored gave {result} for {dtype}; "
            "a record does not cast between floats, ints and bools"
        )
    return result


def precision_label(precision: Precision) -> str:
    """How a file names the precision it was written at; it is for people, no reader depends on it."""
    return str(precision) if isinstance(precision, PrecisionSettings) else type(precision).__qualname__
