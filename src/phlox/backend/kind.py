"""The three kinds of tensor. Kinds never mix in one operation; a user converts with `.float()`, `.int()`, `.bool()`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from phlox.errors import KindError


class Kind:
    """The base of the kinds `Float`, `Int` and `Bool`; a kind is the class itself and is never instantiated."""

    name: ClassVar[str]


class Float(Kind):
    """The kind of real numbers, the only one with derivatives.

    >>> import phlox as px
    >>> px.tensor([0.5]).kind is Float
    True
    """

    name = "float"


class Int(Kind):
    """The kind of integers, such as indices, counts and tokens.

    >>> import phlox as px
    >>> px.tensor([1, 2]).kind is Int
    True
    """

    name = "int"


class Bool(Kind):
    """The kind of truth values, such as masks.

    >>> import phlox as px
    >>> (px.tensor([1, 2]) > 1).kind is Bool
    True
    """

    name = "bool"


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Float, Int, Bool)}


def kind_of_dtype(dtype: npt.DTypeLike) -> type[Kind]:
    """The kind that holds elements of a NumPy dtype (ml_dtypes' floats included); `KindError` if none does."""
    dtype = np.dtype(dtype)
    match dtype.kind:
        case "b":
            return Bool
        case "i" | "u":
            return Int
        case "f":
            return Float
        case _ if "float" in dtype.name:  # ml_dtypes' floats are of NumPy kind "V"
            return Float
        case _:
            raise KindError(f"no tensor kind holds elements of type {dtype.name}; give floats, ints or booleans")
