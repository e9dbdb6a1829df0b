"""New memory is in small pages, many come in one call, and what is cast into it is the same."""

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
from phlox.host import float_casts, memory
from phlox.module import Param
from phlox.record import Record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for pages")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What is asked of the system, which does it, too."""
    calls: list[tuple[int, int, int]] = []
    madvise = memory._madvise()

    def watched(*given: Any) -> Any:
        calls.append(given)
        done = madvise(*given)
        assert done == 0 or given[2] == memory._POPULATE_WRITE  # which older systems do not know
        return done

    monkeypatch.setattr(memory, "_madvise", lambda: watched)
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


@pytest.mark.parametrize("offset", [0, 1, mmap.PAGESIZE - 1])
def test_a_large_buffer_is_in_small_pages(offset: int, asked: list[tuple[int, int, int]]) -> None:
    whole = np.empty(2 * memory.LARGE, np.uint8)
    bytes = whole[-address(whole) % mmap.PAGESIZE + offset :]
    memory.Buffer(bytes)
    assert asked == [(address(bytes) - offset, bytes.nbytes + offset, memory._NO_HUGE_PAGES)]
    assert is_without_large_pages(address(bytes)) and is_without_large_pages(address(bytes) + bytes.nbytes - 1)
    asked.clear()
    memory.Buffer(bytes[: memory.LARGE - 1])
    assert not asked


# --- an arena for several


def test_small_arrays_share_what_large_ones_have_for_themselves() -> None:
    single = np.dtype(np.float32)
    shapes = [(3, 5), (1000, 400), (0, 7), (), (1 << 20, 2), (7,), (700, 900)]
    arena = memory.Arena(4 * math.prod(shape) for shape in shapes)
    with arena.used():
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


def test_an_arena_consists_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CHUNK", 1000)
    arena = memory.Arena([2500])
    found = [arena.allocate(nbytes) for nbytes in (600, 300, 600, 3000, 600, 600, 600)]  # more than was said
    for buffer, start in found:
        assert (address(buffer.bytes) + start) % memory._ALIGNMENT == 0
    sizes = [buffer.bytes.size - memory._ALIGNMENT for buffer, _ in found]
    assert sizes == [1000, 1000, 1000, memory._rounded(3000), 1000, 1000, 1000]
    assert [one is other for (one, _), (other, _) in itertools.pairwise(found)] == [True, *[False] * 5]
    assert memory.Arena([]).allocate(0)[0].bytes.size == memory._ALIGNMENT


def test_every_thread_has_a_chunk_of_its_own() -> None:
    arena = memory.Arena([1000] * 100)
    chunks: list[int] = []

    def work() -> None:
        chunks.append(len({id(arena.allocate(1000)[0]) for _ in range(3)}))
        chunks.append(id(arena.allocate(1000)[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert chunks[0] == chunks[2] == 1 and chunks[1] != chunks[3]


def test_what_threads_take_from_one_arena_is_each_ones_own() -> None:
    arena = memory.Arena([1 << 20])
    taken = [list[np.ndarray[Any, Any]]() for _ in range(4)]

    def work(number: int) -> None:
        with arena.used():
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
def test_a_model_that_is_cast_as_it_is_loaded(backend: Any) -> None:
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
    buffer.populate(start, start + memory._WORTH_A_CALL - 1)  # not worth it
    assert not asked
    buffer.populate(start, stop)
    ((first, length, what),) = asked
    assert (
        first == address(rest) + 10 * page and first + length == address(rest) + stop and what == memory._POPULATE_WRITE
    )
    if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
        there = are_there(address(rest), rest.nbytes)
        assert [at for at, is_there in enumerate(there) if is_there] == list(range(10, 101))
    assert np.flatnonzero(rest).tolist() == [10 * page] and rest[10 * page] == 7


def test_what_is_cast_is_the_same(asked: list[tuple[int, int, int]]) -> None:
    numbers = np.random.default_rng(0).normal(size=(11, 300_007)).astype(np.float16)
    found = float_casts.recast(numbers, np.dtype(np.float32))
    assert found is not None and found.nbytes > memory.LARGE
    np.testing.assert_array_equal(found, numbers.astype(np.float32))
    assert {what for *_, what in asked} == {memory._POPULATE_WRITE, memory._NO_HUGE_PAGES}
    asked.clear()
    small = float_casts.recast(numbers[0], np.dtype(np.float32))
    assert small is not None and small.nbytes < memory.LARGE
    assert {what for *_, what in asked} == {memory._POPULATE_WRITE}
    parts = sorted((start, start + length) for start, length, _ in asked)
    assert parts[0][0] <= address(small) and address(small) + small.nbytes <= parts[-1][1]
    assert all(end >= start for (_, end), (start, _) in itertools.pairwise(parts))
    np.testing.assert_array_equal(small, numbers[0].astype(np.float32))
    asked.clear()
    assert float_casts.recast(numbers[0, :1000], np.dtype(np.float32)) is not None and not asked


def test_an_aligned_copy() -> None:
    room = np.arange(1001, dtype=np.float32)
    for array in (room[1:], room[1:].reshape(10, 100).T, room[:0], room[::3].astype(np.int64), np.array(2.0)):
        copy = memory.aligned_copy(array)
        assert (not array.size or address(copy) % 64 == 0) and copy.flags.c_contiguous and copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)
        assert not np.shares_memory(copy, array)
