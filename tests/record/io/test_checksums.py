"""Checksums: whatever byte of a file changes, what is read is refused or equal; and they cost no copy."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phlox.record import (
    BinaryRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    Record,
    Recorder,
    RecordError,
    SafetensorsRecorder,
    TensorEntry,
    load,
    save,
)
from phlox.record.names import fingerprint_of
from tests.record.support import AS_IS, FORMATS, assert_same_record, recorders

RECORD = Record(
    {
        "n": np.array(5, np.int64),
        "a.weight": TensorEntry(LazyTensor.from_array(np.arange(4, dtype=np.float32) / 8), "p0"),
        "a.mask": np.array([True, False]),
        "state": {"step": 3, "x": [1.5, float("nan"), None, "é"]},
        "empty": np.zeros((0, 2), np.float16),
        "a.lr": 0.5,
        "odd": np.array([np.nan, -0.0, np.inf], np.float16),
    },
    {"k": "v", "a": "b"},
    aliases={"b.weight": "a.weight"},
)
ALL: dict[str, Any] = {**dict.fromkeys(FORMATS), "positional": None}


def recorder_of(name: str, compression: Any = None) -> Recorder:
    if name == "positional":
        return BinaryRecorder(AS_IS, compression, names=False)
    return recorders(AS_IS, compression)[name]


def check_damaged(recorder: Recorder, data: bytes, expected: Record) -> None:
    """Either RecordError, when it is opened or when its tensors are read, or the same record."""
    try:
        record = recorder.from_bytes(data)
        for entry in record.tensors.values():
            entry.tensor.read()
    except RecordError as error:
        assert f"{recorder.format} bytes: " in str(error)
    else:
        assert_same_record(record, expected)
        assert record.header == expected.header or recorder.format == "safetensors"


@pytest.mark.parametrize("name", ALL)
def test_every_flip_of_every_bit(name: str) -> None:
    recorder = recorder_of(name)
    data = recorder.to_bytes(RECORD)
    expected = recorder.from_bytes(data)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            check_damaged(recorder, bytes(damaged), expected)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("name", ALL)
def test_every_flip_of_compressed_files(name: str, compression: Any) -> None:
    recorder = recorder_of(name, compression)
    data = recorder.to_bytes(RECORD)
    expected = recorder.from_bytes(data)
    for at in range(len(data)):
        for flip in (1 << at % 8, 255):
            damaged = bytearray(data)
            damaged[at] ^= flip
            check_damaged(recorder, bytes(damaged), expected)


@pytest.mark.parametrize("name", ALL)
def test_every_byte_set_to_what_formats_are_made_of(name: str) -> None:
    recorder = recorder_of(name)
    data = recorder.to_bytes(RECORD)
    expected = recorder.from_bytes(data)
    for at in range(len(data)):
        for byte in b'\x00\xff\xc0\x80 \n"[]{},:09aA':
            check_damaged(recorder, data[:at] + bytes([byte]) + data[at + 1 :], expected)


@pytest.mark.parametrize("name", ALL)
def test_every_truncation_and_every_longer_file(name: str) -> None:
    recorder = recorder_of(name)
    data = recorder.to_bytes(RECORD)
    for end in range(len(data)):
        if data[end:] != b"\n":  # the line break after the end of JSON is no loss
            with pytest.raises(RecordError):
                recorder.from_bytes(data[:end])
    for more in (b"x", bytes(4), bytes(100), data):
        with pytest.raises(RecordError):
            recorder.from_bytes(data + more)


@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary", "gguf"])
def test_a_damaged_tensor_is_told_when_it_is_first_read(name: str, tmp_path: Path) -> None:
    recorder = recorders()[name]
    record = Record({"a.weight": np.full(100, 7, np.uint8), "b": np.full(100, 9, np.uint8), "step": 3})
    path = recorder.save(record, tmp_path / "m")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x07" * 100, b"\x07" * 99 + b"\x06"))
    loaded = load(path)
    assert loaded["step"] == 3 and (loaded["b"].tensor.read() == 9).all()
    sentence = f"{path}: a.weight: its checksum does not match: the file is damaged or was changed by another program"
    for _ in range(2):
        with pytest.raises(RecordError) as caught:
            loaded["a.weight"].tensor.read()
        assert str(caught.value) == sentence + "; verify=False reads it all the same"
    for unchecked in (load(path, verify=False), type(recorder)(verify=False).load(path)):
        assert unchecked["a.weight"].tensor.read()[-1] == 6


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_values_and_metadata_are_told_at_once(name: str) -> None:
    recorder = recorders()[name]
    data = recorder.to_bytes(Record({"lr": "fast"}, {"note": "mine"}))
    for old, new, place in ((b"fast", b"last", "lr: its"), (b"mine", b"mind", "the checksum of its header, names and")):
        damaged = data.replace(old, new)
        with pytest.raises(RecordError, match=f"{recorder.format} bytes: .*{place}.*does not match.*verify=False"):
            recorder.from_bytes(damaged)
        type(recorder)(verify=False).from_bytes(damaged)
        load_from = BinaryRecorder if name == "binary" else type(recorder)
        assert load_from(verify=False).from_bytes(damaged)["lr"] == ("last" if new == b"last" else "fast")


@pytest.mark.parametrize("name", FORMATS)
def test_the_order_of_entries_is_covered(name: str) -> None:
    """Two files of the same entries in another order differ, so a changed order cannot pass."""
    recorder = recorders()[name]
    one = recorder.to_bytes(Record({"a": 1, "b": 1}))
    other = recorder.to_bytes(Record({"b": 1, "a": 1}))
    assert one != other and recorder.from_bytes(other).paths() == ["b", "a"]


def expected_sums(record: Record, header: Any) -> bytes:
    """The documented definition, written a second time with another library's primitives."""
    sums: list[int] = []
    names = {np.dtype(np.float32): "f32", np.dtype(np.int64): "i64"}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            tensor = entry.tensor
            identity = [path, entry.id, names[tensor.dtype], list(tensor.shape)]
            sums.append(zlib.crc32(msgspec.msgpack.encode(identity) + tensor.read().tobytes()))
        else:
            sums.append(zlib.crc32(msgspec.msgpack.encode([path, entry])))
    fields = [header.schema, header.format, header.precision, header.phlox, header.positional, header.fingerprint]
    sums.append(zlib.crc32(msgspec.msgpack.encode([*fields, {"a": "1", "b": "2"}, {"t": "w"}, record.paths()])))
    return b"".join(each.to_bytes(4, "big") for each in sums)


def test_where_they_are_and_what_they_cover() -> None:
    record = Record(
        {"n": np.array(5), "w": TensorEntry(LazyTensor.from_array(np.ones((2, 3), np.float32)), "id"), "lr": 0.5},
        {"b": "2", "a": "1"},
        aliases={"t": "w"},
    )
    files = {name: recorder.to_bytes(record) for name, recorder in recorders().items()}
    sums = {name: expected_sums(record, recorders()[name].from_bytes(data).header) for name, data in files.items()}
    assert files["binary"].endswith(sums["binary"])
    assert msgspec.msgpack.decode(files["msgpack"])["crc32"] == sums["msgpack"]
    assert list(msgspec.msgpack.decode(files["msgpack"]))[-1] == "crc32"
    for name in ("json", "json-decimal"):
        assert json.loads(files[name])["crc32"] == sums[name].hex() and list(json.loads(files[name]))[-1] == "crc32"
    length = int.from_bytes(files["safetensors"][:8], "little")
    info = json.loads(json.loads(files["safetensors"][8 : 8 + length])["__metadata__"]["phlox"])
    assert info["crc32"] == sums["safetensors"].hex()


@pytest.mark.parametrize("name", ALL)
def test_a_file_and_bytes_are_the_same(name: str, tmp_path: Path) -> None:
    recorder = recorder_of(name)
    assert recorder.save(RECORD, tmp_path / "m").read_bytes() == recorder.to_bytes(RECORD)


@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary", "gguf"])
def test_verified_tensors_are_views_of_the_file(name: str, tmp_path: Path) -> None:
    recorder = recorders()[name]
    record = load(recorder.save(Record({"w": np.arange(1000, dtype=np.float32)}), tmp_path / "m"))
    first, second = record["w"].tensor.read(), record["w"].tensor.read()
    assert np.shares_memory(first, second) and not first.flags.writeable and not first.flags.owndata


def test_a_tensor_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SafetensorsRecorder()
    record = recorder.from_bytes(recorder.to_bytes(Record({"w": np.ones(1000, np.float32)})))
    counted: list[int] = []
    original = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data, start=0: counted.append(len(data)) or original(data, start))
    for _ in range(3):
        record["w"].tensor.read()
        list(record.with_precision(AS_IS)["w"].tensor.blocks())
    assert sum(counted) == 4000


def test_lost_checksums() -> None:
    for name, recorder in recorders().items():
        data = recorder.to_bytes(RECORD)
        if name == "binary":
            lost = data[: -4 * (len(RECORD) + 1)]
        else:
            lost = data.replace(b"crc32", b"crc64")
        with pytest.raises(RecordError, match=r"lost its checksums|truncated|its tensors end|takes .* bytes"):
            recorder.from_bytes(lost)
    data = MessagePackRecorder().to_bytes(Record({"a": 1}))
    document = msgspec.msgpack.decode(data)
    for sums in (b"", document["crc32"][:-1], document["crc32"] + bytes(4)):
        with pytest.raises(RecordError, match=r"bytes of checksums for 1 entries"):
            MessagePackRecorder().from_bytes(msgspec.msgpack.encode({**document, "crc32": sums}))


def test_json_may_be_laid_out_anew_by_any_program() -> None:
    for numbers in ("base64", "decimal"):
        recorder = JsonRecorder(AS_IS, numbers=numbers)
        text = recorder.to_bytes(RECORD)
        again = json.dumps(json.loads(text), indent=3, sort_keys=True).replace('"crc32"', '"crc32" ').encode()
        # `recognises` wants "phlox" first; the recorder itself takes keys in any order.
        assert_same_record(recorder.from_bytes(again), recorder.from_bytes(text))


def test_compressed_safetensors_rely_on_the_compression() -> None:
    data = SafetensorsRecorder(AS_IS, "gzip").to_bytes(RECORD)
    assert_same_record(SafetensorsRecorder().from_bytes(data), RECORD)
    assert_same_record(SafetensorsRecorder().from_bytes(zlib.decompress(data, 31)), RECORD)


def test_a_converted_file_has_checksums_of_its_own(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "a.safetensors", AS_IS)
    for suffix in (".msgpack", ".phlox", ".json"):
        path = save(load(path), tmp_path / f"b{suffix}", AS_IS)
        assert_same_record(load(path), RECORD)


def test_the_fingerprint_of_a_positional_file() -> None:
    binary = BinaryRecorder(AS_IS, names=False)
    loaded = binary.from_bytes(binary.to_bytes(RECORD))
    assert loaded.positional and loaded.fingerprint == fingerprint_of(RECORD.paths())
    assert loaded.fingerprint != fingerprint_of(sorted(RECORD.paths()))
    for recorder in (*recorders().values(), binary):
        assert recorder.from_bytes(recorder.to_bytes(loaded)).fingerprint == loaded.fingerprint
        assert recorder.from_bytes(recorder.to_bytes(Record({"0": 1}, positional=True))).fingerprint is None
    assert RECORD.fingerprint is None and loaded.with_precision(AS_IS).fingerprint == loaded.fingerprint
    assert recorders()["msgpack"].from_bytes(recorders()["msgpack"].to_bytes(RECORD)).fingerprint is None


def test_fingerprints_tell_structures_apart() -> None:
    assert (
        len({fingerprint_of(paths) for paths in (["a", "b"], ["b", "a"], ["ab"], ["a.b"], [], ["a"], ["a", ""])}) == 7
    )
    assert fingerprint_of(["weight", "bias"]) == "eedb63fe565c7a7b"  # BLAKE2b of b"\x06\0\0\0weight\x04\0\0\0bias"
