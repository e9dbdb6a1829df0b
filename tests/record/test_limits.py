"""Hostile files: a few bytes that would make objects without end are refused before they are made."""

from __future__ import annotations

import difflib
import gzip
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from phlox.record import BinaryRecorder, JsonRecorder, MessagePackRecorder, Record, RecordError, SafetensorsRecorder
from phlox.record import limits as limits_module
from phlox.record.io.compression import decompressed
from phlox.record.limits import check_json, check_message_pack
from phlox.record.names import nearest
from tests.record.support import FORMATS, recorders

HEADER = {"schema": 1, "precision": "", "phlox": "1"}


def message_pack(value: bytes) -> bytes:
    data = MessagePackRecorder().to_bytes(Record({"a": 1}))
    return data.replace(b"\xa5value\x01", b"\xa5value" + value)


def json_of(value: bytes) -> bytes:
    return JsonRecorder().to_bytes(Record({"a": 1})).replace(b'"value":1', b'"value":' + value)


def safetensors_of(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def binary_of(*, codes: bytes = b"", shapes: bytes = b"\x90", values: bytes = b"\x90", names: bytes = b"") -> bytes:
    pack = msgspec.msgpack.encode
    text = b"\x9a" + b"".join(map(pack, (1, "1", "", {}, {}, codes))) + shapes + values + pack(names) + pack(None)
    return b"\x89PHX" + len(text).to_bytes(4, "little") + text + bytes(-len(text) % 8)


N = 800_000
COUNT = N.to_bytes(4, "big")
HOSTILE: dict[str, Callable[[], Any]] = {
    "msgpack, lists": lambda: MessagePackRecorder().from_bytes(message_pack(b"\xdd" + COUNT + b"\x90" * N)),
    "msgpack, dicts": lambda: MessagePackRecorder().from_bytes(message_pack(b"\xdd" + COUNT + b"\x80" * N)),
    "msgpack, entries": lambda: MessagePackRecorder().from_bytes(
        b"\x84\xa5phlox" + msgspec.msgpack.encode({**HEADER, "format": "msgpack"}) + b"\xa8metadata\x80\xa7aliases\x80"
        b"\xa7entries\xdd" + N.to_bytes(4, "big") + b"\x82\xa4path\xa0\xa5value\x01" * N
    ),
    "msgpack, many values": lambda: MessagePackRecorder().from_bytes(
        b"\x84\xa5phlox" + msgspec.msgpack.encode({**HEADER, "format": "msgpack"}) + b"\xa8metadata\x80\xa7aliases\x80"
        b"\xa7entries\x98" + (b"\x82\xa4path\xa0\xa5value\xdd" + (N // 8).to_bytes(4, "big") + b"\x90" * (N // 8)) * 8
    ),
    "json, lists": lambda: JsonRecorder().from_bytes(json_of(b"[" + b"[]," * N + b"1]")),
    "json, a gzip of it": lambda: JsonRecorder().from_bytes(gzip.compress(json_of(b"[" + b"[]," * N + b"1]"), 1)),
    "json, metadata": lambda: JsonRecorder().from_bytes(
        JsonRecorder().to_bytes(Record()).replace(b'"metadata":{}', b'"metadata":{' + b'"":"",' * (N // 4) + b'"":""}')
        + b" "
    ),
    "safetensors, lists": lambda: SafetensorsRecorder().from_bytes(safetensors_of(b'{"a":[' + b"[]," * N + b"1]}")),
    "safetensors, values": lambda: SafetensorsRecorder().from_bytes(
        safetensors_of(json.dumps({"__metadata__": {"phlox": '{"values":{"a":[' + "[]," * N + "1]}}"}}).encode())
    ),
    "binary, shapes": lambda: BinaryRecorder().from_bytes(binary_of(shapes=b"\xdd" + COUNT + b"\x90" * N)),
    "binary, values": lambda: BinaryRecorder().from_bytes(
        binary_of(codes=b"\0", values=b"\x91\xdd" + COUNT + b"\x90" * N, names=b"\0\1a")
    ),
    "binary, entries": lambda: BinaryRecorder().from_bytes(
        binary_of(codes=bytes(10**6), values=b"\xdd" + (10**6).to_bytes(4, "big") + b"\xc0" * 10**6)
    ),
    "binary, names of one long prefix": lambda: BinaryRecorder().from_bytes(
        binary_of(
            codes=bytes(10**5 + 1),
            values=b"\xdd" + (10**5 + 1).to_bytes(4, "big") + b"\xc0" * (10**5 + 1),
            names=b"\0\xff\1" + b"x" * 255 + b"\xff\0" * 10**5,
        )
    ),
}


DEARER = {
    "msgpack, dicts",
    "msgpack, many values",
    "binary, values",
    "binary, entries",
    "binary, names of one long prefix",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in DEARER else []) for name in HOSTILE]
)
def test_small_files_make_no_large_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_ITEMS", N // 2)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError):
            HOSTILE[name]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80_000_000, peak


@pytest.mark.parametrize("name", FORMATS)
def test_what_can_be_written_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorders()[name]
    ones: Any = [1] * 100
    for limit, record in (
        ("MAX_TEXT", Record({f"a{i}": "x" * 100 for i in range(30)})),
        ("MAX_ITEMS", Record({f"a{i}": ones for i in range(30)})),
    ):
        data = recorder.to_bytes(record)
        monkeypatch.setattr(limits_module, limit, 2000)
        with pytest.raises(RecordError, match="its names and values .* as tensors"):
            recorder.to_bytes(record)
        with pytest.raises(RecordError, match="its names and values|it claims a header"):
            recorder.from_bytes(data)
        monkeypatch.undo()
    record = Record({f"a{i}": i for i in range(30)})
    data = recorder.to_bytes(record)
    monkeypatch.setattr(limits_module, "MAX_ENTRIES", 29)
    with pytest.raises(RecordError, match="it has 30 entries; the most that a file holds is 29"):
        recorder.to_bytes(record)
    with pytest.raises(RecordError, match="it has 30 entries"):
        recorder.from_bytes(data)


def count_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count_of(item) + 1 for item in value.values())
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1


def test_items_are_counted_right(monkeypatch: pytest.MonkeyPatch) -> None:
    value = [{"a": [1, -1, 200, -200, 2**20, -(2**20), 2**40, -(2**40), 2**63], "b": 1.5, "c": "x" * 300}, "é" * 40]
    value += [None, True, "y" * 70_000, b"z" * 300, list(range(20)), {str(i): i for i in range(20)}, [], {}, ""]
    packed = msgspec.msgpack.encode(value)
    for total, fits in ((count_of(value), True), (count_of(value) - 1, False)):
        monkeypatch.setattr(limits_module, "MAX_ITEMS", total)
        if fits:
            check_message_pack(packed)
        else:
            with pytest.raises(RecordError):
                check_message_pack(packed)
    text = json.dumps({'[,{"\\': [1, "a,b,[", {"x": [], "y": "\\"}], "z": 2}).encode()
    for total, fits in ((8, True), (7, False)):  # 3 lists or dicts within the first, itself, and 4 commas
        monkeypatch.setattr(limits_module, "MAX_ITEMS", total)
        if fits:
            check_json(text)
        else:
            with pytest.raises(RecordError):
                check_json(text)


def test_json_without_an_end_is_looked_at_once() -> None:
    for text in (b'"' + b'\\"' * 3_000_000, b'"\\' * 3_000_000, b'"' * 5_000_001, b'"' + b"\\" * 5_000_001):
        check_json(text)


@pytest.mark.parametrize("compression", ["gzip", pytest.param("zstd", marks=pytest.mark.full)])
def test_many_members_of_nothing(compression: str) -> None:
    record = Record({"a": np.ones(3)})
    recorder = MessagePackRecorder(compression=compression)  # type: ignore[arg-type]
    empty = gzip.compress(b"") if compression == "gzip" else recorder.to_bytes(Record())[:4] + b"\x20\x00\x01\x00\x00"
    with pytest.raises(RecordError, match="it is not a compressed record"):
        recorder.from_bytes(empty * 200_000)
    data = recorder.to_bytes(record)
    assert recorder.from_bytes(empty * 100 + data)["a"].tensor.shape == (3,)


def test_members_in_a_row_are_one_bomb() -> None:
    member = gzip.compress(bytes(1_000_000))
    with pytest.raises(RecordError, match="unpack to more than 5000000, as those of a decompression bomb do"):
        SafetensorsRecorder(max_bytes=5_000_000).from_bytes(member * 6)
    with pytest.raises(RecordError, match="not a valid safetensors record"):
        SafetensorsRecorder(max_bytes=6_000_000).from_bytes(member * 6)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_unpacking_costs_what_it_gives(compression: Any) -> None:
    plain = np.random.default_rng(0).integers(0, 256, 20_000_000, np.uint8)
    data = BinaryRecorder(compression=compression).to_bytes(Record({"a": plain}))
    lying = data[:-4] + (2**31).to_bytes(4, "little") if compression == "gzip" else data
    tracemalloc.start()
    try:
        size = len(decompressed(memoryview(data)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > plain.size and peak < 1.25 * size + 3_000_000
    if lying is not data:
        with pytest.raises(RecordError, match="damaged compressed data"):
            BinaryRecorder().from_bytes(lying)


def test_many_members_with_content() -> None:
    data = BinaryRecorder().to_bytes(Record({"a": np.arange(1_000_000)}))
    members = b"".join(gzip.compress(data[at : at + 300_000], 1) for at in range(0, len(data), 300_000))
    np.testing.assert_array_equal(BinaryRecorder().from_bytes(members)["a"].tensor.read(), np.arange(1_000_000))


def test_near_names_are_looked_for_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    original = difflib.SequenceMatcher.ratio
    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", lambda self: tried.append(1) or original(self))
    # Each alone takes milliseconds, and all pass the quick tests.
    assert nearest("ab" * 99 + "c", ["ba" * 99 + str(i) for i in range(5000)]) == "ba" * 99 + "0"
    assert len(tried) <= 30
    assert nearest("encoder.nrom.weight", ["decoder.norm.weight", "encoder.norm.weight", "encoder.norm.bias"]) == (
        "encoder.norm.weight"
    )
    assert nearest("x" * 10_000, ["x" * 10_000]) is None and nearest("abc", ["xyz"]) is None
