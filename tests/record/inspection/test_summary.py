from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from phlox.errors import RecordError
from phlox.record import JsonRecorder, LazyTensor, Record, SafetensorsRecorder, load
from phlox.record.inspection.summary import Damage, Statistics, Total, damages, open_file, statistics, totals
from tests.record.support import AS_IS, FLOATS, INTS, assert_same_record, of_bits, recorders, records

RNG = np.random.default_rng(11)


def of(array: Any) -> Statistics:
    return statistics(LazyTensor.from_array(np.asarray(array)))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_statistics_against_exact_sums(dtype: np.dtype[Any]) -> None:
    """Any bits, some blocks of them, against `math.fsum` and Python's own least and greatest."""
    bits = RNG.integers(0, 256, (150_001, dtype.itemsize), np.uint8).view(f"u{dtype.itemsize}").reshape(-1)
    array = of_bits(bits, dtype)
    if dtype == np.float64:  # whose sums no float64 holds
        array = np.where(np.abs(array) < 1e290, array, np.nan)
    numbers = [x for x in array.tolist() if math.isfinite(x)]
    found = of(array.reshape(3, -1) if array.size % 3 == 0 else array)
    assert (found.min, found.max, found.non_finite) == (min(numbers), max(numbers), array.size - len(numbers))
    assert found.mean == pytest.approx(
        math.fsum(numbers) / len(numbers), rel=1e-9, abs=1e-12 * abs(float(max(numbers)))
    )


def test_statistics_at_the_edges() -> None:
    assert of(np.zeros((0, 3))) == Statistics(None, None, None, 0)
    assert of([np.nan, np.inf]) == Statistics(None, None, None, 2)
    assert of([True, False, True, True]) == Statistics(False, True, 0.75, 0)
    assert of(np.array([2**64 - 1, 3], np.uint64)).max == 2**64 - 1
    assert of(np.array(5, np.int8)) == Statistics(5, 5, 5.0, 0)
    assert of(np.full(200_000, 1e308)).mean == pytest.approx(1e308)
    assert of(np.full(200_000, 1, ml_dtypes.bfloat16)).mean == 1.0
    assert of(np.full(200_000, 0.1, np.float32)).mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_statistics_in_little_memory(tmp_path: Path) -> None:
    array = RNG.normal(size=1 << 22).astype(np.float32)
    tensor = load(SafetensorsRecorder().save(Record({"x": array}), tmp_path / "x"))["x"].tensor
    tracemalloc.start()
    statistics(tensor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes / 4


def test_totals() -> None:
    record = Record(
        {
            "a": np.zeros((2, 3)),
            "b": np.zeros(100, ml_dtypes.bfloat16),
            "c": np.zeros(4),
            "step": 1,
            "d": np.zeros(0, bool),
        }
    )
    found = totals(record[path] for path in record)
    assert list(found.items()) == [("bf16", Total(1, 100, 200)), ("f64", Total(2, 10, 80)), ("bool", Total(1, 0, 0))]


@given(records())
def test_damages_of_a_sound_record(record: Record) -> None:
    assert damages(record) == []


def test_damages(tmp_path: Path) -> None:
    def lies() -> np.ndarray:
        return np.zeros(2)

    broken = LazyTensor.from_function((3,), np.float64, lies, "b")
    assert [one.path for one in damages(Record({"a": np.ones(3), "b": broken, "c": np.ones(1)}))] == ["b"]
    path = SafetensorsRecorder().save(Record({"x": np.ones(5), "y": np.ones(5)}), tmp_path / "x")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (found,) = damages(load(path))
    assert isinstance(found, Damage) and found.path == "y" and str(path) in found.reason
    assert damages(load(path, verify=False)) == []


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"], ids=str)
@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary", "json"])
def test_open_file(name: str, compression: Any, tmp_path: Path) -> None:
    record = Record({"x": np.ones(5), "step": 3}, {"a": "b"}, aliases={"y": "x"})
    path = recorders(AS_IS, compression)[name].save(record, tmp_path / "file")
    for given_path in (path, tmp_path / "file", str(path)):
        found = open_file(given_path)
        assert (found.path, found.format, found.compression, found.size) == (
            path,
            name,
            compression,
            path.stat().st_size,
        )
        assert_same_record(found.record, record)
    path.rename(tmp_path / "renamed")  # the content says what it is
    assert open_file(tmp_path / "renamed").format == name


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no such file"):
        open_file(tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError, match=r"x\.json: not a valid json record"):
        open_file(tmp_path / "x.json")
    path = JsonRecorder(compression="gzip").save(Record({"x": np.zeros(10_000)}), tmp_path / "bomb")
    with pytest.raises(RecordError, match="max_bytes"):
        open_file(path, max_bytes=10)
