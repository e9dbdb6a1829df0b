"""NumPy's files: what it writes is read as it reads it, what we write it reads, and hostile ones are refused."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from phlox.record import (
    LazyTensor,
    NpyReader,
    NpzRecorder,
    PrecisionSettings,
    PyTorchReader,
    Record,
    RecordError,
    TensorEntry,
    load,
    save,
)
from phlox.record.io.zip import is_safe_name
from tests.record.support import AS_IS, DTYPES, assert_same_elements, assert_same_record, of_bits, records

RECORD = Record(
    {
        "v": {"a": [1, None, float("inf")]},
        "net.w": TensorEntry(LazyTensor.from_array(np.arange(6, dtype=np.int16).reshape(2, 3)), "p1"),
        "step": 3,
        "b": np.array(True),
    },
    {"k": "é"},
    aliases={"tied": "net.w"},
)


def saved(compressed: bool = False, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def samples(dtype: np.dtype[Any]) -> dict[str, np.ndarray]:
    bits = np.arange(24, dtype=f"u{dtype.itemsize}") * np.array(113, f"u{dtype.itemsize}")
    base = of_bits(bits, dtype).reshape(2, 3, 4)
    return {"x": base, "one": base[1, 2, 3], "empty": base[:0], "row": base[0, 0], "fortran": np.asfortranarray(base)}


@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "deflated"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_numpy_writes(dtype: np.dtype[Any], compressed: bool) -> None:
    arrays = samples(dtype)
    record = NpzRecorder().from_bytes(saved(compressed, **arrays))
    assert record.paths() == list(arrays)
    for path, array in arrays.items():
        assert_same_elements(record[path].tensor.read(), np.ascontiguousarray(array).reshape(array.shape))


@pytest.mark.parametrize("name", [">f4", ">i8", ">u2", ">f8", ">f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_big_endian(name: str, order: Any) -> None:
    array = np.asarray(np.arange(6).reshape(2, 3).astype(name), order=order)
    got = NpyReader().from_bytes(npy(array))["data"].tensor.read()
    assert_same_elements(got, np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=["1.0", "2.0", "3.0"])
def test_every_version(version: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(3.0), version)
    assert NpyReader().from_bytes(buffer.getvalue())["data"].tensor.read().tolist() == [0, 1, 2]


@given(records())
def test_round_trip(record: Record) -> None:
    recorder = NpzRecorder(AS_IS)
    if all(is_safe_name(path + ".npy") for path in record.tensors):
        data = recorder.to_bytes(record)
        assert_same_record(recorder.from_bytes(data), record)
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            for path, entry in record.tensors.items():
                array = entry.tensor.read()
                got = file[path]
                assert got.shape == array.shape and got.tobytes() == array.tobytes()
    else:
        with pytest.raises(RecordError, match=r"can be no name in an \.npz archive"):
            recorder.to_bytes(record)


def test_what_numpy_reads_of_ours() -> None:
    record = Record({**RECORD.tensors, "h": np.ones(2, ml_dtypes.bfloat16), "s": 1})
    with np.load(io.BytesIO(NpzRecorder(AS_IS).to_bytes(record)), allow_pickle=False) as file:
        assert set(file.files) == {"__phlox__.json", "net.w", "b", "h"} and file.zip.testzip() is None
        assert file["net.w"].tolist() == [[0, 1, 2], [3, 4, 5]] and file["__phlox__.json"].startswith(b"{")
        assert file["h"].view(ml_dtypes.bfloat16).tolist() == [1, 1]


def test_bytes_are_the_same_each_time_aligned_and_mapped() -> None:
    record = Record({f"x{'y' * i}": np.arange(i + 1, dtype=np.float32) for i in range(70)})
    data = NpzRecorder().to_bytes(record)
    assert data == NpzRecorder().to_bytes(record)
    start = np.frombuffer(data, np.uint8).ctypes.data
    for entry in NpzRecorder().from_bytes(data).tensors.values():
        array = entry.tensor.read()
        assert (array.ctypes.data - start) % 64 == 0
        assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_large_members_have_large_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.record.formats.npz._LARGE", 100)
    data = NpzRecorder().to_bytes(RECORD)
    assert_same_record(NpzRecorder().from_bytes(data), RECORD)
    assert b"\x01\x00\x10\x00" in data  # the field of 64-bit sizes
    array = NpzRecorder().from_bytes(data)["net.w"].tensor.read()
    assert (array.ctypes.data - np.frombuffer(data, np.uint8).ctypes.data) % 64 == 0


def test_files(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "r.npz", PrecisionSettings())
    assert_same_record(load(path), RECORD)
    assert load(path).header is not None and load(tmp_path / "r").paths() == RECORD.paths()
    assert save(RECORD, tmp_path / "z.npz", compression="gzip").name == "z.npz.gz"
    assert_same_record(load(tmp_path / "z.npz.gz"), RECORD)
    np.savez(tmp_path / "odd.bin", x=np.ones(2))
    (tmp_path / "odd.bin.npz").rename(tmp_path / "odd.pt")
    assert load(tmp_path / "odd.pt").paths() == ["x"]
    np.save(tmp_path / "a.npy", np.ones(3))
    assert load(tmp_path / "a.npy")["data"].tensor.shape == (3,)
    (tmp_path / "b.npy.gz").write_bytes(gzip.compress(npy(np.ones(3))))
    assert load(tmp_path / "b")["data"].tensor.shape == (3,)


def test_recognised_by_content() -> None:
    assert NpzRecorder.recognises(saved(x=np.ones(1))[:512]) and NpzRecorder.recognises(NpzRecorder().to_bytes(RECORD))
    assert not NpzRecorder.recognises(npy(np.ones(1))) and NpyReader.recognises(npy(np.ones(1)))
    assert not PyTorchReader.recognises(NpzRecorder().to_bytes(RECORD)[:512])


def test_opening_reads_no_array_and_reading_one_reads_no_other() -> None:
    data = bytearray(saved(x=np.arange(1000.0), y=np.ones(1000)))
    data[data.index(np.ones(1000).tobytes()) + 2000] ^= 1
    record = NpzRecorder().from_bytes(data)
    np.testing.assert_array_equal(record["x"].tensor.read(), np.arange(1000.0))
    with pytest.raises(RecordError, match=r"npz bytes: y: its member 'y.npy' is damaged: the checksum"):
        record["y"].tensor.read()
    assert NpzRecorder(verify=False).from_bytes(data)["y"].tensor.read().shape == (1000,)


UNREADABLE = {
    "objects": (np.array([None, 1]), "Python objects .loading them runs code. of NumPy's type '.O'"),
    "text": (np.array(["a"]), "text of NumPy's type '<U1'"),
    "bytes": (np.array([b"a"]), "text of NumPy's type '.S1'"),
    "complex": (np.ones(2, np.complex64), "complex numbers of NumPy's type '<c8'"),
    "raw": (np.zeros(2, "V2"), "raw bytes of NumPy's type '.V2'"),
    "dates": (np.zeros(2, "M8[s]"), "dates of NumPy's type"),
    "fields": (np.zeros(2, [("a", "f4")]), "a structured array"),
    "float8": (np.ones(2, ml_dtypes.float8_e4m3fn), "raw bytes of NumPy's type '.V1'"),
    "long": (np.ones(2, np.longdouble), "elements of NumPy's type"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_one_array_that_cannot_be_read_is_listed_and_the_rest_is_read(name: str) -> None:
    array, message = UNREADABLE[name]
    record = NpzRecorder().from_bytes(saved(w=np.arange(3.0), x=array, y=np.ones(1)))
    assert record.paths() == ["w", "y"] and record["w"].tensor.read().tolist() == [0, 1, 2]
    assert list(record.unreadable) == ["x"]
    with pytest.raises(RecordError, match=f"^x: {message}"):
        record["x"]
    alone = NpyReader().from_bytes(npy(array))
    assert list(alone.unreadable) == ["data"] and not len(alone)


def test_float8_of_the_one_kind_that_has_a_name() -> None:
    array = np.arange(4).astype(ml_dtypes.float8_e5m2)
    assert_same_elements(NpzRecorder().from_bytes(saved(x=array))["x"].tensor.read(), array)
    with pytest.raises(RecordError, match="x: NumPy has no float8_e5m2; save it at another precision"):
        NpzRecorder(AS_IS).to_bytes(Record({"x": array}))


def in_a_row(*arrays: np.ndarray) -> bytes:
    return b"".join(map(npy, arrays))


def test_several_arrays_in_a_row_are_a_positional_record() -> None:
    arrays = [
        np.arange(6.0, dtype=np.float32).reshape(2, 3),
        np.array(7),
        np.ones(2, ml_dtypes.bfloat16),
        np.array(True),
    ]
    record = NpyReader().from_bytes(in_a_row(*arrays))
    assert record.positional and record.paths() == ["0", "1", "2", "3"]
    for path, array in zip(record, arrays, strict=True):
        assert_same_elements(record[path].tensor.read(), array)
    record = NpyReader().from_bytes(b'{"width": 3}\n' + in_a_row(arrays[0]))
    assert record.positional and record.paths() == ["0"] and record.metadata["header"] == '{"width": 3}'


def test_an_array_in_a_row_that_cannot_be_read() -> None:
    one = np.arange(3.0)
    for other, lost in ((np.ones(2, complex), ["1"]), (np.array(["ab"]), ["1"]), (np.zeros(2, "M8[D]"), ["1"])):
        record = NpyReader().from_bytes(in_a_row(one, other, one))
        assert not record.positional and record.paths() == ["0", "2"] and list(record.unreadable) == lost
        assert record["2"].tensor.read().tolist() == [0, 1, 2]
    record = NpyReader().from_bytes(in_a_row(one, np.array([None]), one))  # nobody knows where the objects end
    assert record.paths() == ["0"] and list(record.unreadable) == ["1"] and "arrays after it" in record.unreadable["1"]


def test_what_follows_an_array_and_is_none() -> None:
    for more in (b"x", bytes(64), npy(np.ones(3))[:-1], npy(np.ones(3))[:20]):
        with pytest.raises(RecordError, match="follow array 1, which are not|takes 24 bytes; the file gives 23|header"):
            NpyReader().from_bytes(npy(np.ones(2)) + more)


HEADERS = {
    "no dict": "['descr', '<f4']",
    "code": "{'descr': __import__('os').system('x'), 'fortran_order': False, 'shape': (3,), }",
    "missing": "{'descr': '<f4', 'shape': (3,), }",
    "twice": "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
    "more": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': '1'}",
    "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
    "huge": "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1000000000000,), }",
    "deep": "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 5000 + ")" * 3000 + "}",
    "many axes": "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 3000 + ")}",
    "digits": "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ",)}",
    "too few elements": "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }",
    "too many elements": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
    "commas": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)" + "," * 9000 + "}",
    "blanks": "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)" + " " * 9000 + "x}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_bad_headers(name: str) -> None:
    text = HEADERS[name].encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(12)
    with pytest.raises(RecordError, match=r"^npy bytes: not a valid npy record: data: ") as info:
        NpyReader().from_bytes(data)
    assert len(str(info.value)) < 600


def test_headers_as_others_write_them() -> None:
    for text in (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\n",
        '{"shape":(3L,),"fortran_order":False,"descr":"<f4"}   ',
        " { 'shape' : ( 3 , ) , 'fortran_order' : True , 'descr' : '<f4' , } ",
    ):
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
        assert NpyReader().from_bytes(head + bytes(12))["data"].tensor.shape == (3,)


def test_header_size_and_other_members() -> None:
    for data in (
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x04\x00" + bytes(80),
        npy(np.ones(2))[:70],
    ):
        with pytest.raises(RecordError, match="npy"):
            NpyReader().from_bytes(data)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("x.txt", b"hello")
    with pytest.raises(RecordError, match=r"'x.txt' is not an \.npy file; is it another kind"):
        NpzRecorder().from_bytes(buffer.getvalue())
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("w.npy", npy(np.ones(2)))
    assert NpzRecorder().from_bytes(buffer.getvalue()).paths() == ["w"]
    assert NpzRecorder().from_bytes(buffer.getvalue()).unreadable == {"x.txt": "it is not an .npy file"}
    assert "'a..b' is not a path" in NpzRecorder().from_bytes(saved(False, **{"a..b": np.ones(1)})).unreadable["a..b"]
    with pytest.raises(RecordError, match="zip bomb"):
        NpzRecorder(max_bytes=1000).from_bytes(saved(True, x=np.zeros(10_000)))
    with pytest.raises(RecordError, match="bytes other than 0 and 1"):
        NpyReader().from_bytes(npy(np.array([True]))[:-1] + b"\2")["data"].tensor.read()


def contents(record: Record) -> Any:
    return [entry.tensor.read() for entry in record.tensors.values()], repr(dict(record.values))


@pytest.mark.parametrize("data", [saved(x=np.ones(3)), saved(True, x=np.ones(3)), NpzRecorder().to_bytes(RECORD)],
                         ids=["numpy", "numpy-deflated", "ours"])  # fmt: skip
def test_truncated_at_every_byte(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(RecordError):
            NpzRecorder().from_bytes(data[:size])


@pytest.mark.parametrize("data", [saved(x=np.ones(3)), saved(True, x=np.ones(3)), NpzRecorder().to_bytes(RECORD)],
                         ids=["numpy", "numpy-deflated", "ours"])  # fmt: skip
@pytest.mark.parametrize("flip", [1, 0x20, 0x80, 0xFF])
def test_every_byte_changed(data: bytes, flip: int) -> None:
    expected = contents(NpzRecorder().from_bytes(data))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= flip
        try:
            got = contents(NpzRecorder().from_bytes(bytes(changed)))
        except RecordError:
            continue
        assert all(np.array_equal(a, b) for a, b in zip(got[0], expected[0], strict=False))


@pytest.mark.parametrize("flip", [1, 0x20, 0x80, 0xFF])
def test_every_byte_of_an_npy_changed(flip: int) -> None:
    data = npy(np.ones((2, 3)))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= flip
        try:
            assert NpyReader().from_bytes(bytes(changed))["data"].tensor.read().size == 6
        except RecordError:
            pass
