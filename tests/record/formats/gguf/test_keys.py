"""Keys of GGUF with typed values: to metadata and back, without loss."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phlox.record import RecordError
from phlox.record.formats.gguf.keys import Cursor, KeyValue, as_metadata, encoded_value, from_metadata

DTYPES = [np.dtype(name) for name in ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "?"]]
numbers = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, st.integers(0, 4)))
values = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3),
    numbers,
    numbers.filter(len).map(lambda array: array[0]),
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), values, max_size=4))
def test_any_values(keys: dict[str, KeyValue]) -> None:
    texts = as_metadata(keys)
    assert repr(from_metadata(texts)) == repr(keys) and as_metadata(from_metadata(texts)) == texts
    for key, value in keys.items():
        data = encoded_value(key, value)
        cursor = Cursor(memoryview(data))
        again = cursor.value()
        assert repr(again) == repr(value) and cursor.at == len(data) and encoded_value(key, again) == data


def test_plain_values_have_the_types_that_llama_cpp_expects() -> None:
    writer = gguf.GGUFWriter(None, "llama")
    kinds = gguf.GGUFValueType
    for value, kind in (
        (7, kinds.UINT32), (-7, kinds.INT32), (2**40, kinds.INT64), (0.5, kinds.FLOAT32), (True, kinds.BOOL),
        ("é", kinds.STRING), ([1, 2], kinds.ARRAY), ([0.5], kinds.ARRAY), (["a", "b"], kinds.ARRAY),
    ):  # fmt: skip
        assert encoded_value("k", value) == writer._pack_val(value, kind, add_vtype=True)
    wrong: list[Any] = [None, {}, [[1]], 1j, 2**70, ["a", 1], [None]]
    for value in wrong:
        with pytest.raises(RecordError, match="the key k: GGUF has no type for"):
            encoded_value("k", value)


@pytest.mark.parametrize(("texts", "why"), [
    ({"gguf.types": "x"}, "gguf.types: 'x' is not JSON"),
    ({"gguf.types": "[]"}, "reserved for the types"),
    ({"gguf.types": '{"a": "u8"}', "a": "256"}, "the metadata a: '256' is not of the type 'u8'"),
    ({"gguf.types": '{"a": "u8"}', "a": "[1]"}, "not of the type 'u8'"),
    ({"gguf.types": '{"a": "[u8]"}', "a": "1"}, "not of the type"),
    ({"gguf.types": '{"a": "[u8]"}', "a": "[[1]]"}, "not of the type"),
    ({"gguf.types": '{"a": "[str]"}', "a": "[1]"}, "not of the type"),
    ({"gguf.types": '{"a": "f8"}', "a": "1"}, "not of the type 'f8'"),
    ({"gguf.types": '{"a": 1}', "a": "1"}, "not of the type '1'"),
    ({"gguf.types": '{"a": "f32"}', "a": "["}, "a: '\\[' is not JSON"),
    ({"gguf.types": '{"a": "f32"}', "a": "[" * 100_000}, "is not JSON"),
])  # fmt: skip
def test_metadata_that_does_not_have_its_type(texts: dict[str, str], why: str) -> None:
    with pytest.raises(RecordError, match=why):
        from_metadata(texts)
