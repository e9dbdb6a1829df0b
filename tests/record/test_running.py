"""Checksums that another thread computes while a file is written: those of zlib, of all that was given, in order."""

from __future__ import annotations

import io
import threading
import time
import weakref
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.record import LazyTensor, Record, SafetensorsRecorder, running
from phlox.record.running import Adder, Checksum

PIECES = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40), st.booleans()), max_size=30)


@given(PIECES, st.integers(1, 60))
def test_each_is_that_of_its_own_pieces_in_order(pieces: list[tuple[int, bytes, bool]], much: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "BATCH", much)
        adder = Adder()
        found = [Checksum(adder, start) for start in range(3)]
        for which, data, later in pieces:
            found[which].add(memoryview(data), later=later)
        for which, checksum in enumerate(found):
            expected = zlib.crc32(b"".join(data for number, data, _ in pieces if number == which), which)
            assert int(checksum) == int(checksum) == expected
        adder.close()


def test_much_is_added_up_by_another_thread_and_little_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    crc32 = running.crc32

    def watched(data: Any, start: int, **_: Any) -> int:
        threads.append(threading.current_thread())
        return crc32(data, start)

    monkeypatch.setattr(running, "crc32", watched)
    adder = Adder()
    checksum = Checksum(adder, 0)
    large = np.random.default_rng(0).bytes(running.BATCH)
    checksum.add(memoryview(large)[:-1], later=True)
    assert not threads
    checksum.add(memoryview(large)[-1:], later=True)
    assert int(checksum) == zlib.crc32(large)
    (other,) = set(threads)
    assert other is not threading.current_thread()
    checksum.add(memoryview(b"a little"), later=True)
    assert int(checksum) == zlib.crc32(large + b"a little") and threads[-1] is threading.current_thread()
    adder.close()
    other.join(timeout=30)
    assert not other.is_alive()


class Array(np.ndarray[Any, Any]):
    """One that can be watched."""


def test_what_was_given_is_kept_no_longer_than_until_it_is_added_up() -> None:
    adder = Adder()
    checksum = Checksum(adder, 0)
    alive: list[weakref.ref[Any]] = []
    for number in range(6):
        adder.make_room(2 * running.BATCH)  # as before reading as much as this
        assert sum(each() is not None for each in alive) == 0, number
        array = np.full(2 * running.BATCH, number, np.uint8).view(Array)
        alive.append(weakref.ref(array))
        checksum.add(array.data, later=True)
        del array
    assert int(checksum) == zlib.crc32(b"".join(bytes([n]) * 2 * running.BATCH for n in range(6)))
    adder.close()


@pytest.mark.parametrize("sizes", [[1] * 60, [20, 5, 1, 7, 1, 20, 20, 3, 7, 7, 7], [7] * 20], ids=str)
def test_what_is_copied_from_a_device_does_not_pile_up(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    crc32 = running.crc32

    def slow(data: Any, start: int, **_: Any) -> int:
        time.sleep(0.02)
        return crc32(data, start)

    monkeypatch.setattr(running, "crc32", slow)
    alive: list[weakref.ref[Any]] = []
    peak = 0

    def copied(mib: int) -> Array:
        nonlocal peak
        array = Array((mib << 20,), np.uint8)  # which owns its elements, so that every view keeps it
        array[...] = 0
        alive.append(weakref.ref(array))
        peak = max(peak, sum(found.nbytes for each in alive if (found := each()) is not None))
        return array

    entries = {
        f"t{i:02}": LazyTensor.from_function((mib << 20,), np.uint8, lambda mib=mib: copied(mib))
        for i, mib in enumerate(sizes)
    }
    SafetensorsRecorder().to_bytes(Record(entries))
    assert len(alive) == len(sizes) and peak < (max(sizes) + 16) << 20


def test_what_the_thread_raises_is_raised_where_the_checksum_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_data: Any, _start: int, **_: Any) -> int:
        raise MemoryError("none left")

    monkeypatch.setattr(running, "crc32", fails)
    with pytest.raises(MemoryError, match="none left"):
        SafetensorsRecorder().to_bytes(Record({"a": np.zeros(running.BATCH, np.uint8)}))


class Full(io.BytesIO):
    """A disk that is full at once."""

    def writelines(self, lines: Any, /) -> None:
        raise OSError("no room")


def test_no_thread_is_left_when_writing_fails() -> None:
    before = set(threading.enumerate())
    record = Record({name: np.zeros(running.BATCH, np.uint8) for name in "ab"})
    with pytest.raises(OSError, match="no room"):
        SafetensorsRecorder()._encode(record, Full())
    patience = time.monotonic() + 30
    while set(threading.enumerate()) - before and time.monotonic() < patience:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
