"""GGUF files: read as the package `gguf` wrote them, written so that it reads them, and refused where damaged."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from phlox.record import GgufRecorder, LazyTensor, Record, RecordError, limits, load, renamed, save
from phlox.record.formats.gguf.blocks import TYPES
from phlox.record.formats.gguf.quantization import quantized
from tests.record.support import AS_IS

RNG = np.random.default_rng(0)
ARRAY = RNG.standard_normal((3, 2, 256)).astype(np.float32)
KINDS = gguf.GGMLQuantizationType


def theirs(path: Path, tensors: Mapping[str, tuple[np.ndarray, str | None]], alignment: int = 32) -> Path:
    """A file of the package `gguf`, with keys of all types."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.epsilon", 0.1)
    writer.add_float64("wide", 1e300)
    writer.add_bool("flag", True)
    writer.add_int8("small", -3)
    writer.add_uint64("large", 2**64 - 1)
    writer.add_token_list(["a", "é", ""])
    writer.add_token_scores([0.5, -1.25])
    writer.add_token_types([1, 2])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=None if kind is None else KINDS[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(kind: str, array: np.ndarray = ARRAY) -> np.ndarray:
    if kind in TYPES:
        rows = array.reshape(-1, array.shape[-1])
        return TYPES[kind].encoded(rows, quantized).reshape(*array.shape[:-1], -1)
    return quantize(array, KINDS[kind])


PLAIN = {
    f"x.{name}": (np.arange(6).reshape(2, 3).astype(name), None) for name in ("f4", "f2", "f8", "i1", "i2", "i4", "i8")
}
QUANTIZED = {f"q.{kind}": (stored(kind), kind) for kind in (*TYPES, "BF16")}


@pytest.mark.parametrize("alignment", [32, 8, 256])
def test_a_file_of_theirs(alignment: int, tmp_path: Path) -> None:
    path = theirs(tmp_path / "m.gguf", PLAIN | QUANTIZED, alignment)
    record = load(path)
    assert record.header is None and record.metadata["llama.epsilon"] == "0.1" and record.metadata["wide"] == "1e+300"
    assert record.metadata["tokenizer.ggml.tokens"] == '["a", "é", ""]' and record.metadata["large"] == str(2**64 - 1)
    for name, (array, _) in PLAIN.items():
        tensor = record[name].tensor
        assert tensor.dtype == array.dtype and tensor.packing is None and tensor.packed() is None
        np.testing.assert_array_equal(tensor.read(), array)
    for name, (array, kind) in QUANTIZED.items():
        tensor, expected = record[name].tensor, dequantize(array, KINDS[kind])
        np.testing.assert_array_equal(tensor.read().astype(np.float32), expected)
        part = (slice(1, 3), slice(1, 2), slice(3, 77))
        np.testing.assert_array_equal(tensor.read_part(part).astype(np.float32), expected[part])
        assert tensor.stored_as == (kind if kind != "BF16" else "bf16", array.nbytes)
        if packed := tensor.packed():
            np.testing.assert_array_equal(packed.dequantized(), expected.reshape(6, 256))
    # Written again, all keys and all bytes are the same.
    again = save(record, tmp_path / "n.gguf", AS_IS)
    first, second = gguf.GGUFReader(path), gguf.GGUFReader(again)
    for name, field in first.fields.items():
        if not name.startswith("GGUF"):
            assert (second.fields[name].types, second.fields[name].contents()) == (field.types, field.contents())
    assert {*second.fields} - {*first.fields} == {"phlox", "general.quantization_version"}
    for one, other in zip(first.tensors, second.tensors, strict=True):
        assert (one.name, one.tensor_type, one.shape.tolist()) == (other.name, other.tensor_type, other.shape.tolist())
        assert one.data.tobytes() == other.data.tobytes() and not other.data_offset % alignment
    loaded = load(again)
    assert loaded["q.Q4_K"].tensor.stored_as == record["q.Q4_K"].tensor.stored_as
    # ... and so they are after a file of another format.
    assert load(save(loaded, tmp_path / "o.safetensors")).metadata == loaded.metadata


@pytest.mark.parametrize("kind", [*TYPES, "F32", "F16", "BF16"])
def test_a_type_for_all_matrices(kind: str, tmp_path: Path) -> None:
    record = Record({
        "w": ARRAY, "bias": ARRAY[0, 0], "n": np.arange(32).reshape(1, 32), "narrow": ARRAY[..., :32],
        "odd": ARRAY[..., :31], "empty": ARRAY[:0],
    })  # fmt: skip
    path = GgufRecorder(type=kind).save(record, tmp_path / "m")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    smaller = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}.get(kind, kind)
    odd = kind if kind not in TYPES else "F32"
    names = {"w": kind, "bias": "F32", "n": "I64", "narrow": smaller, "odd": odd, "empty": kind}
    assert {name: tensor.tensor_type.name for name, tensor in tensors.items()} == names
    assert tensors["w"].data.tobytes() == stored(kind).tobytes()
    loaded = load(path)
    assert {name: loaded[name].tensor.shape for name in record} == {
        n: e.tensor.shape for n, e in record.tensors.items()
    }
    assert path.stat().st_size % 32 == 0 and repr(loaded)


def test_a_type_for_each_path() -> None:
    recorder = GgufRecorder(type=lambda path: {"a": "Q4_0", "b": "F16"}.get(path))
    record = recorder.from_bytes(recorder.to_bytes(Record(dict.fromkeys("abc", ARRAY))))
    assert [record[name].tensor.stored_as[0] for name in "abc"] == ["Q4_0", "f16", "f32"]
    # What is quantized stays as it is, is made a type that holds it, or is quantized anew.
    for kind, names in ((None, ["Q4_0", "f16", "f32"]), ("Q8_0", ["Q8_0", "Q8_0", "Q8_0"])):
        again = GgufRecorder(AS_IS, type=kind)
        copy = again.from_bytes(again.to_bytes(record))
        assert [copy[name].tensor.stored_as[0] for name in "abc"] == names
    for wrong in ("Q2_K", "q8_0", "I8"):
        with pytest.raises(RecordError, match=f"type='{wrong}': expected one of F32, F16, BF16, Q4_0"):
            GgufRecorder(type=wrong)
        with pytest.raises(RecordError, match=f"type='{wrong}'"):
            GgufRecorder(type=lambda path, wrong=wrong: wrong).to_bytes(Record({"a": ARRAY}))


def test_packed_matrices_are_written_as_the_type_that_holds_them() -> None:
    for kind in TYPES.values():
        data = stored(kind.name, ARRAY[0])
        tensor = LazyTensor.from_packed(kind.packed(data))
        np.testing.assert_array_equal(tensor.read(), kind.dequantized(data))
        again = GgufRecorder().from_bytes(GgufRecorder().to_bytes(Record({"w": tensor})))["w"].tensor
        assert again.stored_as == (kind.name, data.nbytes)
        np.testing.assert_array_equal(kind.bytes_of(again.packing.read()), data)


def test_what_gguf_does_not_hold() -> None:
    with pytest.raises(RecordError, match="w: GGUF holds tensors of at most 4 axes, not 5"):
        GgufRecorder().to_bytes(Record({"w": np.ones((1, 1, 1, 1, 2))}))
    with pytest.raises(RecordError, match="w: it has the value inf, which Q8_0 cannot hold"):
        GgufRecorder(type="Q8_0").to_bytes(Record({"w": np.full((1, 32), np.inf, np.float32)}))
    with pytest.raises(RecordError, match="'phlox' is reserved"):
        GgufRecorder().to_bytes(Record({}, {"phlox": "x"}))
    with pytest.raises(RecordError, match="general.alignment: 24 is not a power of two"):
        GgufRecorder().to_bytes(Record({}, {"general.alignment": "24", "gguf.types": '{"general.alignment": "u32"}'}))


def test_types_that_are_not_read_are_listed(tmp_path: Path) -> None:
    tensors = {
        "a": (ARRAY, None),
        "q2": (np.zeros((3, 84), np.uint8), "Q2_K"),
        "b..c": (ARRAY, None),
        "z": (ARRAY, None),
    }
    record = load(theirs(tmp_path / "m.gguf", tensors))
    assert record.paths() == ["a", "z"] and set(record.unreadable) == {"q2", "b..c"}
    assert (
        "its elements are Q2_K; Phlox reads F32" in record.unreadable["q2"]
        and "llama-quantize" in record.unreadable["q2"]
    )
    np.testing.assert_array_equal(record["z"].tensor.read(), ARRAY)
    assert load(
        save(
            renamed(record, {"q2": None, "b..c": None}.get and (lambda p: None if p in record.unreadable else p)),
            tmp_path / "n.gguf",
        )
    ).paths() == ["a", "z"]
    data = (tmp_path / "m.gguf").read_bytes()
    unknown = data.replace(
        (10).to_bytes(4, "little") + (6144).to_bytes(8, "little"),
        (99).to_bytes(4, "little") + (6144).to_bytes(8, "little"),
    )
    record = load(unknown)
    assert (
        "its elements are the unknown type 99" in record.unreadable["q2"]
        and record["z"].tensor.read()[0, 0, 0] == ARRAY[0, 0, 0]
    )


def test_a_packed_tensor_is_never_unpacked(tmp_path: Path) -> None:
    array = np.zeros((2048, 2048), np.float32)
    path = GgufRecorder(type="Q8_0").save(Record({"w": array}), tmp_path / "m.gguf")
    tensor = load(path)["w"].tensor
    tracemalloc.start()
    packed = tensor.packed()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed is not None and peak < 0.7 * array.nbytes


# --- damage: each field of a file


def file_of(
    keys: bytes = b"", tensors: bytes = b"", data: bytes = b"", counts: tuple[int, int] = (0, 0), version: int = 3
) -> bytes:
    head = b"GGUF" + version.to_bytes(4, "little") + b"".join(count.to_bytes(8, "little") for count in counts)
    text = head + keys + tensors
    return text + bytes(-len(text) % 32) + data


def text(name: str | bytes, length: int | None = None) -> bytes:
    data = name if isinstance(name, bytes) else name.encode()
    return (len(data) if length is None else length).to_bytes(8, "little") + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + kind.to_bytes(4, "little") + value


def u(number: int, size: int = 4) -> bytes:
    return number.to_bytes(size, "little")


def tensor(
    name: str = "w", sizes: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0, axes: int | None = None
) -> bytes:
    return (
        text(name) + u(len(sizes) if axes is None else axes) + b"".join(u(s, 8) for s in sizes) + u(kind) + u(offset, 8)
    )


HUGE = 2**63 - 1
ONE = bytes(32)


def keyed(*keys: bytes) -> bytes:
    return file_of(b"".join(keys), counts=(0, len(keys)))


def holding(*tensors: bytes, data: bytes = ONE) -> bytes:
    return file_of(tensors=b"".join(tensors), counts=(len(tensors), 0), data=data)


DAMAGED: dict[str, tuple[bytes, str]] = {
    "start": (b"GGUf" + bytes(20), "it does not begin as one"),
    "nothing": (b"GGUF", "its header: at byte 4, 4 bytes are claimed, of which the file has 0; truncated"),
    "version 1": (file_of(version=1), "it has version 1; Phlox reads versions 2 and 3: convert"),
    "version 4": (file_of(version=4), "it has version 4"),
    "big-endian": (file_of(version=3 << 24), "it is big-endian: convert the original weights"),
    "tensors": (file_of(counts=(HUGE, 0)), f"at byte 8, {HUGE} tensors are claimed, more than fit in the file"),
    "keys": (file_of(counts=(0, 2**60)), f"at byte 16, {2**60} keys are claimed"),
    "key": (keyed(text("k" * 20, HUGE)), f"a key: at byte 32, {HUGE} bytes are claimed"),
    "text of a key": (keyed(key("k", 8, text(b"\xff"))), "the key 'k': at byte 37, the text is not UTF-8"),
    "type of a key": (keyed(key("k", 13, b"")), "the key 'k': at byte 33, 13 is not a type of values"),
    "truth": (keyed(key("k", 7, b"\2")), "the key 'k': at byte 37, a truth value is neither 0 nor 1"),
    "array": (keyed(key("k", 9, u(4) + u(HUGE, 8))), f"'k': at byte 41, {HUGE} numbers are claimed"),
    "texts": (keyed(key("k", 9, u(8) + u(9, 8))), "'k': at byte 41, 9 texts are claimed"),
    "arrays": (keyed(key("k", 9, u(9) + u(0, 8))), "'k': at byte 37, an array of arrays is not read"),
    "array of": (keyed(key("k", 9, u(77) + u(0, 8))), "'k': at byte 37, 77 is not a type"),
    "key twice": (keyed(key("k", 0, b"1"), key("k", 0, b"1")), "the key 'k': at byte 38, it is there twice"),
    "our key": (keyed(key("gguf.types", 8, text("{}"))), "'gguf.types': at byte 24, its name is reserved"),
    "alignment": (keyed(key("general.alignment", 4, u(12))), "general.alignment: 12 is not a power of two"),
    "alignment 0": (keyed(key("general.alignment", 4, u(0))), "0 is not a power of two"),
    "alignment text": (keyed(key("general.alignment", 8, text("x"))), "x is not a power of two"),
    "phlox": (keyed(key("phlox", 4, u(0))), "the key 'phlox' is not text"),
    "phlox text": (keyed(key("phlox", 8, text("{}"))), "missing required field"),
    "tensor": (holding(text("w", 2**62)), f"a tensor: at byte 32, {2**62} bytes are claimed"),
    "axes": (holding(tensor(axes=5)), "the tensor 'w': at byte 33, 5 axes are claimed; the most is 4"),
    "sizes": (holding(tensor(sizes=(2**40,) * 3)), "'w': at byte 33, its sizes: shape .* overflows"),
    "size": (holding(tensor(sizes=(2**40,))), "'w': at byte 33, its .* bytes begin at byte 64 of 96"),
    "block": (holding(tensor(kind=8)), "'w': at byte 33, rows of 8 elements are not whole blocks of 32"),
    "scalar": (holding(tensor(sizes=(), kind=8)), "rows of 1 elements"),
    "offset": (holding(tensor(offset=32)), "'w': at byte 33, its elements begin at 32, where 0 was expected"),
    "odd offset": (holding(tensor(offset=7)), "begin at 7, where 0 was expected"),
    "overlap": (holding(tensor(), tensor("v")), "the tensor 'v': .* begin at 0, where 32 was expected"),
    "tensor twice": (holding(tensor(), tensor()), "the tensor 'w': at byte 57, it is there twice"),
    "truncated": (holding(tensor(), data=ONE[1:]), "its 32 bytes begin at byte 64 of 95; truncated"),
    "more": (holding(tensor(), data=ONE + b"x"), "its tensors end at byte 96 of 97"),
    "unknown type": (holding(tensor(kind=99), tensor("v", offset=33)), "where a multiple of the alignment was"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_told_in_a_sentence(name: str) -> None:
    data, why = DAMAGED[name]
    with pytest.raises(RecordError, match=f"^gguf bytes: not a valid gguf record: .*{why}"):
        GgufRecorder().from_bytes(data)


def test_files_that_are_right() -> None:
    for data in (file_of(), file_of(tensors=tensor(), counts=(1, 0), data=ONE), file_of(version=2),
                 file_of(tensors=tensor(sizes=()), counts=(1, 0), data=bytes(4)),  # without padding at the end
                 file_of(tensors=tensor(sizes=(32, 0), kind=8), counts=(1, 0))):  # fmt: skip
        record = GgufRecorder().from_bytes(data)
        assert [math.prod(entry.tensor.shape) for entry in record.tensors.values()] in ([], [8], [1], [0])


def test_no_more_items_and_bytes_than_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(key("k", 9, u(0) + u(100, 8) + bytes(100)) + key("l", 8, text("x" * 100)), counts=(0, 2))
    assert len(GgufRecorder().from_bytes(data).metadata) == 3
    monkeypatch.setattr(limits, "MAX_ITEMS", 99)
    with pytest.raises(RecordError, match="the key 'k': at byte 41, there are more than 99 items"):
        GgufRecorder().from_bytes(data)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "MAX_TEXT", 200)
    with pytest.raises(RecordError, match="the most is 200"):
        GgufRecorder().from_bytes(data)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1)
    with pytest.raises(RecordError, match="it has 2 entries"):
        GgufRecorder().from_bytes(file_of(tensors=tensor() + tensor("v", offset=32), counts=(2, 0), data=ONE * 2))


def test_every_byte_of_a_file_of_theirs_may_change(tmp_path: Path) -> None:
    """Without checksums it may be another file; but it raises only RecordError, in little memory."""
    tensors = {"x": PLAIN["x.f2"], "q": (stored("Q4_K", ARRAY[0]), "Q4_K"), "e": (stored("MXFP4", ARRAY[0]), "MXFP4")}
    data = theirs(tmp_path / "m.gguf", tensors).read_bytes()
    head = len(data) - sum(array.nbytes + -array.nbytes % 32 for array, _ in tensors.values())
    tracemalloc.start()
    for at in range(head):
        for new in {0, 255, data[at] ^ 1, data[at] + 1 & 255} - {data[at]}:
            changed = data[:at] + bytes([new]) + data[at + 1 :]
            try:
                record = GgufRecorder().from_bytes(changed)
                repr(record)
                for entry in record.tensors.values():
                    entry.tensor.read()
            except RecordError as error:
                assert str(error).startswith("gguf bytes: ")
    for end in range(len(data)):
        try:
            GgufRecorder().from_bytes(data[:end])
        except RecordError:
            pass
        else:
            assert end >= len(data) - 32  # but for the padding at its end
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_damaged_block_is_told_when_it_is_read() -> None:
    recorder = GgufRecorder(type="Q8_0")
    data = bytearray(recorder.to_bytes(Record({"w": ARRAY, "v": ARRAY})))
    data[-5] ^= 1
    record = recorder.from_bytes(data)
    for read in (
        record["v"].tensor.read,
        record["v"].tensor.packed,
        lambda: record["v"].tensor.read_part((slice(0, 3), slice(0, 2), slice(0, 3))),
    ):
        with pytest.raises(RecordError, match="gguf bytes: v: its checksum does not match"):
            read()
    assert record["w"].tensor.read().shape == (3, 2, 256)
    assert GgufRecorder(verify=False).from_bytes(data)["v"].tensor.read().shape == (3, 2, 256)
