"""Precision settings: at which element type each tensor of a record is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast, get_args

import numpy as np

from phlox.errors import RecordError
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

    >>> str(PrecisionSettings(float="bf16", int="i32"))
    'float=bf16, int=i32'
    """

    float: FloatName | None = None
    int: IntName | None = None

    def __post_init__(self) -> None:
        for field, name, names in (("float", self.float, FloatName), ("int", self.int, IntName)):
            if name is not None and name not in get_args(names):
                raise RecordError(
                    f"PrecisionSettings({field}={name!r}): expected None or one of {', '.join(get_args(names))}"
                )

    def stored(self, path: str, dtype: DType) -> DType:
        """See `Precision.stored`; here the path does not matter."""
        kind = kind_of(dtype)
        name = self.float if kind == "float" else self.int if kind == "int" else None
        return dtype if name is None else DTYPES[name]

    def __str__(self) -> str:
        return f"float={self.float or 'as is'}, int={self.int or 'as is'}"


DOUBLE = PrecisionSettings(float="f64")
FULL = PrecisionSettings(float="f32")
HALF = PrecisionSettings(float="f16")
BFLOAT16 = PrecisionSettings(float="bf16")


def checked_precision(precision: Precision) -> Precision:
    """`precision` itself; RecordError where it is none."""
    if callable(getattr(precision, "stored", None)) and not isinstance(precision, type):
        return precision
    raise RecordError(
        f"precision={precision!r}: expected FULL, HALF, BFLOAT16, DOUBLE, a PrecisionSettings(float=..., int=...), "
        "or an object with a method stored(path, dtype)"
    )


def stored_type(precision: Precision, path: str, dtype: DType) -> DType:
    """What `precision.stored` says; RecordError naming `path` where that is no element type of the kind of `dtype`.

    >>> stored_type(HALF, "weight", np.dtype(np.float32))
    dtype('float16')
    """
    given = cast("object", precision.stored(path, dtype))
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
