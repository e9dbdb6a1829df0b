"""What the tests of records share: arrays of every element type, records of them, and exact comparison."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phlox.record import (
    BinaryRecorder,
    GgufRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    Record,
    Recorder,
    SafetensorsRecorder,
    TensorEntry,
)
from phlox.record import PrecisionSettings as Settings

FLOATS = [np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)]
INTS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]
DTYPES = [*FLOATS, *INTS, np.dtype(bool)]
AS_IS = Settings()


def recorders(precision: Any = AS_IS, compression: Any = None) -> dict[str, Recorder]:
    """Every format in every form that keeps names."""
    return {
        "safetensors": SafetensorsRecorder(precision, compression),
        "msgpack": MessagePackRecorder(precision, compression),
        "binary": BinaryRecorder(precision, compression),
        "gguf": GgufRecorder(precision, compression),
        "json": JsonRecorder(precision, compression),
        "json-decimal": JsonRecorder(precision, compression, numbers="decimal", indent=2),
    }


FORMATS = list(recorders())


def of_bits(bits: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Any bit patterns as elements: NaNs, infinities, subnormals and all."""
    return np.asarray(bits % 2 == 1 if dtype.kind == "b" else bits.view(dtype))


@st.composite
def arrays(draw: st.DrawFn, dtypes: list[np.dtype[Any]] = DTYPES) -> np.ndarray:
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    bits = draw(hnp.arrays(np.dtype(f"u{dtype.itemsize}"), shape))
    return of_bits(bits, dtype)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="."), min_size=1, max_size=6)
paths = st.lists(names, min_size=1, max_size=3).map(".".join)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
keys = st.one_of(st.sampled_from(["$float", "$dict", "nan"]), names)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=3), max_leaves=6)


@st.composite
def records(draw: st.DrawFn) -> Record:
    from phlox.record import LazyTensor, TensorEntry

    entries: dict[str, Any] = draw(st.dictionaries(paths, arrays() | values, max_size=5))
    for path, entry in entries.items():
        if isinstance(entry, np.ndarray) and draw(st.booleans()):
            entries[path] = TensorEntry(LazyTensor.from_array(entry), draw(names))
    metadata = draw(st.dictionaries(names.filter(lambda n: n != "phlox"), names, max_size=2))
    aliases: dict[str, str] = {}
    if entries:
        for alias in draw(st.lists(paths.filter(lambda p: p not in entries), max_size=2, unique=True)):
            aliases[alias] = draw(st.sampled_from(list(entries)))
    return Record(entries, metadata, aliases=aliases)


def assert_same_elements(actual: np.ndarray, expected: np.ndarray, nan_bits: bool = True) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert actual.flags.c_contiguous
    if not nan_bits and expected.dtype.kind not in "iub":
        same = actual.astype(np.float64)
        np.testing.assert_array_equal(same, expected.astype(np.float64))
        np.testing.assert_array_equal(np.signbit(same)[same == 0], np.signbit(expected.astype(np.float64))[same == 0])
    else:
        assert actual.tobytes() == expected.tobytes()


def assert_same_record(actual: Record, expected: Record, nan_bits: bool = True) -> None:
    assert actual.paths() == expected.paths()
    assert dict(actual.metadata) == dict(expected.metadata)
    assert dict(actual.aliases) == dict(expected.aliases)
    assert repr(dict(actual.values)) == repr(dict(expected.values))  # NaN equals itself, 1 is not 1.0
    for path, entry in expected.tensors.items():
        assert actual.tensors[path].id == entry.id
        assert_same_elements(actual.tensors[path].tensor.read(), entry.tensor.read(), nan_bits)


HEADER = {"schema": 1, "precision": "", "phlox": "1"}
"""Of a document, but for its format."""
RECORD = Record(
    {"w": TensorEntry(LazyTensor.from_array(np.arange(6, dtype=np.int16).reshape(2, 3)), "p1"), "v": {"a": [1, None]}},
    {"k": "é"},
    aliases={"tied": "w"},
)
"""A tensor, a value and an alias."""


def tensor(data: Any, **more: Any) -> dict[str, Any]:
    return {"path": "a", "dtype": "u8", "shape": [1], "data": data, **more}
