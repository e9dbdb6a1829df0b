"""The kinds of tensor, and which of them holds elements of a NumPy dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from phlox.backend.kind import KINDS, Bool, Float, Int, Kind, kind_of_dtype
from phlox.errors import KindError

HELD: dict[type[Kind], list[Any]] = {
    Float: ["f2", "f4", "f8", ">f4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
    Int: ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", int],
    Bool: ["?", bool],
}


@pytest.mark.parametrize("kind, dtype", [(kind, dtype) for kind, dtypes in HELD.items() for dtype in dtypes])
def test_every_dtype_that_can_be_held_has_a_kind(kind: type[Kind], dtype: Any) -> None:
    assert kind_of_dtype(dtype) is kind
    assert kind_of_dtype(np.zeros(3, dtype).dtype) is kind


@pytest.mark.parametrize("dtype", ["c8", "c16", "U3", "S3", "O", "M8[s]", "m8[s]", [("a", "f4")]])
def test_every_other_is_refused_by_name(dtype: Any) -> None:
    with pytest.raises(KindError, match="no tensor kind holds elements of type .*; give floats, ints or booleans"):
        kind_of_dtype(dtype)


def test_kinds_are_found_by_their_names() -> None:
    assert {name: kind.name for name, kind in KINDS.items()} == {"float": "float", "int": "int", "bool": "bool"}
