"""MessagePack: readable by other programs, aligned, and strict about structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phlox.record import MessagePackRecorder, Record, RecordError
from tests.record.support import AS_IS, DTYPES, HEADER, RECORD, tensor


def test_any_messagepack_library_reads_it() -> None:
    document = msgspec.msgpack.decode(MessagePackRecorder(AS_IS).to_bytes(RECORD))
    assert document["metadata"] == {"k": "é"} and document["aliases"] == {"tied": "w"}
    tensor, value = document["entries"]
    assert value == {"path": "v", "value": {"a": [1, None]}}
    assert set(tensor.pop("pad")) <= {0}
    assert tensor == {
        "path": "w", "dtype": "i16", "shape": [2, 3], "id": "p1", "data": [np.arange(6, dtype="<i2").tobytes()]
    }  # fmt: skip


def test_messagepack_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.record.formats.message_pack.PIECE", 10)
    monkeypatch.setattr("phlox.record.entry.PORTION", 24)
    array = np.arange(21.0).reshape(3, 7)
    recorder = MessagePackRecorder()
    data = recorder.to_bytes(Record({"x": array}))
    assert [len(piece) for piece in msgspec.msgpack.decode(data)["entries"][0]["data"]] == [10] * 8 + [4]
    np.testing.assert_array_equal(recorder.from_bytes(data)["x"].tensor.read(), array)


def test_files_are_mapped_and_aligned(tmp_path: Path) -> None:
    arrays = {f"{'n' * i}{d.name}": np.ones(i, d) for i, d in enumerate(DTYPES, 1) if d.kind != "b"}
    recorder = MessagePackRecorder(AS_IS)
    record = recorder.load(recorder.save(Record(arrays), tmp_path / "m"))
    for path, array in arrays.items():
        first, second = record[path].tensor.read(), record[path].tensor.read()
        assert np.shares_memory(first, second) and first.flags.aligned and not first.flags.writeable
        np.testing.assert_array_equal(first, array)


def packed(*entries: Any, **document: Any) -> bytes:
    document = {"phlox": {**HEADER, "format": "msgpack"}, "metadata": {}, "aliases": {}, "entries": entries} | document
    return msgspec.msgpack.encode(document)


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


@pytest.mark.parametrize("name", DAMAGED_MSGPACK)
def test_damaged_messagepack(name: str) -> None:
    with pytest.raises(RecordError, match="msgpack bytes: not a valid msgpack record: ."):
        MessagePackRecorder().from_bytes(DAMAGED_MSGPACK[name])


def test_the_undamaged_ones_are_read() -> None:
    assert MessagePackRecorder().from_bytes(packed(tensor([b"x"])))["a"].tensor.read().tolist() == [ord("x")]
