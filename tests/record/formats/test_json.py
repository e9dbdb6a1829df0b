"""JSON: readable by other programs, and strict about structure."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from phlox.record import JsonRecorder, Record, RecordError
from tests.record.support import AS_IS, HEADER, RECORD, tensor


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("numbers", ["base64", "decimal"])
def test_any_json_library_reads_it(numbers: Any, indent: int | None) -> None:
    text = JsonRecorder(AS_IS, numbers=numbers, indent=indent).to_bytes(RECORD).decode()
    tensor, value = json.loads(text)["entries"]
    assert value == {"path": "v", "value": {"a": [1, None]}} and ("\n" in text) == (indent is not None)
    raw = base64.b64encode(np.arange(6, dtype="<i2").tobytes()).decode()
    assert tensor["data"] == (raw if numbers == "base64" else [0, 1, 2, 3, 4, 5])
    assert json.loads(JsonRecorder(indent=indent).to_bytes(Record()))["entries"] == []


def test_json_decimal_numbers() -> None:
    record = Record({"f": np.array([0.1, np.nan, np.inf, -np.inf, -0.0], np.float16), "b": np.array([True, False])})
    text = JsonRecorder(AS_IS, numbers="decimal").to_bytes(record).decode()
    assert '"data":[0.1,"NaN","Infinity","-Infinity",-0.0]' in text and '"data":[true,false]' in text


def test_base64_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = JsonRecorder(AS_IS).to_bytes(Record({"x": np.arange(100, dtype=np.int16)}))
    monkeypatch.setattr("phlox.record.formats.json.BLOCK", 7)
    assert JsonRecorder(AS_IS).to_bytes(Record({"x": np.arange(100, dtype=np.int16)})) == whole


def jsoned(*entries: Any, **document: Any) -> bytes:
    document = {"phlox": {**HEADER, "format": "json"}, "metadata": {}, "aliases": {}, "entries": entries} | document
    return json.dumps(document).encode()


DAMAGED_JSON = {
    "duplicate": jsoned({"path": "a", "value": 1}, {"path": "a", "value": 2}),
    "base64 too short": jsoned(tensor("")),
    "base64 too long": jsoned(tensor("AAAAAAAA")),
    "huge shape": jsoned(tensor("AA==", shape=[2**40])),
    "huge shape, decimal": jsoned(tensor([1], shape=[2**40])),
    "metadata twice": jsoned(metadata={"k": "a", "j": "b"}).replace(b'"j"', b'"k"'),
    "metadata twice, escaped": jsoned(metadata={"k": "a", "j": "b"}).replace(b'"j"', b'"\\u006b"'),
    "alias twice": jsoned({"path": "a", "value": 1}, aliases={"k": "a", "j": "a"}).replace(b'"j"', b'"k"'),
    "name that climbs": jsoned({"path": "../a", "value": 1}),
    "name of dots": jsoned({"path": "..", "value": 1}),
    "name of nothing": jsoned({"path": "", "value": 1}),
    "negative shape": jsoned(tensor("", shape=[-1])),
    "shape of floats": jsoned(tensor("AA==", shape=[1.0])),
    "path no text": jsoned({"path": 1, "value": 1}),
    "id no text": jsoned(tensor("AA==", id=1)),
    "long number": jsoned({"path": "a", "value": 1}).replace(b'"value": 1', b'"value": ' + b"9" * 100_000),
    "long number as shape": jsoned(tensor("AA==", shape=[1])).replace(b"[1]", b"[" + b"9" * 100_000 + b"]"),
    "no data": jsoned({"path": "a", "dtype": "u8", "shape": [3]}),
    "unknown dtype": jsoned(tensor([1], dtype="c64")),
    "deep": jsoned({"path": "a", "value": 1}).replace(b'"value": 1', b'"value": ' + b"[" * 100_000),
    "deep data": jsoned(tensor(1)).replace(b'"data": 1', b'"data": ' + b"[" * 100_000 + b"]" * 100_000),
    "big int": jsoned({"path": "a", "value": 2**70}),
    "infinite": jsoned({"path": "a", "value": float("inf")}),
    "unknown tag": jsoned({"path": "a", "value": {"$float": 1}}),
    "lone surrogate": jsoned({"path": "a", "value": "\ud800"}),
    "bad UTF-8": jsoned({"path": "a", "value": "x"}).replace(b"x", b"\xff"),
    "empty": b"",
    "a list": b"[]",
    "truncated": jsoned()[:-1],
}


DAMAGED_DATA = {
    "base64 of other letters": jsoned(tensor("A?==")),
    "int too large": jsoned(tensor([256])),
    "int negative": jsoned(tensor([-1])),
    "float for int": jsoned(tensor([1.5])),
    "text": jsoned(tensor(["x"])),
    "two for one": jsoned(tensor([1, 2])),
    "none for one": jsoned(tensor([], shape=[1])),
    "nested": jsoned(tensor([[1]])),
    "number": jsoned(tensor(100)),
    "object": jsoned(tensor({"a": 1})),
    "float too large": jsoned(tensor([1e39], dtype="f32")),
    "false boolean": jsoned(tensor("Ag==", dtype="bool")),
    "number for boolean": jsoned(tensor([1], dtype="bool")),
}


@pytest.mark.parametrize("name", DAMAGED_JSON)
def test_damaged_json(name: str) -> None:
    with pytest.raises(RecordError, match="json bytes: not a valid json record: ."):
        JsonRecorder().from_bytes(DAMAGED_JSON[name])


@pytest.mark.parametrize("name", DAMAGED_DATA)
def test_damaged_json_data_is_found_when_read_or_before(name: str) -> None:
    with pytest.raises(RecordError, match="json bytes: .*a: "):
        JsonRecorder().from_bytes(DAMAGED_DATA[name])["a"].tensor.read()


def test_the_undamaged_ones_are_read() -> None:
    assert JsonRecorder().from_bytes(jsoned(tensor("eA==")))["a"].tensor.read().tolist() == [ord("x")]
    assert JsonRecorder().from_bytes(jsoned(tensor([120])))["a"].tensor.read().tolist() == [ord("x")]


def test_options_are_checked() -> None:
    with pytest.raises(RecordError, match="numbers='hex'"):
        JsonRecorder(numbers="hex")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="compression='xz'"):
        JsonRecorder(compression="xz")  # type: ignore[arg-type]
