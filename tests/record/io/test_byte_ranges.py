"""Ranges of bytes: those that a part takes, and the mapped files that they are read from."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record.io.byte_ranges import MappedFiles, spans


@given(st.data())
def test_the_ranges_of_a_part_are_its_bytes_and_short_gaps(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    index = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        index.append(slice(start, data.draw(st.integers(start + 1, size))))
    width, gap = data.draw(st.sampled_from([1, 4])), data.draw(st.integers(1, 40))
    places = np.arange(int(np.prod(shape)) * width).reshape(*shape, width)[(*index, ...)].reshape(-1)
    needed = np.zeros(int(np.prod(shape)) * width, bool)
    needed[places] = True
    found = spans(tuple(index), shape, width, gap)
    covered = np.zeros_like(needed)
    for start, stop in found:
        assert needed[start] and needed[stop - 1] and not covered[start:stop].any()
        covered[start:stop] = True
    assert covered[needed].all()
    for start, stop in found:  # what is read in vain is never as long as a gap
        runs = np.flatnonzero(np.diff(np.concatenate(([1], needed[start:stop].astype(int), [1])))).reshape(-1, 2)
        assert all(last - first < gap for first, last in runs)
    assert [start for start, _ in found] == sorted(start for start, _ in found)


def test_files_are_mapped_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    (tmp_path / "folder").mkdir()
    files = MappedFiles(tmp_path)
    assert files.sizes() == {"a": 100} and files.name == str(tmp_path)
    first, second = files.read("a", 10, 20), files.read("a", 15, 16)
    assert first.tolist() == list(range(10, 20)) and np.shares_memory(first, second) and not first.flags.writeable
    with pytest.raises(RecordError, match="a: it ends at byte 100, where 101 were expected"):
        files.read("a", 99, 101)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="b: it cannot be read: No such file"):
        MappedFiles(tmp_path).read("b", 0, 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="pipe: it is not a regular file"):
        MappedFiles(tmp_path).read("pipe", 0, 1)
