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
from phlox.backend import Jax, NumPy, Torch
from phlox.host import float_casts, memory, thread_pool
from phlox.module import Param, records
from phlox.record import Record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for pages")
PAGE = memory._PAGE
HAS_LARGE_PAGES = memory._has_large_pages


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
    madvise = memory._madvise()

    def watched(*given: Any) -> Any:
        calls.append(given)
        done = madvise(*given)
        assert done == 0 or given[2] == memory._POPULATE  # which older systems do not know
        return done

    monkeypatch.setattr(memory, "_madvise", lambda: watched)
    monkeypatch.setattr(memory, "_slow_until", 0.0)
    monkeypatch.setattr(memory, "_has_large_pages", lambda: True)
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
    monkeypatch.setattr(memory, "time", Clock(1e-5))
    rest = np.ones(5 * PAGE, np.uint8)
    start = -address(rest) % PAGE
    buffer = memory.Buffer(rest)
    for part, there in (
        ((0, start), []),  # none of the whole ones begins there
        ((start, start + 1), [start]),
        ((start + 2, start + PAGE), [start, start + 2]),  # it may be the first to come to that page
        (
            (start + 3, start + 2 * PAGE + 1),
            [start, start + 2, start + 3, start + PAGE, start + 2 * PAGE],
        ),
    ):
        buffer.get_large_pages(*part)
        assert buffer.has_large_pages and np.flatnonzero(rest == 0).tolist() == there
    assert not asked


def test_memory_without_a_whole_large_page_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 1)
    rest = np.ones(3 * PAGE, np.uint8)
    start = -address(rest) % PAGE
    assert memory.Buffer(rest[start : start + PAGE]).has_large_pages
    assert not memory.Buffer(rest[start + 1 : start + PAGE]).has_large_pages
    assert not memory.Buffer(rest[start : start + PAGE - mmap.PAGESIZE]).has_large_pages
    # All the same, the system counts in whole small pages: this one is there, and large.
    assert memory.Buffer(rest[start : start + PAGE - 1]).has_large_pages


@pytest.mark.parametrize(
    ("said", "has"),
    [("always [madvise] never", True), ("[always] madvise never", True), ("always madvise [never]", False)],
)
def test_whether_there_are_any_the_system_says(said: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: said)
    assert HAS_LARGE_PAGES.__wrapped__() == has


def test_where_the_system_says_nothing_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    assert not HAS_LARGE_PAGES.__wrapped__()


def test_where_the_system_has_none_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_has_large_pages", lambda: False)
    assert not memory.Buffer.of(4 * memory.LARGE).has_large_pages and not memory.large_pages_come_quickly()


@pytest.mark.parametrize("end", [0, 1, mmap.PAGESIZE - 1, mmap.PAGESIZE, PAGE - 1])
@pytest.mark.parametrize("offset", [0, 1, PAGE - 1])
def test_after_a_slow_one_there_are_no_more_of_them(
    offset: int, end: int, asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(2 * memory._SLOW)
    monkeypatch.setattr(memory, "time", clock)
    rest = np.empty(7 * PAGE, np.uint8)
    start = -address(rest) % PAGE
    rest = rest[start + offset : start + 6 * PAGE - end]
    buffer = memory.Buffer(rest)
    buffer.get_large_pages(0, rest.size)
    first, last = address(rest) + (-offset) % PAGE, address(rest) + rest.size + end - PAGE * (end >= mmap.PAGESIZE)
    assert not buffer.has_large_pages and asked == [(first, last - first, memory._NO_LARGE_PAGES)]
    assert is_without_large_pages(first) and is_without_large_pages(last - 1)
    assert not memory.large_pages_come_quickly()

    clock.step = 0.0
    assert not memory.Buffer(rest).has_large_pages and len(asked) == 2  # without waiting again
    clock.now += memory._PAUSE * 2 * memory._SLOW  # so long did it take
    assert memory.large_pages_come_quickly()
    other = memory.Buffer(rest)
    other.get_large_pages(2 * PAGE, rest.size)
    assert other.has_large_pages and len(asked) == 2


def test_memory_that_has_met_a_slow_page_asks_for_no_more(
    asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(2 * memory._SLOW)
    monkeypatch.setattr(memory, "time", clock)
    buffer = memory.Buffer.of(6 * PAGE)
    buffer.get_large_pages(0, PAGE)
    assert [what for *_, what in asked] == [memory._NO_LARGE_PAGES]
    clock.step, clock.now = 0.0, clock.now + 1.0
    buffer.bytes[:] = 1
    buffer.get(2 * PAGE, 4 * PAGE)
    assert [what for *_, what in asked] == [memory._NO_LARGE_PAGES, memory._POPULATE] and np.all(buffer.bytes == 1)
    small = memory.Buffer.of(PAGE // 2)
    small.get_large_pages(0, PAGE // 2)
    assert len(asked) == 2


# --- room for several


def test_small_arrays_share_what_large_ones_have_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "time", Clock(1e-5))
    single = np.dtype(np.float32)
    shapes = [(3, 5), (1000, 400), (0, 7), (), (1 << 20, 2), (7,), (700, 900)]
    room = memory.Arena(4 * math.prod(shape) for shape in shapes)
    with room.used():
        found = [memory.empty(shape, single) for shape in shapes]
    for number, (array, buffer, start) in enumerate(found):
        array[...] = number
        assert array.shape == shapes[number] and array.dtype == single and array.flags.c_contiguous
        assert buffer.bytes[start:].size >= array.nbytes and address(array) % 4 == 0
        assert not array.size or address(array) == address(buffer.bytes) + start
    assert all(np.all(array == number) for number, (array, _, _) in enumerate(found))  # nobody is in another's place
    kept = {id(buffer) for array, buffer, _ in found if array.nbytes < memory.LARGE}
    assert len(kept) == 1 and id(found[4][1]) not in kept  # for they are of one thread
    assert all(address(array) % memory._ALIGNMENT == 0 for array, _, _ in found if 0 < array.nbytes < memory.LARGE)
    alone, buffer, start = memory.empty((7,), single)
    assert id(buffer) not in kept and start == 0 and buffer.bytes.nbytes == alone.nbytes


def test_room_consists_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CHUNK", 1000)
    room = memory.Arena([2500])
    found = [room.take(nbytes) for nbytes in (600, 300, 600, 3000, 600, 600, 600)]  # more than was said
    for buffer, start in found:
        assert (address(buffer.bytes) + start) % memory._ALIGNMENT == 0
    sizes = [buffer.bytes.size - memory._ALIGNMENT for buffer, _ in found]
    assert sizes == [1000, 1000, 1000, memory._rounded(3000), 1000, 1000, 1000]
    assert [one is other for (one, _), (other, _) in itertools.pairwise(found)] == [True, *[False] * 5]
    assert memory.Arena([]).take(0)[0].bytes.size == memory._ALIGNMENT


def test_every_thread_has_a_chunk_of_its_own() -> None:
    room = memory.Arena([1000] * 100)
    chunks: list[int] = []

    def work() -> None:
        chunks.append(len({id(room.take(1000)[0]) for _ in range(3)}))
        chunks.append(id(room.take(1000)[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert chunks[0] == chunks[2] == 1 and chunks[1] != chunks[3]


def test_what_threads_take_from_one_room_is_each_ones_own() -> None:
    room = memory.Arena([1 << 20])
    taken = [list[np.ndarray[Any, Any]]() for _ in range(4)]

    def work(number: int) -> None:
        with room.used():
            for size in range(1, 200):
                array, _, _ = memory.empty((size,), np.dtype(np.int64))
                array[...] = number
                taken[number].append(array)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.all(array == number) for number, arrays in enumerate(taken) for array in arrays)


class Part(px.Module):
    def __init__(self, shape: tuple[int, ...], device: px.Device) -> None:
        self.w = Param.deferred(shape, nn.Zeros(), device=device)


class Whole(px.Module):
    def __init__(self, shapes: list[tuple[int, ...]], device: px.Device) -> None:
        self.parts = [Part(shape, device) for shape in shapes]


@pytest.mark.parametrize("backend", [NumPy(), Torch(), Jax()], ids=repr)
@pytest.mark.parametrize("is_slow", [False, True], ids=["quick", "slow"])
def test_a_model_that_is_cast_as_it_is_loaded(backend: Any, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "time", Clock(1.0 if is_slow else 1e-5))
    rng = np.random.default_rng(0)
    arrays = {
        f"{i}.w": rng.normal(size=shape).astype(np.float16) for i, shape in enumerate([(1500, 900), (30, 7), (9,)])
    }

    model = Whole([array.shape for array in arrays.values()], backend.device())
    model.load_record(Record({f"parts.{name}": array for name, array in arrays.items()}))
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
    rest = np.frombuffer(mmap.mmap(-1, pages * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    rest[10 * page] = 7
    buffer = memory.Buffer(rest)
    start, stop = 10 * page + 5, 100 * page + 1
    buffer.get(start, start + memory._MANY - 1)  # not worth it
    assert not asked
    buffer.get(start, stop)
    ((first, length, what),) = asked
    assert first == address(rest) + 10 * page and first + length == address(rest) + stop and what == memory._POPULATE
    if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
        there = are_there(address(rest), rest.nbytes)
        assert [at for at, is_there in enumerate(there) if is_there] == list(range(10, 101))
    assert np.flatnonzero(rest).tolist() == [10 * page] and rest[10 * page] == 7


@pytest.mark.parametrize("step", [0.0, 1.0], ids=["quick", "slow"])
def test_what_is_cast_is_the_same(
    step: float, asked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "time", Clock(step))
    numbers = np.random.default_rng(0).normal(size=(11, 300_007)).astype(np.float16)
    found = float_casts.recast(numbers, np.dtype(np.float32))
    assert found is not None and found.nbytes > memory.LARGE
    np.testing.assert_array_equal(found, numbers.astype(np.float32))
    assert {what for *_, what in asked} == {memory._POPULATE, *([memory._NO_LARGE_PAGES] if step else [])}
    asked.clear()
    small = float_casts.recast(numbers[0], np.dtype(np.float32))
    assert small is not None and small.nbytes < memory.LARGE
    assert {what for *_, what in asked} == {memory._POPULATE}
    parts = sorted((start, start + length) for start, length, _ in asked)
    assert parts[0][0] <= address(small) and address(small) + small.nbytes <= parts[-1][1]
    assert all(end >= start for (_, end), (start, _) in itertools.pairwise(parts))
    np.testing.assert_array_equal(small, numbers[0].astype(np.float32))
    asked.clear()
    assert float_casts.recast(numbers[0, :1000], np.dtype(np.float32)) is not None and not asked


@pytest.mark.parametrize("by_integers", [False, True])
@pytest.mark.parametrize("is_quick", [True, False])
def test_large_pages_are_got_and_filled_by_one_thread(
    is_quick: bool, by_integers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one array, and of all those of a model; not so if casts take longer, and from the first slow page on."""
    monkeypatch.setattr(thread_pool, "_cores", lambda: 2)
    monkeypatch.setattr(memory, "time", Clock(1e-5 if is_quick else 1.0))
    monkeypatch.setattr(records, "_WORTH", 1)
    monkeypatch.setattr(float_casts, "SHARE", 1)
    if by_integers:
        monkeypatch.setattr(float_casts, "get_cast", lambda: None)
    get, together = memory.Buffer.get, threading.Barrier(2, timeout=60)
    threads, waited = set[int](), set[int]()
    expected = 1 if is_quick and not by_integers else 2

    def watched(buffer: memory.Buffer, start: int, stop: int) -> None:
        here, is_alone = threading.get_ident(), buffer.has_large_pages and not by_integers
        threads.add(here)
        get(buffer, start, stop)
        if not is_alone and here not in waited:
            waited.add(here)
            together.wait()  # or the other one would come too late

    monkeypatch.setattr(memory.Buffer, "get", watched)
    found = float_casts.recast(np.ones(9 << 20, np.float16), np.dtype(np.float32))
    assert found is not None and np.all(found == 1)
    assert len(threads) == expected
    threads.clear()
    waited.clear()
    monkeypatch.setattr(memory, "_slow_until", 0.0 if is_quick else np.inf)
    arrays = {f"parts.{i}.w": np.full(1 << 20, i, np.float16) for i in range(8)}
    model = Whole([array.shape for array in arrays.values()], NumPy().device()).load_record(Record(arrays))
    assert all(np.all(part.w.val().numpy() == i) for i, part in enumerate(model.parts))
    assert len(threads) == expected
