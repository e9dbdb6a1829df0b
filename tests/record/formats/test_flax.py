"""Flax's MessagePack, made by hand here as Flax makes it (`flax/serialization.py`): maps, and extension types."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from phlox.record import FlaxReader, RecordError, load
from tests.record.support import DTYPES, assert_same_elements

pack = msgspec.msgpack.encode


def ext(array: Any, code: int = 1) -> msgspec.msgpack.Ext:
    array = np.asarray(array)
    return msgspec.msgpack.Ext(code, pack([list(array.shape), array.dtype.name, array.tobytes()]))


def chunked(array: np.ndarray, size: int) -> dict[str, Any]:
    flat = array.reshape(-1)
    return {
        "__msgpack_chunked_array__": True,
        "shape": {str(i): n for i, n in enumerate(array.shape)},
        "chunks": {str(i): ext(flat[at : at + size]) for i, at in enumerate(range(0, flat.size, size))},
    }


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(ml_dtypes.float8_e4m3fn)], ids=str)
def test_arrays_of_every_type(dtype: np.dtype[Any]) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    data = pack({"params": {"Dense_0": {"kernel": ext(array), "scalar": ext(array[0, 1])}}})
    record = FlaxReader().from_bytes(data)
    assert record.paths() == ["params.Dense_0.kernel", "params.Dense_0.scalar"]
    assert_same_elements(record["params.Dense_0.kernel"].tensor.read(), array)
    assert_same_elements(record["params.Dense_0.scalar"].tensor.read(), np.asarray(array[0, 1]))


def test_a_train_state(tmp_path: Path) -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    state = {
        "step": 3, "lr": 0.5, "name": "x", "done": None, "flag": True, "empty": {}, "sizes": [1, [2]],
        "opt_state": {"0": {"mu": ext(array), "count": ext(np.int32(7))}, "1": {}}, "big": chunked(array, 5),
        "half": ext(np.float16(0.5), 3),
    }  # fmt: skip
    (tmp_path / "flax_model.msgpack").write_bytes(pack(state))
    record = load(tmp_path / "flax_model")
    assert [record[path] for path in ("step", "lr", "name", "done", "flag")] == [3, 0.5, "x", None, True]
    assert record["empty"] == {} and record["sizes"] == [1, [2]] and record["half"] == 0.5
    assert_same_elements(record["big"].tensor.read(), array)
    assert record["opt_state.0.mu"].tensor.read().tolist() == array.tolist()
    assert record["opt_state.0.count"].tensor.shape == () and not record.unreadable
    alone = FlaxReader().from_bytes(pack(ext(array)))
    assert FlaxReader.recognises(pack(ext(array))) and alone.paths() == ["data"]


def test_what_cannot_be_read_is_listed() -> None:
    state = {
        "w": ext(np.ones(2)), "c": msgspec.msgpack.Ext(2, pack([1.0, 2.0])), "z": ext(np.ones(2, complex)),
        "x": msgspec.msgpack.Ext(9, b"?"), "a..b": 1, "part": chunked(np.ones(4, complex), 2),
    }  # fmt: skip
    record = FlaxReader().from_bytes(pack(state))
    assert record.paths() == ["w"] and set(record.unreadable) == {"c", "z", "x", "a..b", "part"}
    with pytest.raises(RecordError, match="z: an array of complex128, which a record cannot hold"):
        record["z"]


def test_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    array = np.arange(100_000, dtype=np.float32)
    (tmp_path / "m.msgpack").write_bytes(pack({"pad": b"\0" * 3, "w": ext(array)}).replace(b"\0\0\0", b"\0\0\0"))
    tracemalloc.start()
    try:
        record = load(tmp_path / "m.msgpack")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert_same_elements(record["w"].tensor.read(), array)


def deep(levels: int) -> bytes:
    return b"\x81\xa1a" * levels + b"\xc0"


BAD = {
    "nothing": b"",
    "truncated": pack({"w": ext(np.ones(3))})[:-1],
    "trailing": pack({"w": 1}) + b"x",
    "twice": b"\x82\xa1a\x01\xa1a\x02",
    "shape": pack({"w": msgspec.msgpack.Ext(1, pack([[3], "float32", b"1234"]))}),
    "negative": pack({"w": msgspec.msgpack.Ext(1, pack([[-1], "float32", b""]))}),
    "huge": pack({"w": msgspec.msgpack.Ext(1, pack([[2**62, 8], "float32", b""]))}),
    "no array": pack({"w": msgspec.msgpack.Ext(1, pack("x"))}),
    "boolean": pack({"__msgpack_chunked_array__": True}),
    "pieces": pack({"w": {**chunked(np.ones(6), 2), "shape": {"0": 5}}}),
    "pieces of types": pack(
        {"w": {**chunked(np.ones(2), 2), "chunks": {"0": ext(np.ones(1)), "1": ext(np.ones(1, "f4"))}}}
    ),
    "deep": deep(100_000),
    "deep lists": b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    "many entries": b"\xdf\x7f\xff\xff\xff\xa1a\x01",
    "many items": b"\x81\xa1a\xdd\x00\x5b\x8d\x80" + b"\xc0" * 6_000_000,
    "an extension in a list": pack({"w": [ext(np.ones(2))]}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str) -> None:
    with pytest.raises(RecordError, match="flax bytes: not a valid flax record: ") as info:
        FlaxReader().from_bytes(BAD[name])
    assert len(str(info.value)) < 600


@pytest.mark.parametrize("flip", [1, 0x80, 0xFF])
def test_every_byte_changed(flip: int) -> None:
    data = pack({"params": {"w": ext(np.ones((2, 2), np.float32))}, "step": 3, "big": chunked(np.ones(4), 3)})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= flip
        try:
            for entry in FlaxReader().from_bytes(bytes(changed)).tensors.values():
                entry.tensor.read()
        except RecordError:
            pass
    for size in range(len(data)):
        with pytest.raises(RecordError):
            FlaxReader().from_bytes(data[:size])


def test_recognised() -> None:
    assert FlaxReader.recognises(pack({"params": {}})) and FlaxReader.recognises(pack({"x" * 40: 1}))
    for other in (b"", b"\x80\x04}.", b"\x89HDF\r\n", b"\x89PNG", b"\x93NUMPY", b"{}", b"\x1f\x8b\x08", b"\x81"):
        assert not FlaxReader.recognises(other)
