"""Whatever goes into a record comes back from every format, compression and target, bit for bit.

Serves: phlox/record/formats/reader.py
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from phlox.record import (
    BFLOAT16,
    DOUBLE,
    FULL,
    HALF,
    BinaryRecorder,
    JsonRecorder,
    PrecisionSettings,
    Record,
    Recorder,
    RecordError,
    load,
    save,
)
from tests.record.support import (
    AS_IS,
    DTYPES,
    FLOATS,
    FORMATS,
    assert_same_elements,
    assert_same_record,
    of_bits,
    recorders,
    records,
)

COMPRESSIONS = [None, "gzip", "zstd"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(record=records())
def test_any_record(name: str, compression: Any, record: Record) -> None:
    recorder = recorders(AS_IS, compression)[name]
    data = recorder.to_bytes(record)
    assert data == recorder.to_bytes(record)  # nothing of time, place or chance is in it
    # Decimal digits cannot tell one NaN from another.
    assert_same_record(recorder.from_bytes(data), record, nan_bits=name != "json-decimal")


@pytest.mark.parametrize("precision", [DOUBLE, FULL, HALF, BFLOAT16, PrecisionSettings(int="i64")])
@pytest.mark.parametrize("name", FORMATS)
def test_precision(name: str, precision: PrecisionSettings, tmp_path: Path) -> None:
    record = Record({dtype.name: np.arange(100).astype(dtype).reshape(4, 25) for dtype in DTYPES})
    recorder = recorders(precision)[name]
    loaded = recorder.load(recorder.save(record, tmp_path / "m"))
    for dtype in DTYPES:
        expected = dtype
        if dtype in FLOATS and precision.float is not None:
            names = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
            expected = np.dtype(names[precision.float])
        if dtype.kind in "iu" and precision.int is not None:
            expected = np.dtype(np.int64)
        assert loaded[dtype.name].tensor.dtype == expected
        values = np.arange(100.0).reshape(4, 25)  # exact at every precision
        actual = loaded[dtype.name].tensor.read().astype(np.float64)
        np.testing.assert_array_equal(actual, values != 0 if dtype.kind == "b" else values)
    assert loaded.header is not None and loaded.header.precision == str(precision)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_all_16_bit_patterns(name: str, dtype: np.dtype[Any]) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        array = bits.view(dtype) if dtype.itemsize == 2 else bits.view(ml_dtypes.bfloat16).astype(dtype)
    recorder = recorders()[name]
    loaded = recorder.from_bytes(recorder.to_bytes(Record({"x": array})))["x"].tensor.read()
    with np.errstate(invalid="ignore"):
        assert_same_elements(loaded, array, nan_bits=name != "json-decimal")


def test_decimal_digits_are_exact() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    array = of_bits(bits, np.dtype(np.float32))
    array = array[np.isfinite(array)]
    recorder = JsonRecorder(AS_IS, numbers="decimal")
    data = recorder.to_bytes(Record({"x": array, "y": np.array([0.1], np.float32)}))
    assert b'"data":[0.1]' in data
    assert_same_elements(recorder.from_bytes(data)["x"].tensor.read(), array)


@pytest.mark.parametrize("name", FORMATS)
def test_every_file_says_what_it_is(name: str) -> None:
    recorder = recorders(HALF)[name]
    header = recorder.from_bytes(recorder.to_bytes(Record({"x": np.ones(2)}))).header
    assert header is not None
    assert (header.schema, header.format, header.precision) == (2, recorder.format, "float=f16, int=as is")
    assert header.phlox[0].isdigit()


@pytest.mark.parametrize("name", FORMATS)
def test_a_newer_schema_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorders()[name]
    monkeypatch.setattr("phlox.record.header.SCHEMA", 3)
    data = recorder.to_bytes(Record({"x": 1}))
    monkeypatch.undo()
    with pytest.raises(RecordError, match="schema version 3.*install a newer"):
        recorder.from_bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_converting_keeps_everything(name: str) -> None:
    record = Record(
        {"b": np.ones(3, np.float16), "n": 1, "a": np.arange(4), "c": np.array(2, np.float32)},
        {"k": "v"},
        aliases={"z": "a"},
    )
    for other in recorders().values():
        first = recorders()[name].from_bytes(recorders()[name].to_bytes(record))
        assert_same_record(other.from_bytes(other.to_bytes(first)), record)


def test_positional_records_survive_every_format() -> None:
    binary = BinaryRecorder(AS_IS, names=False)
    record = Record({"weight": np.ones((2, 3), np.int8), "lr": 0.5, "bias": np.zeros(3)}, aliases={"w": "weight"})
    data = binary.to_bytes(record)
    assert not any(name in data for name in (b"weight", b"bias", b"lr"))
    loaded = binary.from_bytes(data)
    for recorder in (*recorders().values(), BinaryRecorder(AS_IS)):
        again = recorder.from_bytes(recorder.to_bytes(loaded))
        assert again.positional and again.paths() == ["0", "1", "2"] and again["1"] == 0.5
        assert again["0"].tensor.shape == (2, 3) and not again.aliases


def test_binary_is_the_smallest() -> None:
    record = Record({f"blocks.{i}.mlp.{name}": np.ones(3, np.float32) for i in range(20) for name in ("up", "down")})
    sizes = {name: len(recorder.to_bytes(record)) for name, recorder in recorders().items()}
    assert min(sizes, key=sizes.__getitem__) == "binary"
    assert len(BinaryRecorder(names=False).to_bytes(record)) < sizes["binary"]
    assert sizes["binary"] < record.nbytes + 40 * 20  # 4 of them a checksum


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_load_finds_the_format(name: str, compression: Any, tmp_path: Path) -> None:
    record = Record({"weight": np.arange(300.0), "step": 3})
    recorder = recorders(AS_IS, compression)[name]
    path = recorder.save(record, tmp_path / "model.v1")
    assert path.name == "model.v1" + recorder.suffix + {None: "", "gzip": ".gz", "zstd": ".zst"}[compression]
    assert_same_record(load(path), record)
    assert_same_record(load(tmp_path / "model.v1"), record)
    assert_same_record(recorder.load(tmp_path / "model.v1"), record)
    assert_same_record(load(path.rename(tmp_path / "renamed.bin")), record)
    same = save(record, tmp_path / path.name, AS_IS)
    assert same == path
    if name != "json-decimal":
        assert same.read_bytes() == recorder.to_bytes(record)


def test_save_defaults_to_safetensors_in_full_precision(tmp_path: Path) -> None:
    path = save(Record({"weight": np.ones(2)}), tmp_path / "model")
    assert path == tmp_path / "model.safetensors"
    assert load(path)["weight"].tensor.dtype == np.float32


class NpyRecorder(Recorder):
    format = "npy"
    suffix = ".npy"

    def write(self, record: Record, sink: Any) -> None:
        buffer = io.BytesIO()
        np.save(buffer, record["data"].tensor.read())
        sink.write(buffer.getvalue())

    def read(self, source: Any) -> Record:
        return Record({"data": np.load(io.BytesIO(source.data), allow_pickle=False)})


def test_a_recorder_of_ones_own(tmp_path: Path) -> None:
    recorder = NpyRecorder(HALF, "gzip")
    path = recorder.save(Record({"data": np.ones(3)}), tmp_path / "a")
    assert path.name == "a.npy.gz" and recorder.load(tmp_path / "a")["data"].tensor.dtype == np.float16
    path.write_bytes(b"\x93NUMPY\x01")
    with pytest.raises(RecordError, match=r"a\.npy\.gz: not a valid npy record"):
        recorder.load(path)
