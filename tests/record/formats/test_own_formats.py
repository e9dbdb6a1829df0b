"""MessagePack, binary and JSON: readable by other programs, aligned, and strict about structure."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phlox.record import BinaryRecorder, JsonRecorder, LazyTensor, MessagePackRecorder, Record, RecordError, TensorEntry
from tests.record.support import AS_IS, DTYPES

HEADER = {"schema": 1, "precision": "", "phlox": "1"}
RECORD = Record(
    {"w": TensorEntry(LazyTensor.from_array(np.arange(6, dtype=np.int16).reshape(2, 3)), "p1"), "v": {"a": [1, None]}},
    {"k": "é"},
    aliases={"tied": "w"},
)


def test_any_messagepack_library_reads_it() -> None:
    document = msgspec.msgpack.decode(MessagePackRecorder(AS_IS).to_bytes(RECORD))
    assert document["metadata"] == {"k": "é"} and document["aliases"] == {"tied": "w"}
    tensor, value = document["entries"]
    assert value == {"path": "v", "value": {"a": [1, None]}}
    assert set(tensor.pop("pad")) <= {0}
    assert tensor == {
        "path": "w", "dtype": "i16", "shape": [2, 3], "id": "p1", "data": [np.arange(6, dtype="<i2").tobytes()]
    }  # fmt: skip


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


def test_messagepack_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.record.formats.message_pack.PIECE", 10)
    monkeypatch.setattr("phlox.record.entry.PORTION", 24)
    array = np.arange(21.0).reshape(3, 7)
    recorder = MessagePackRecorder()
    data = recorder.to_bytes(Record({"x": array}))
    assert [len(piece) for piece in msgspec.msgpack.decode(data)["entries"][0]["data"]] == [10] * 8 + [4]
    np.testing.assert_array_equal(recorder.from_bytes(data)["x"].tensor.read(), array)


@pytest.mark.parametrize("recorder", [MessagePackRecorder(AS_IS), BinaryRecorder(AS_IS)])
def test_files_are_mapped_and_aligned(recorder: Any, tmp_path: Path) -> None:
    arrays = {f"{'n' * i}{d.name}": np.ones(i, d) for i, d in enumerate(DTYPES, 1) if d.kind != "b"}
    record = recorder.load(recorder.save(Record(arrays), tmp_path / "m"))
    for path, array in arrays.items():
        first, second = record[path].tensor.read(), record[path].tensor.read()
        assert np.shares_memory(first, second) and first.flags.aligned and not first.flags.writeable
        np.testing.assert_array_equal(first, array)


def packed(*entries: Any, **document: Any) -> bytes:
    document = {"phlox": {**HEADER, "format": "msgpack"}, "metadata": {}, "aliases": {}, "entries": entries} | document
    return msgspec.msgpack.encode(document)


def jsoned(*entries: Any, **document: Any) -> bytes:
    document = {"phlox": {**HEADER, "format": "json"}, "metadata": {}, "aliases": {}, "entries": entries} | document
    return json.dumps(document).encode()


def tensor(data: Any, **more: Any) -> dict[str, Any]:
    return {"path": "a", "dtype": "u8", "shape": [1], "data": data, **more}


DAMAGED_MSGPACK = {
    "duplicate": packed({"path": "a", "value": 1}, {"path": "a", "value": 2}),
    "too few bytes": packed(tensor([])),
    "too many bytes": packed(tensor([b"xy"])),
    "huge shape": packed(tensor([b"x"], shape=[2**40])),
    "overflow": packed(tensor([b"x"], shape=[2**62, 2**62, 0])),
    "negative shape": packed(tensor([b"x"], shape=[-1])),
    "unknown dtype": packed(tensor([b"x"], dtype="c64")),
    "no dtype": packed({"path": "a"}),
    "no path": packed({"value": 1}),
    "bad path": packed({"path": "a..b", "value": 1}),
    "bytes as value": packed({"path": "a", "value": b"x"}),
    "extension": packed({"path": "a", "value": msgspec.msgpack.Ext(5, b"x")}),
    "key no text": packed({"path": "a", "value": {1: 2}}),
    "deep": packed({"path": "a", "value": 1}).replace(b"\xa5value\x01", b"\xa5value" + b"\x91" * 100_000 + b"\x01"),
    "claims 2**32 entries": packed()[:-1] + b"\xdd\xff\xff\xff\xff",
    "alias of nothing": packed(aliases={"b": "c"}),
    "alias of itself": packed({"path": "a", "value": 1}, aliases={"a": "a"}),
    "metadata twice": packed(metadata={"k": "a", "j": "b"}).replace(b"\xa1j", b"\xa1k"),
    "alias twice": packed({"path": "a", "value": 1}, aliases={"k": "a", "j": "a"}).replace(b"\xa1j", b"\xa1k"),
    "name that climbs": packed({"path": "../a", "value": 1}),
    "name of dots": packed({"path": "..", "value": 1}),
    "name of nothing": packed({"path": "", "value": 1}),
    "alias that climbs": packed({"path": "a", "value": 1}, aliases={"../b": "a"}),
    "path no text": packed({"path": 1, "value": 1}),
    "id no text": packed(tensor([b"x"], id=1)),
    "entries no list": packed(entries={"a": 1}),
    "data no list": packed(tensor(b"x")),
    "shape no list": packed(tensor([b"x"], shape=1)),
    "shape of floats": packed(tensor([b"x"], shape=[1.0])),
    "shape of 65 axes": packed(tensor([b"x"], shape=[1] * 65)),
    "metadata no text": packed(metadata={"a": 1}),
    "another format": packed(phlox={**HEADER, "format": "json"}),
    "schema 0": packed(phlox={**HEADER, "format": "msgpack", "schema": 0}),
    "schema no number": packed(phlox={**HEADER, "format": "msgpack", "schema": "1"}),
    "positional with names": packed(
        {"path": "a", "value": 1}, phlox={**HEADER, "format": "msgpack", "positional": True}
    ),
    "trailing bytes": packed() + b"\0",
    "not a map": b"\x01",
    "empty": b"",
}
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


@pytest.mark.parametrize("name", DAMAGED_MSGPACK)
def test_damaged_messagepack(name: str) -> None:
    with pytest.raises(RecordError, match="msgpack bytes: not a valid msgpack record: ."):
        MessagePackRecorder().from_bytes(DAMAGED_MSGPACK[name])


@pytest.mark.parametrize("name", DAMAGED_JSON)
def test_damaged_json(name: str) -> None:
    with pytest.raises(RecordError, match="json bytes: not a valid json record: ."):
        JsonRecorder().from_bytes(DAMAGED_JSON[name])


@pytest.mark.parametrize("name", DAMAGED_DATA)
def test_damaged_json_data_is_found_when_read_or_before(name: str) -> None:
    with pytest.raises(RecordError, match="json bytes: .*a: "):
        JsonRecorder().from_bytes(DAMAGED_DATA[name])["a"].tensor.read()


def binary(data: bytes = b"", **fields: Any) -> bytes:
    layout: dict[str, Any] = {
        "schema": 1, "phlox": "1", "precision": "", "metadata": {}, "aliases": {}, "codes": bytes([12]),
        "shapes": [[1]], "values": [], "names": b"\0\1a", "ids": None,
    } | fields  # fmt: skip
    text = msgspec.msgpack.encode(list(layout.values()))
    return b"\x89PHX" + len(text).to_bytes(4, "little") + text + bytes(-len(text) % 8) + data


DAMAGED_BINARY = {
    "empty": b"",
    "magic only": b"\x89PHX",
    "another magic": b"\x89PNG" + bytes(20),
    "header beyond the file": b"\x89PHX\xff\xff\xff\xff" + bytes(20),
    "no data": binary(),
    "trailing data": binary(b"xy"),
    "unknown code": binary(b"x", codes=b"\xff"),
    "no such code": binary(b"x", codes=b"\x20"),
    "shapes missing": binary(b"x", shapes=[]),
    "values missing": binary(codes=b"\0", shapes=[]),
    "values too many": binary(b"x", values=[1]),
    "ids too many": binary(b"x", ids=["a", "b"]),
    "huge shape": binary(b"x", shapes=[[2**40]]),
    "overflow": binary(b"x", shapes=[[2**63 - 1, 2**63 - 1, 0]]),
    "negative shape": binary(b"x", shapes=[[-1]]),
    "name that climbs": binary(b"x", names=b"\0\4../a"),
    "name of dots": binary(b"x", names=b"\0\2.."),
    "name of nothing": binary(b"x", names=b"\0\0"),
    "fingerprint no bytes": binary(b"x", ids=["a"]).replace(b"\x9a", b"\x9b", 1),
    "shape of floats": binary(b"x", shapes=[[1.0]]),
    "same name twice": binary(b"xy", codes=bytes([12, 12]), shapes=[[1], [1]], names=b"\0\1a\1\0"),
    "names too few": binary(b"x", names=b""),
    "names too many": binary(b"x", names=b"\0\1a\0\1b"),
    "name truncated": binary(b"x", names=b"\0\2a"),
    "name shares too much": binary(b"x", names=b"\1\1a"),
    "length without end": binary(b"x", names=b"\0" + b"\xff" * 20),
    "name of bad UTF-8": binary(b"x", names=b"\0\1\xff"),
    "bytes as value": binary(codes=b"\0", shapes=[], values=[b"x"]),
    "newer schema": binary(b"x", schema=3),
    "not a layout": b"\x89PHX\x01\0\0\0\xc0" + bytes(7),
    "padding not zero": b"\x89PHX\x01\0\0\0\x90" + b"x" * 7,
    "fields missing": b"\x89PHX\x01\0\0\0\x90" + bytes(7),
}


@pytest.mark.parametrize("name", DAMAGED_BINARY)
def test_damaged_binary(name: str) -> None:
    with pytest.raises(RecordError, match="binary bytes: not a valid binary record: ."):
        BinaryRecorder().from_bytes(DAMAGED_BINARY[name])


def test_the_undamaged_ones_are_read() -> None:
    assert BinaryRecorder().from_bytes(binary(b"x"))["a"].tensor.read().tolist() == [ord("x")]
    assert MessagePackRecorder().from_bytes(packed(tensor([b"x"])))["a"].tensor.read().tolist() == [ord("x")]
    assert JsonRecorder().from_bytes(jsoned(tensor("eA==")))["a"].tensor.read().tolist() == [ord("x")]
    assert JsonRecorder().from_bytes(jsoned(tensor([120])))["a"].tensor.read().tolist() == [ord("x")]


def test_names_of_any_length_in_binary() -> None:
    paths = ["x" * length + tail for length in (1, 127, 128, 255, 256, 300, 20000) for tail in ("", "é", "ê", ".a")]
    record = Record(dict.fromkeys(paths, 1))
    assert BinaryRecorder().from_bytes(BinaryRecorder().to_bytes(record)).paths() == paths


def test_options_are_checked() -> None:
    with pytest.raises(RecordError, match="numbers='hex'"):
        JsonRecorder(numbers="hex")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="compression='xz'"):
        JsonRecorder(compression="xz")  # type: ignore[arg-type]
