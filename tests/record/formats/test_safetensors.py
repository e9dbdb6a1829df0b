"""safetensors: byte for byte what the library writes, readable by it and by PyTorch, as strict as it, and mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phlox as px
from phlox import nn
from phlox.record import LazyTensor, Record, RecordError, SafetensorsRecorder, TensorEntry
from tests.record.support import AS_IS, DTYPES, arrays, assert_same_elements, paths, values

RECORDER = SafetensorsRecorder(AS_IS)


def file_of(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@settings(max_examples=200)
@given(st.dictionaries(paths.filter(lambda p: p != "__metadata__"), arrays(), max_size=6), values)
def test_identical_to_the_library_but_for_the_padding(tensors: dict[str, np.ndarray], value: Any) -> None:
    ours = RECORDER.to_bytes(Record({**tensors, "__metadata__": value}))
    theirs = safetensors.numpy.save(
        {path: np.ascontiguousarray(a).reshape(a.shape) for path, a in tensors.items()},
        metadata=header_of(ours)["__metadata__"],
    )
    (our_header, our_data), (their_header, their_data) = map(parts, (ours, theirs))
    assert our_header == their_header and our_data == their_data
    assert (len(ours) - len(our_data)) % 64 == 0


def parts(file: bytes) -> tuple[bytes, bytes]:
    """The header without its padding, and the data."""
    start = 8 + int.from_bytes(file[:8], "little")
    return file[8:start].rstrip(b" "), file[start:]


@settings(max_examples=100)
@given(st.dictionaries(paths.filter(lambda p: p != "__metadata__"), arrays(), max_size=6))
def test_what_the_library_writes_is_read(tensors: dict[str, np.ndarray]) -> None:
    record = RECORDER.from_bytes(safetensors.numpy.save(tensors, metadata={"a": "b"}))
    assert record.header is None and dict(record.metadata) == {"a": "b"}
    assert set(record) == set(tensors)
    for path, array in tensors.items():
        assert_same_elements(record[path].tensor.read(), array)


def test_readable_by_the_library_and_by_torch(tmp_path: Path) -> None:
    record = Record({dtype.name: np.arange(6).astype(dtype).reshape(2, 3) for dtype in DTYPES}, {"format": "pt"})
    path = RECORDER.save(record, tmp_path / "model")
    with safetensors.safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(record) and file.metadata()["format"] == "pt"
        info = json.loads(file.metadata()["phlox"])
        assert (info["schema"], info["format"]) == (2, "safetensors")
    for name, tensor in safetensors.torch.load_file(path).items():
        expected = record[name].tensor.read().astype(np.float64)
        np.testing.assert_array_equal(tensor.double().numpy(), expected)


@pytest.mark.parametrize(
    "array",
    [np.arange(12.0).reshape(3, 4).T, np.arange(12.0)[::-1], np.broadcast_to(np.float32(3), (2, 3)),
     np.arange(5, dtype=">f8"), np.zeros((0, 3)), np.array(7)],
)  # fmt: skip
def test_every_layout_is_written_right(array: np.ndarray) -> None:
    loaded = safetensors.numpy.load(RECORDER.to_bytes(Record({"x": array})))["x"]
    assert loaded.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(loaded, array)


def test_values_ids_and_order_are_documented_metadata() -> None:
    entries = {
        "b": TensorEntry(LazyTensor.from_array(np.zeros(1, np.int8)), "id-1"),
        "step": 7,
        "a": np.zeros(1),
        "nan": float("nan"),
    }
    info = json.loads(header_of(RECORDER.to_bytes(Record(entries)))["__metadata__"]["phlox"])
    assert info["ids"] == {"b": "id-1"} and info["values"] == {"step": 7, "nan": {"$float": "nan"}}
    assert info["order"] == [1, 2, 0, 3]  # of a, b, step, nan


def test_reserved_names() -> None:
    for record in (Record({"__metadata__": np.zeros(1)}), Record({}, {"phlox": "x"})):
        with pytest.raises(RecordError, match="reserved"):
            RECORDER.to_bytes(record)
    assert RECORDER.from_bytes(RECORDER.to_bytes(Record({"__metadata__": 3})))["__metadata__"] == 3


def test_metadata_of_subclasses_of_text() -> None:
    record = Record({}, {np.str_("x"): np.str_("y")})
    recorder = SafetensorsRecorder(AS_IS, "gzip")
    assert dict(recorder.from_bytes(recorder.to_bytes(record)).metadata) == {"x": "y"}


def test_the_file_is_mapped(tmp_path: Path) -> None:
    arrays = {"small": np.ones(3, np.int8), "big": np.arange(1000.0), "half": np.ones(5, np.float16)}
    record = RECORDER.load(RECORDER.save(Record(arrays), tmp_path / "m"))
    first = np.empty(0)
    for path, array in arrays.items():
        first, second = record[path].tensor.read(), record[path].tensor.read()
        assert np.shares_memory(first, second) and not first.flags.writeable and first.flags.aligned
        np.testing.assert_array_equal(first, array)
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            first.flags.writeable = True
    del record
    assert first[0] == 1  # the mapping lives as long as its views


def test_nobody_can_write_to_the_bytes_through_a_tensor() -> None:
    array = RECORDER.from_bytes(bytearray(RECORDER.to_bytes(Record({"a": np.ones(3)}))))["a"].tensor.read()
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        array.flags.writeable = True


def test_misaligned_foreign_files_are_copied() -> None:
    header = '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    data = file_of(header + " " * (-len(header) % 8 + 1), np.array([1, 2], np.float32).tobytes())
    array = RECORDER.from_bytes(data)["x"].tensor.read()
    assert array.flags.aligned and array.tolist() == [1, 2]


def info(dtype: str = '"U8"', shape: str = "[1]", offsets: str = "[0,1]", more: str = "") -> str:
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


def test_one_tensor_that_cannot_be_read_is_listed_and_the_rest_is_read() -> None:
    state = {"w": torch.arange(2.0), "z": torch.ones(2, dtype=torch.complex64)}
    state["fp4"] = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    record = RECORDER.from_bytes(safetensors.torch.save(state))
    assert record.paths() == ["w"] and record["w"].tensor.read().tolist() == [0, 1]
    assert set(record.unreadable) == {"z", "fp4"} and "torch.view_as_real" in record.unreadable["z"]
    with pytest.raises(RecordError, match="^fp4: 'F4' is not an element type of a record"):
        record["fp4"]
    for name in ("", "a..b", "../../etc/passwd"):
        record = RECORDER.from_bytes(file_of(f'{{"{name}":{info()},"w":{info(offsets="[1,2]")}}}', b"xy"))
        assert record.paths() == ["w"] and "is not a path" in record.unreadable[name]


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.emb.weight


class Apart(px.Module):
    emb: nn.Embedding
    head: nn.Linear

    def __init__(self) -> None:
        self.emb, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)


def test_shared_tensors_have_all_their_names(tmp_path: Path) -> None:
    theirs, ours, path = Shared(), Apart(), tmp_path / "shared.safetensors"
    safetensors.torch.save_model(theirs, str(path), {"by": "me"})
    record = RECORDER.load(path)
    assert record.aliases == {"head.weight": "emb.weight"} and record.metadata["by"] == "me"
    assert px.interop.pytorch.load(ours, path).ok
    weight = theirs.emb.weight.detach().numpy()
    assert np.array_equal(ours.emb.weight.val().numpy(), weight)
    assert np.array_equal(ours.head.weight.val().numpy(), weight.T)
    again = RECORDER.from_bytes(RECORDER.to_bytes(record))
    assert again.aliases == record.aliases and again.metadata == record.metadata


@pytest.mark.parametrize(
    "metadata", [{"format": "w"}, {"": "w"}, {"a..b": "w"}, {"w": "v"}, {"v": "w"}, {"x": "y"}], ids=str
)
def test_other_metadata_that_speaks_of_a_tensor(metadata: dict[str, str]) -> None:
    arrays = {"w": np.ones(2, np.float32), "v": np.zeros(2, np.float32)}
    record = RECORDER.from_bytes(safetensors.numpy.save(arrays, metadata))
    assert record.metadata == metadata and not record.aliases and set(record) == {"w", "v"}


FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


@pytest.mark.parametrize("name", FLOAT8)
def test_float8(name: str) -> None:
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    theirs = {"x": bits.view(getattr(torch, name)), "b": torch.ones(3)}
    data = safetensors.torch.save(theirs)
    record = RECORDER.from_bytes(data)
    tensor = record["x"].tensor
    assert tensor.kind == "float" and tensor.dtype == np.dtype(getattr(ml_dtypes, name))
    np.testing.assert_array_equal(tensor.read().view(np.uint8), bits.numpy())
    wide = theirs["x"].to(torch.float32).numpy()  # what each of the 256 is, by PyTorch
    np.testing.assert_array_equal(tensor.astype(np.float32).read(), wide)
    as_it_is = SafetensorsRecorder(AS_IS).to_bytes(record)
    header = json.loads(as_it_is[8 : 8 + int.from_bytes(as_it_is[:8], "little")])
    assert header["x"]["dtype"] == json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["x"]["dtype"]
    np.testing.assert_array_equal(RECORDER.from_bytes(as_it_is)["x"].tensor.read().view(np.uint8), bits.numpy())
    np.testing.assert_array_equal(safetensors.torch.load(SafetensorsRecorder().to_bytes(record))["x"].numpy(), wide)


A = info()
DAMAGED = {
    "empty": b"",
    "short": b"\x02\0\0\0\0\0\0",
    "length beyond the file": file_of("{}", length=3),
    "huge length": file_of("{}", length=2**63),
    "above the limit": file_of("{}" + " " * 100_000_000),
    "no header": file_of(""),
    "not an object": file_of("[]"),
    "null": file_of("null"),
    "bad UTF-8": file_of(b'{"a\xff":' + A.encode() + b"}", b"x"),
    "byte order mark": file_of("\ufeff{}"),
    "UTF-16": file_of("{}".encode("utf-16-le")),
    "zero padding": file_of("{}\0\0"),
    "trailing text": file_of("{}{}"),
    "comment": file_of("{}//"),
    "lone surrogate": file_of(f'{{"a\\ud800":{A}}}', b"x"),
    "trailing bytes": file_of(f'{{"a":{A}}}', b"xy"),
    "bytes of nothing": file_of("{}", b"x"),
    "truncated data": file_of(f'{{"a":{A}}}'),
    "hole": file_of(f'{{"a":{A},"b":{info(offsets="[2,3]")}}}', b"xyz"),
    "hole at the start": file_of(f'{{"a":{info(offsets="[1,2]")}}}', b"xy"),
    "overlap": file_of(f'{{"a":{info(shape="[2]", offsets="[0,2]")},"b":{info(offsets="[1,2]")}}}', b"xy"),
    "same bytes": file_of(f'{{"a":{A},"b":{A}}}', b"x"),
    "empty within": file_of(
        f'{{"a":{info(shape="[2]", offsets="[0,2]")},"b":{info(shape="[0]", offsets="[1,1]")}}}', b"xy"
    ),
    "reversed offsets": file_of(f'{{"a":{info(offsets="[1,0]")}}}', b"x"),
    "negative offset": file_of(f'{{"a":{info(offsets="[-1,0]")}}}', b"x"),
    "three offsets": file_of(f'{{"a":{info(offsets="[0,1,2]")}}}', b"x"),
    "offset beyond 64 bits": file_of(f'{{"a":{info(offsets=f"[0,{2**70}]")}}}', b"x"),
    "boolean offset": file_of(f'{{"a":{info(offsets="[false,true]")}}}', b"x"),
    "leading zero": file_of(f'{{"a":{info(offsets="[01,1]")}}}', b"x"),
    "negative size": file_of(f'{{"a":{info(shape="[-1]")}}}', b"x"),
    "negative zero": file_of(f'{{"a":{info(shape="[-0]", offsets="[0,0]")}}}'),
    "two negatives": file_of(f'{{"a":{info(shape="[-1,-1]")}}}', b"x"),
    "float size": file_of(f'{{"a":{info(shape="[1.0]")}}}', b"x"),
    "infinite size": file_of(f'{{"a":{info(shape="[1e999]")}}}', b"x"),
    "NaN": file_of(f'{{"a":{info(shape="[NaN]")}}}', b"x"),
    "shape too large": file_of(f'{{"a":{info(shape="[2]")}}}', b"x"),
    "shape too small": file_of(f'{{"a":{info(shape="[0]")}}}', b"x"),
    "overflow": file_of(f'{{"a":{info(shape="[4611686018427387904,4]", offsets="[0,0]")}}}'),
    "overflow with nothing": file_of(f'{{"a":{info(shape="[4611686018427387904,4,0]", offsets="[0,0]")}}}'),
    "no dtype": file_of('{"a":{"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "unknown dtype": file_of(f'{{"a":{info(dtype=chr(34) + "u8" + chr(34))}}}', b"x"),
    "dtype no text": file_of(f'{{"a":{info(dtype="[]")}}}', b"x"),
    "not a tensor": file_of('{"a":null}'),
    "duplicate field": file_of(f'{{"a":{info(more=f",{chr(34)}dtype{chr(34)}:{chr(34)}I8{chr(34)}")}}}', b"x"),
    "metadata twice": file_of('{"__metadata__":{},"__metadata__":{}}'),
    "metadata no text": file_of('{"__metadata__":{"a":1}}'),
    "metadata null": file_of('{"__metadata__":{"a":null}}'),
    "metadata a list": file_of('{"__metadata__":[]}'),
    "deep": file_of('{"a":' + "[" * 200 + "]" * 200 + "}"),
    "very deep": file_of('{"a":' + "[" * 1_000_000),
    "long number": file_of(f'{{"a":{info(shape="[" + "9" * 10_000 + "]")}}}', b"x"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_whatever_the_library_rejects_is_rejected(name: str) -> None:
    with pytest.raises((safetensors.SafetensorError, OverflowError)):
        safetensors.deserialize(DAMAGED[name])
    with pytest.raises(RecordError, match="safetensors bytes: not a valid safetensors record: ."):
        RECORDER.from_bytes(DAMAGED[name])


def ours(text: str, header: str = f'"a":{A}') -> bytes:
    phlox = '{"schema":1,"format":"safetensors","precision":"","phlox":"1"' + text + "}"
    return file_of(f'{{"__metadata__":{{"phlox":{json.dumps(phlox)}}},{header}}}', b"x")


STRICTER = {
    "duplicate name": file_of(f'{{"a":{A},"a":{A}}}', b"x"),
    "duplicate name, escaped": file_of(f'{{"a":{A},"\\u0061":{A}}}', b"x"),
    "duplicate metadata": file_of('{"__metadata__":{"a":"b","a":"c"}}'),
    "further field": file_of(f'{{"a":{info(more=f",{chr(34)}z{chr(34)}:1")}}}', b"x"),
    "axis beyond NumPy": file_of(f'{{"a":{info(shape="[18446744073709551615,0]", offsets="[0,0]")}}}'),
    "too many axes": file_of(f'{{"a":{info(shape="[" + "1," * 64 + "1]")}}}', b"x"),
    "phlox no JSON": file_of('{"__metadata__":{"phlox":"x"}}'),
    "phlox without fields": file_of('{"__metadata__":{"phlox":"{}"}}'),
    "phlox of the future": ours("").replace(b'\\"schema\\":1', b'\\"schema\\":9'),
    "another format": ours("").replace(b"tensors", b"TENSORS"),
    "id of nothing": ours(',"ids":{"b":"x"}'),
    "value in place of a tensor": ours(',"values":{"a":1}'),
    "value with an unknown tag": ours(',"values":{"b":{"$float":"1"}}'),
    "deep value": ours(',"values":{"b":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "order too short": ours(',"order":[]'),
    "order no permutation": ours(',"values":{"b":1},"order":[0,0]'),
    "order out of range": ours(',"order":[-1]'),
    "alias of nothing": ours(',"aliases":{"b":"c"}'),
}


@pytest.mark.parametrize("name", STRICTER)
def test_further_damage_is_rejected(name: str) -> None:
    with pytest.raises(RecordError, match="safetensors bytes: not a valid safetensors record: ."):
        RECORDER.from_bytes(STRICTER[name])


def test_the_sane_ones_are_accepted() -> None:
    for data in (
        file_of("{}"), file_of(" {} \n\t"), file_of('{"__metadata__":null}'), ours(""), ours(',"future":{"x":1}'),
        file_of(f'{{"b":{info(shape="[0]", offsets="[1,1]")},"a":{A}}}', b"x"),
        file_of(f'{{"b":{info(shape="[0]", offsets="[0,0]")},"a":{A}}}', b"x"),
    ):  # fmt: skip
        safetensors.deserialize(data)
        RECORDER.from_bytes(data)


SPELLED: list[dict[str, Any]] = [
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {"ensure_ascii": False},
    {"indent": 1},
]


@pytest.mark.parametrize("name", ["a", "ä", "a-b"])
@pytest.mark.parametrize("spelled", SPELLED)
def test_a_header_is_read_however_it_is_spelled(spelled: dict[str, Any], name: str) -> None:
    tensor = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    record = RECORDER.from_bytes(file_of(json.dumps({"__metadata__": {"x": "y"}, name: tensor}, **spelled), b"x"))
    assert dict(record.metadata) == {"x": "y"}
    assert record.paths() == [name] and record[name].tensor.read().tolist() == [ord("x")]
    twice = json.dumps({name: tensor, "other": tensor}, **spelled).replace("other", json.dumps(name, **spelled)[1:-1])
    with pytest.raises(RecordError, match=f"its header names '{name}' twice"):
        RECORDER.from_bytes(file_of(twice, b"x"))


def test_negative_numbers_are_told() -> None:
    for name in ("negative offset", "negative size", "negative zero"):
        with pytest.raises(RecordError, match="a size or offset in its header is negative"):
            RECORDER.from_bytes(DAMAGED[name])


def test_a_header_length_that_looks_like_gzip() -> None:
    header = '{"a":' + A + "}"
    data = file_of(header + " " * (0x088B1F - len(header)), b"x")
    assert data[:3] == b"\x1f\x8b\x08"
    assert RECORDER.from_bytes(data)["a"].tensor.read().tolist() == [ord("x")]
