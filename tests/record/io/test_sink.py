"""What a sink writes, and its checksums: one after the other and on several cores, the same bytes."""

from __future__ import annotations

import io
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record import HALF, LazyTensor, Record, Sink, load, save
from phlox.record.io import files, sink
from phlox.record.io.files import atomic_write

CAST = st.tuples(st.integers(0, 40), st.sampled_from([None, np.float16, np.float64]))


def tensors_of(sizes: list[tuple[int, Any]]) -> list[LazyTensor]:
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    tensors = [LazyTensor.from_array(numbers[n : n + size].copy()) for n, (size, _) in enumerate(sizes)]
    return [tensor if to is None else tensor.astype(to) for tensor, (_, to) in zip(tensors, sizes, strict=True)]


def written(write: Callable[[Sink], Any], folder: Path) -> tuple[bytes, Any]:
    """Into a file."""
    with atomic_write(folder / "m", durable=False) as file:
        found = write(Sink(file, can_patch=True))
    return (folder / "m").read_bytes(), found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sizes=st.lists(CAST, max_size=8), call=st.sampled_from([8, 24, 1 << 20]), large=st.sampled_from([16, 1 << 24]))
def test_whoever_writes_the_bytes_and_the_checksums_are_the_same(
    sizes: list[tuple[int, Any]], call: int, large: int, tmp_path: Path
) -> None:
    tensors = tensors_of(sizes)

    def write(into: Sink) -> list[int]:
        into.write(b"before")
        sums = into.tensors((tensor, start) for start, tensor in enumerate(tensors))
        into.write(b"after")
        assert into.position == 11 + sum(tensor.nbytes for tensor in tensors)
        into.patch(2, b"FOR")
        into.write(b"wards")
        return sums

    whole = [tensor.read().tobytes() for tensor in tensors]
    expected = b"beFORe" + b"".join(whole) + b"afterwards"
    with pytest.MonkeyPatch.context() as patch:
        for module in (files, sink):
            patch.setattr(module, "CALL", call)
        patch.setattr(sink, "LARGE", large)
        patch.setattr(sink, "_SHARE", 8)
        in_file = written(write, tmp_path)
        memory = io.BytesIO()
        found = write(Sink(memory, can_patch=True))
    assert in_file == (expected, found) and memory.getvalue() == expected
    assert found == [zlib.crc32(data, start) for start, data in enumerate(whole)]


@pytest.mark.parametrize("shape", [(40,), (1 << 20,), (6 << 20,)], ids=str)
@pytest.mark.parametrize("to", [np.float32, np.float16], ids=str)
def test_much_is_written_by_several_threads_and_little_is_not(
    shape: Any, to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 2)
    threads: set[threading.Thread] = set()
    place = sink._write_part

    def watched(*given: Any) -> int:
        threads.add(threading.current_thread())
        time.sleep(0.02)  # or one is through with all before the other begins
        return place(*given)

    monkeypatch.setattr(sink, "_write_part", watched)
    each = [LazyTensor.from_array(np.full(shape, n, np.float32)).astype(to) for n in range(4)]
    found, _ = written(lambda into: into.tensors((tensor, 0) for tensor in each), tmp_path)
    assert found == b"".join(tensor.read().tobytes() for tensor in each)
    assert (len(threads) > 1) == (shape[0] > 40)
    assert not any(thread.is_alive() for thread in threads - {threading.current_thread()})


@pytest.mark.parametrize("precision", [None, HALF], ids=["as it is", "cast"])
def test_the_first_call_that_comes_to_a_piece_of_the_file_writes_all_of_it(
    precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 2)
    begun: dict[int, tuple[int, int]] = {}
    set_to_work: list[tuple[int, int]] = []
    lock = threading.Lock()

    def watch(write: Any, size: Callable[[Any], int]) -> Any:
        def watched(file: int, data: Any, at: int) -> int:
            with lock:
                begun.setdefault(at // files.CALL, (at, at + size(data)))
            count: int = write(file, data, at)
            return count

        return watched

    monkeypatch.setattr(os, "pwrite", watch(os.pwrite, len))
    monkeypatch.setattr(os, "pwritev", watch(os.pwritev, lambda parts: sum(map(len, parts))))
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, at, count, _what: set_to_work.append((at, at + count)))
    sizes = [3, 300_001, 5_000_000, 7, 70_000, 0, 900_000, 11, 2_000_003, 13]
    numbers = np.random.default_rng(0)
    entries = {f"t{i}": numbers.standard_normal(size, np.float32) for i, size in enumerate(sizes)}
    path = save(Record(entries), tmp_path / "m", *([] if precision is None else [precision]))
    for name, entry in load(path).tensors.items():
        found = entries[name].astype(np.float32 if precision is None else np.float16)
        np.testing.assert_array_equal(entry.tensor.read(), found)
    pieces = [begun[number] for number in sorted(begun)]
    assert [stop for _, stop in pieces[:-1]] == [start for start, _ in pieces[1:]] and len(pieces) > 10
    assert pieces[-1][1] == path.stat().st_size
    assert set(pieces) <= set(set_to_work)  # each once it is whole


def test_a_system_that_writes_no_several_parts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"t{i}": np.full(300_000, i, np.float32) for i in range(9)}
    whole = save(Record(entries), tmp_path / "whole").read_bytes()
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: os.pwrite(file, b"".join(parts)[:700_001], at))
    assert save(Record(entries), tmp_path / "some").read_bytes() == whole
    for name, entry in load(tmp_path / "some").tensors.items():
        np.testing.assert_array_equal(entry.tensor.read(), entries[name])
    monkeypatch.delattr(os, "pwritev")
    assert save(Record(entries), tmp_path / "none").read_bytes() == whole


class Array(np.ndarray[Any, Any]):
    """One that can be watched."""


@pytest.mark.parametrize("sizes", [[1] * 60, [20, 5, 1, 7, 1, 20, 20, 3, 7, 7, 7], [7] * 20], ids=str)
@pytest.mark.parametrize("precision", [None, HALF], ids=["as it is", "cast"])
def test_what_is_copied_from_a_device_does_not_pile_up(
    precision: Any, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 8)
    crc32 = sink.crc32

    def slow(data: Any, start: int) -> int:
        time.sleep(0.002)
        return crc32(data, start)

    monkeypatch.setattr(sink, "crc32", slow)
    alive: list[weakref.ref[Any]] = []
    lock = threading.Lock()
    peak = 0
    dtype = np.uint8 if precision is None else np.float32

    def copied(mib: int) -> Array:
        nonlocal peak
        array = Array(((mib << 20) // dtype().itemsize,), dtype)  # which owns its elements, so that every view keeps it
        array[...] = 0
        with lock:
            alive.append(weakref.ref(array))
            peak = max(peak, sum(found.nbytes for each in alive if (found := each()) is not None))
        return array

    entries = {
        f"t{i:02}": LazyTensor.from_function(((mib << 20) // dtype().itemsize,), dtype, lambda mib=mib: copied(mib))
        for i, mib in enumerate(sizes)
    }
    save(Record(entries), tmp_path / "m", *([] if precision is None else [precision]), durable=False)
    assert len(alive) == len(sizes) and peak < (max(sizes) + 16) << 20


def test_what_a_thread_raises_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 2)
    before = set(threading.enumerate())

    def fails(_data: Any, _start: int) -> int:
        raise MemoryError("none left")

    record = Record({name: np.zeros(4 << 20, np.uint8) for name in "abc"})
    with monkeypatch.context() as patch:
        patch.setattr(sink, "crc32", fails)
        with pytest.raises(MemoryError, match="none left"):
            save(record, tmp_path / "m")
    large = {name: np.full(2 << 20, 1e6, np.float32) for name in "abc"}
    with pytest.raises(RecordError, match=r"a: the value 1000000\.0 does not fit float16"):
        save(Record(large), tmp_path / "m", HALF)
    assert set(threading.enumerate()) <= before and not list(tmp_path.iterdir())
