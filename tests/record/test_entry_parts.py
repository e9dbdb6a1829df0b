"""Parts of tensors, and the shards that a process has to save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.backend.sharding import Shard
from phlox.record import HALF, LazyTensor, Record, RecordError, RecordWarning, TensorEntry, load, save
from phlox.record import entry as entries
from phlox.record.io.checksums import contiguous
from tests.record.support import AS_IS, FORMATS, arrays, assert_same_elements, recorders


@st.composite
def array_and_index(draw: st.DrawFn) -> tuple[np.ndarray, tuple[slice, ...]]:
    array = draw(arrays())
    index: list[slice] = []
    for size in array.shape:
        start = draw(st.integers(0, size))
        index.append(slice(start, draw(st.integers(start, size))))
    return array, tuple(index)


@given(array_and_index())
def test_a_part_is_a_slice_of_the_whole(case: tuple[np.ndarray, tuple[slice, ...]]) -> None:
    array, index = case
    expected = np.array(array[index], order="C").reshape([s.stop - s.start for s in index])
    assert_same_elements(LazyTensor.from_array(array).read_part(index), expected)


@given(array_and_index())
def test_a_part_is_contiguous_where_its_numbers_in_order_are(case: tuple[np.ndarray, tuple[slice, ...]]) -> None:
    array, index = case
    places = np.arange(array.size).reshape(array.shape)[index].reshape(-1)
    span = contiguous(index, array.shape)
    if places.size == 0:
        assert span in (None, (0, 0))
    elif np.array_equal(places, np.arange(places[0], places[0] + places.size)):
        assert span == (places[0], places[0] + places.size)
    else:
        assert span is None


@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_files_of_every_format(tmp_path: Path, name: str) -> None:
    array = np.arange(60, dtype=np.float32).reshape(4, 5, 3)
    path = recorders()[name].save(Record({"w": array, "flag": np.array([True, False])}), tmp_path / "record")
    tensor = load(path)["w"].tensor
    for index in [(slice(1, 3), slice(None), slice(None)), (slice(0, 4), slice(2, 4), slice(1, 3))]:
        assert_same_elements(tensor.read_part(index), np.ascontiguousarray(array[index]))
    assert load(path)["flag"].tensor.read_part((slice(1, 2),)).tolist() == [False]


@pytest.mark.parametrize(
    "index",
    [(), (slice(0, 2),), (slice(0, 4), slice(0, 2)), (slice(0, 2, 2), slice(0, 2)), (1, slice(0, 2)), [slice(1)]],
)
def test_what_is_no_part_is_refused(index: Any) -> None:
    with pytest.raises(RecordError, match=r"layers.w: .*shape \(3, 2\)"):
        LazyTensor.from_array(np.zeros((3, 2)), "layers.w").read_part(index)


def test_a_part_of_a_mapped_file_is_a_view_of_it(tmp_path: Path) -> None:
    save(Record({"w": np.arange(1 << 16, dtype=np.float32).reshape(256, 256)}), tmp_path / "r")
    tensor = load(tmp_path / "r")["w"].tensor
    part = tensor.read_part((slice(8, 16), slice(0, 256)))
    assert not part.flags.writeable and not part.flags.owndata
    assert np.shares_memory(part, tensor.read())


def test_only_the_part_is_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    cast: list[int] = []
    plain = entries.cast_elements
    monkeypatch.setattr(
        entries, "cast_elements", lambda array, *more: (cast.append(array.size), plain(array, *more))[1]
    )
    tensor = LazyTensor.from_array(np.ones((4, 4), np.float32)).astype(np.float16)
    assert tensor.read_part((slice(1, 2), slice(0, 4))).dtype == np.float16
    again = tensor.astype(np.float64).read_part((slice(1, 2), slice(0, 2)))
    assert again.dtype == np.float64 and cast == [4, 2, 2]


def test_a_part_that_breaks_its_promise_is_refused() -> None:
    whole = LazyTensor.from_array(np.zeros((2, 2)), "w")
    tensor = LazyTensor((2, 2), whole.dtype, whole.dtype, whole.source, "w", part=lambda index: np.zeros(3))
    with pytest.raises(RecordError, match=r"w: its source gave float64 of shape \(3,\)"):
        tensor.read_part((slice(0, 1), slice(0, 2)))


# --- checksums


def damaged(tmp_path: Path, at: int) -> LazyTensor:
    """A tensor [8, 16] of float64 whose byte `at` was changed in its file."""
    path = save(Record({"w": np.arange(128.0).reshape(8, 16)}), tmp_path / "r", precision=AS_IS)
    data = bytearray(path.read_bytes())
    data[len(data) - 1024 + at] ^= 1
    path.write_bytes(data)
    return load(path)["w"].tensor


def rows(first: int, last: int) -> tuple[slice, slice]:
    return slice(first, last), slice(0, 16)


def test_rows_are_verified_once_all_have_been_read(tmp_path: Path) -> None:
    tensor = damaged(tmp_path, 3)
    tensor.read_part(rows(4, 8))
    tensor.read_part(rows(2, 4))
    tensor.read_part(rows(4, 8))
    with pytest.raises(RecordError, match="w: its checksum does not match"):
        tensor.read_part(rows(0, 2))
    with pytest.raises(RecordError, match="w: its checksum does not match"):
        tensor.read()


def test_rows_that_overlap_are_verified_too(tmp_path: Path) -> None:
    tensor = damaged(tmp_path, 1020)
    tensor.read_part(rows(0, 5))
    with pytest.raises(RecordError, match="w: its checksum does not match"):
        tensor.read_part(rows(3, 8))


def test_columns_verify_the_whole(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="w: its checksum does not match"):
        damaged(tmp_path, 3).read_part((slice(0, 8), slice(4, 8)))


def test_what_is_whole_passes_in_any_order(tmp_path: Path) -> None:
    array = np.arange(128.0).reshape(8, 16)
    path = save(Record({"w": array}), tmp_path / "r", precision=AS_IS)
    tensor = load(path)["w"].tensor
    for part in [rows(4, 8), rows(0, 0), rows(0, 3), rows(3, 4), rows(1, 2)]:
        assert_same_elements(tensor.read_part(part), array[part])
    assert_same_elements(tensor.read(), array)


# --- shards


def test_shards_are_cast_with_their_tensor() -> None:
    array = np.array([[1.0, 1e-9], [2.0, 3.0]], np.float32)
    whole = LazyTensor.from_array(array, "w")
    shard = Shard((slice(0, 1), slice(0, 2)), lambda: array[:1])
    tensor = LazyTensor((2, 2), whole.dtype, whole.dtype, whole.source, "w", shards=lambda: [shard])
    assert tensor.shards is not None and tensor.shards()[0] is shard
    lost: list[Any] = []
    half = Record({"w": TensorEntry(tensor)}).with_precision(HALF, lost)["w"].tensor
    assert half.shards is not None
    (found,) = half.shards()
    assert found.index == shard.index and not lost
    assert_same_elements(found.read(), array[:1].astype(np.float16))
    assert lost == [("w", np.dtype(np.float16), 1)]
    with pytest.warns(RecordWarning):
        assert [s.read().dtype for s in tensor.astype(np.float16).astype(np.float64).shards()] == [np.float64]  # pyright: ignore[reportOptionalCall]
