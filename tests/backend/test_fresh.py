"""Large pages that the system has to wait for are given up, many come at a time, and nothing else changes."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy, Torch, fresh, halves
from phlox.module import Param
from phlox.record import Record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for pages")
PAGE = fresh._PAGE


class Clock:
    """In place of the module `time`: every look takes so many seconds."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 1e6, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What is asked of the system, which does it, too."""
    calls: list[tuple[int, int, int]] = []
    madvise = fresh._madvise()

    def watched(*given: Any) -> Any:
        calls.append(given)
        done = madvise(*given)
        assert done == 0 or given[2] == fresh._POPULATE  # which older systems do not know
        return done

    monkeypatch.setattr(fresh, "_madvise", lambda: watched)
    monkeypatch.setattr(fresh, "_slow_until", 0.0)
    return calls


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]


def is_without_large_pages(place: int) -> bool:
    """As the system says."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            start, stop = (int(end, 16) for end in head.split("-"))
            here = start <= place < stop
        elif here and head == "VmFlags:":
            return "nh" in line.split()
    raise AssertionError("it is nowhere")


def test_pages_that_come_quickly_are_taken_one_by_one(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "time", Clock(1e-5))
    rest = np.ones(5 * PAGE, np.uint8)
    start = -address(rest) % PAGE
    assert fresh.get_large_pages(rest, 0, start)  # none of the whole ones begins there
    assert np.all(rest == 1)
    assert fresh.get_large_pages(rest, start, start + 1)
    assert np.flatnonzero(rest == 0).tolist() == [start]
    assert fresh.get_large_pages(rest, start + 2, start + PAGE)  # it may be the first to come to that page
    assert np.flatnonzero(rest == 0).tolist() == [start, start + 2]
    assert fresh.get_large_pages(rest, start + 3, start + 2 * PAGE + 1)
    assert np.flatnonzero(rest == 0).tolist() == [start, start + 2, start + 3, start + PAGE, start + 2 * PAGE]
    assert not fresh.get_large_pages(rest[start : start + PAGE - 1], 0, PAGE - 1)  # there is no whole page
    assert not asked


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1])
def test_after_a_slow_one_there_are_no_more_of_them(
    offset: int, asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(2 * fresh._SLOW)
    monkeypatch.setattr(fresh, "time", clock)
    rest = np.empty(6 * PAGE, np.uint8)
    rest = rest[-address(rest) % PAGE + offset :]
    assert not fresh.get_large_pages(rest, 0, rest.size)
    first = address(rest) + (-offset) % PAGE
    (call,) = asked
    assert call[0] == first and call[1] % PAGE == 0 and call[2] == 15
    assert call[1] >= 4 * PAGE and address(rest) + rest.nbytes - PAGE < first + call[1] <= address(rest) + rest.nbytes
    assert is_without_large_pages(first) and is_without_large_pages(first + call[1] - 1)

    clock.step = 0.0
    assert not fresh.get_large_pages(rest, 2 * PAGE, rest.size) and len(asked) == 2  # without waiting again
    clock.now += fresh._REMEMBERED
    assert fresh.get_large_pages(rest, 2 * PAGE, rest.size) and len(asked) == 2


def test_memory_that_has_met_a_slow_page_asks_for_no_more(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(2 * fresh._SLOW)
    monkeypatch.setattr(fresh, "time", clock)
    memory = fresh.Memory(6 * PAGE)
    memory.get_large_pages(0, PAGE)
    assert [what for *_, what in asked] == [fresh._NO_LARGE_PAGES]
    clock.step, clock.now = 0.0, clock.now + fresh._REMEMBERED
    memory.bytes[:] = 1
    memory.get(2 * PAGE, 4 * PAGE)
    assert [what for *_, what in asked] == [fresh._NO_LARGE_PAGES, fresh._POPULATE] and np.all(memory.bytes == 1)
    small = fresh.Memory(PAGE // 2)
    small.get_large_pages(0, PAGE // 2)
    assert len(asked) == 2


# --- room for several


def test_small_arrays_share_what_large_ones_have_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "time", Clock(1e-5))
    single = np.dtype(np.float32)
    shapes = [(3, 5), (1000, 400), (0, 7), (), (1 << 20, 2), (7,), (700, 900)]
    room = fresh.Room(4 * math.prod(shape) for shape in shapes)
    with room.used():
        found = [fresh.empty(shape, single) for shape in shapes]
    for number, (array, memory, start) in enumerate(found):
        array[...] = number
        assert array.shape == shapes[number] and array.dtype == single and array.flags.c_contiguous
        assert memory.bytes[start:].size >= array.nbytes and address(array) % 4 == 0
        assert not array.size or address(array) == address(memory.bytes) + start
    assert all(np.all(array == number) for number, (array, _, _) in enumerate(found))  # nobody is in another's place
    kept = {id(memory) for array, memory, _ in found if array.nbytes < fresh.LARGE}
    assert len(kept) == 1 and id(found[4][1]) not in kept
    assert all(address(array) % fresh._ALIGNMENT == 0 for array, _, _ in found if 0 < array.nbytes < fresh.LARGE)
    alone, memory, start = fresh.empty((7,), single)
    assert id(memory) not in kept and start == 0 and memory.bytes.nbytes == alone.nbytes


def test_room_that_is_too_small_grows_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "time", Clock(1e-5))
    monkeypatch.setattr(fresh, "_CHUNK", 1000)
    room = fresh.Room([2500])
    found = [room.take(nbytes) for nbytes in (600, 300, 600, 3000)]
    for memory, start in found:
        assert (address(memory.bytes) + start) % fresh._ALIGNMENT == 0
    sizes = [memory.bytes.size for memory, _ in found]
    assert found[0][0] is found[1][0] and len({id(memory) for memory, _ in found}) == 3
    assert sizes[0] == sizes[2] == 1000 + fresh._ALIGNMENT and sizes[3] == fresh._rounded(3000) + fresh._ALIGNMENT


def test_there_is_no_room_for_several_where_large_pages_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(fresh, "time", clock)
    monkeypatch.setattr(fresh, "_slow_until", clock.now + 1.0)
    room = fresh.Room([5000])
    memories = [room.take(700) for _ in range(3)]
    assert len({id(memory) for memory, _ in memories}) == 3 and all(start == 0 for _, start in memories)
    assert all(memory.bytes.nbytes == 700 for memory, _ in memories)


def test_what_threads_take_from_one_room_is_each_ones_own() -> None:
    room = fresh.Room([1 << 20])
    taken = [list[np.ndarray[Any, Any]]() for _ in range(4)]

    def work(number: int) -> None:
        with room.used():
            for size in range(1, 200):
                array, _, _ = fresh.empty((size,), np.dtype(np.int64))
                array[...] = number
                taken[number].append(array)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.all(array == number) for number, arrays in enumerate(taken) for array in arrays)


@pytest.mark.parametrize("backend", [NumPy(), Torch(), Jax()], ids=repr)
@pytest.mark.parametrize("is_slow", [False, True], ids=["quick", "slow"])
def test_a_model_that_is_cast_as_it_is_loaded(backend: Any, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "time", Clock(1.0 if is_slow else 1e-5))
    rng = np.random.default_rng(0)
    arrays = {
        f"{i}.w": rng.normal(size=shape).astype(np.float16) for i, shape in enumerate([(1500, 900), (30, 7), (9,)])
    }

    class Part(px.Module):
        def __init__(self, shape: tuple[int, ...]) -> None:
            self.w = Param.deferred(shape, nn.Zeros(), device=backend.device())

    class Whole(px.Module):
        def __init__(self) -> None:
            self.parts = [Part(array.shape) for array in arrays.values()]

    model = Whole().load_record(Record({f"parts.{name}": array for name, array in arrays.items()}))
    for part, array in zip(model.parts, arrays.values(), strict=True):
        np.testing.assert_array_equal(part.w.val().numpy(), array.astype(np.float32))


def are_there(place: int, length: int) -> list[bool]:
    """Of pages, as the system says."""
    found = (ctypes.c_ubyte * (-(-length // mmap.PAGESIZE)))()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert mincore(place, length, found) == 0, ctypes.get_errno()
    return [bool(page & 1) for page in found]


def test_pages_come_together_with_what_they_hold(asked: list[tuple[int, int, int]]) -> None:
    page, pages = mmap.PAGESIZE, 256
    memory = np.frombuffer(mmap.mmap(-1, pages * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint16)
    memory[10 * page // 2] = 7
    start, stop = 10 * page // 2 + 5, 100 * page // 2 + 1
    fresh.get_pages(memory, start, start + fresh._MANY // 2 - 1)  # not worth it
    assert not asked
    fresh.get_pages(memory, start, stop)
    assert asked == [(address(memory) + 10 * page, 91 * page, fresh._POPULATE)]
    if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
        there = are_there(address(memory), memory.nbytes)
        assert [at for at, is_there in enumerate(there) if is_there] == list(range(10, 101))
    assert np.flatnonzero(memory).tolist() == [10 * page // 2] and memory[10 * page // 2] == 7


@pytest.mark.parametrize("step", [0.0, 1.0], ids=["quick", "slow"])
def test_what_is_cast_is_the_same(
    step: float, asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "time", Clock(step))
    numbers = np.random.default_rng(0).normal(size=(11, 300_007)).astype(np.float16)
    found = halves.recast(numbers, np.dtype(np.float32))
    assert found is not None and found.nbytes > fresh.LARGE
    np.testing.assert_array_equal(found, numbers.astype(np.float32))
    assert {what for *_, what in asked} == {fresh._POPULATE, *([fresh._NO_LARGE_PAGES] if step else [])}
    asked.clear()
    small = halves.recast(numbers[0], np.dtype(np.float32))
    assert small is not None and small.nbytes < fresh.LARGE
    assert {what for *_, what in asked} == {fresh._POPULATE}
    parts = sorted((start, start + length) for start, length, _ in asked)
    assert parts[0][0] <= address(small) and address(small) + small.nbytes <= parts[-1][1]
    assert all(end >= start for (_, end), (start, _) in itertools.pairwise(parts))
    np.testing.assert_array_equal(small, numbers[0].astype(np.float32))
    asked.clear()
    assert halves.recast(numbers[0, :1000], np.dtype(np.float32)) is not None and not asked


@pytest.mark.parametrize("source", [np.float16, np.float32], ids=str)
@pytest.mark.parametrize("instructions", [True, False])
def test_no_block_is_touched_but_ones_own(instructions: bool, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread is through with all the other blocks before this one gets its page."""
    if not instructions:
        monkeypatch.setattr(halves, "_instructions", lambda: None)
    get_large_pages, works = fresh.get_large_pages, list[Any]()

    def late(*given: Any) -> bool:
        if works:
            works.pop()(0, 0)
        return get_large_pages(*given)

    monkeypatch.setattr(fresh, "get_large_pages", late)
    monkeypatch.setattr(halves, "spread", lambda work, *_: (works.append(work), work(0, 0)))
    numbers = np.full(5 << 20, 1.2345, source)
    target = np.dtype(np.float32 if source is np.float16 else np.float16)
    found = halves.recast(numbers, target)
    assert found is not None and found.nbytes > fresh.LARGE and not works
    np.testing.assert_array_equal(found, numbers.astype(target))
