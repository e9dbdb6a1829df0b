"""Memory: saving costs a block, reading a mapped tensor nothing, whatever the precision."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.record import BFLOAT16, DOUBLE, FULL, HALF, Record, load
from tests.record.support import AS_IS, recorders

SIZE = 4_000_000  # elements: 16 MB


def peak_of(function: Callable[[], Any]) -> int:
    """Bytes that `function` allocates at most beyond what it finds; of NumPy's arrays, too."""
    function_result: Any = None
    tracemalloc.start()
    try:
        function_result = function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del function_result


@pytest.fixture(scope="module")
def record() -> Record:
    numbers = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    return Record({"w": numbers.reshape(1000, -1), "n": np.arange(100_000), "v": [1, 2]})


def test_the_meter_sees_arrays() -> None:
    assert peak_of(lambda: np.ones(SIZE, np.uint8)) > SIZE


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("precision", [AS_IS, DOUBLE, FULL, HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary", "json"])
def test_no_whole_copy_exists_when_a_tensor_is_saved(
    name: str, precision: Any, compression: Any, record: Record, tmp_path: Path
) -> None:
    recorder = recorders(precision, compression)[name]
    assert peak_of(lambda: recorder.save(record, tmp_path / "m")) < 4_000_000


@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary"])
def test_reading_a_mapped_tensor_copies_nothing(name: str, record: Record, tmp_path: Path) -> None:
    path = recorders()[name].save(record, tmp_path / "m")
    arrays: list[np.ndarray] = []

    def read() -> None:
        loaded = load(path)
        arrays.extend(entry.tensor.read() for entry in loaded.tensors.values())

    assert peak_of(read) < 300_000
    np.testing.assert_array_equal(arrays[0], record["w"].tensor.read())


@pytest.mark.parametrize("name", ["safetensors", "msgpack", "binary"])
def test_reading_at_another_precision_costs_that_tensor(name: str, record: Record, tmp_path: Path) -> None:
    path = recorders()[name].save(record, tmp_path / "m")
    peak = peak_of(lambda: load(path).with_precision(HALF)["w"].tensor.read())
    assert 2 * SIZE <= peak < 2 * SIZE + 2_000_000
    # In blocks, as it is written again, not even that.
    assert peak_of(lambda: recorders(HALF)[name].save(load(path), tmp_path / "half")) < 3_000_000


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_file_is_unpacked_once(compression: Any, record: Record, tmp_path: Path) -> None:
    path = recorders(AS_IS, compression)["safetensors"].save(record, tmp_path / "m")
    peak = peak_of(lambda: [entry.tensor.read() for entry in load(path).tensors.values()])
    assert record.nbytes <= peak < 1.2 * record.nbytes + 3_000_000
