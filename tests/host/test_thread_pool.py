"""Work spread over threads: every part once, and the first failure is told when all have ended."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from phlox.host import thread_pool
from phlox.host.thread_pool import parallel_for, parallel_map


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "cores", lambda: 4)


@pytest.mark.parametrize(
    ("size", "least", "most", "parts"), [(0, 5, 9, 1), (9, 5, 9, 1), (10, 5, 9, 2), (99, 5, 9, 4), (99, 5, 3, 3)]
)
def test_the_parts_make_up_the_whole(size: int, least: int, most: int, parts: int) -> None:
    found: list[tuple[int, int]] = []
    parallel_for(lambda start, stop: found.append((start, stop)), size, least, most)
    assert len(found) == parts
    assert [i for start, stop in sorted(found) for i in range(start, stop)] == list(range(size))
    assert all(stop - start >= min(least, size) for start, stop in found)


def test_they_run_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=60)

    def work(start: int, stop: int) -> None:
        together.wait()

    parallel_for(work, 8, 1)
    assert not together.broken


def test_the_first_part_that_fails_is_told_and_all_have_ended() -> None:
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        ended.append(start)
        if start:
            raise ValueError(f"at {start}")

    with pytest.raises(ValueError, match="at 2$"):
        parallel_for(work, 8, 1)
    assert sorted(ended) == [0, 2, 4, 6]


def test_context_variables_are_the_callers_in_every_thread() -> None:
    variable = contextvars.ContextVar("variable", default="nobody's")
    token = variable.set("the caller's")
    found: list[str] = []
    parallel_for(lambda start, stop: found.append(variable.get()), 8, 1)
    variable.reset(token)
    assert found == ["the caller's"] * 4


def test_what_is_spread_already_is_shared_by_the_same_threads() -> None:
    before = threading.active_count()
    found: list[tuple[int, int]] = []
    threads: set[int] = set()

    def work(start: int, stop: int) -> None:
        threads.add(threading.get_ident())
        found.append((start, stop))

    for _ in range(2):  # and it is over when it is over
        found.clear()
        threads.clear()
        parallel_for(lambda start, stop: parallel_for(work, 100, 1), 4, 1)
        assert sorted(found) == sorted([(0, 25), (25, 50), (50, 75), (75, 100)] * 4) and len(threads) <= 4

    def fail(start: int, stop: int) -> None:
        raise ValueError(f"within, at {start}")

    with pytest.raises(ValueError, match="within, at 0"):
        parallel_for(lambda start, stop: parallel_for(fail, 4, 1), 4, 1)
    assert threading.active_count() == before


def test_threads_that_have_nothing_else_take_parts() -> None:
    """Of what another one spreads, while it is at the first part."""
    parts: dict[int, int] = {}
    together = threading.Barrier(4, timeout=60)

    def work(start: int, stop: int) -> None:
        parts[start] = threading.get_ident()
        together.wait()

    def task(i: int) -> None:
        if not i:
            parallel_for(work, 8, 1)

    parallel_map(task, [100, 1, 1], least=1)
    assert len(parts) == 4 == len(set(parts.values()))


def test_who_spreads_takes_what_nobody_else_takes() -> None:
    busy, free = threading.Barrier(4, timeout=60), threading.Event()
    parts: dict[int, int] = {}

    def task(i: int) -> None:
        busy.wait()
        if i:
            assert free.wait(60)
        else:
            parallel_for(lambda start, stop: parts.update({start: threading.get_ident()}), 8, 1)
            free.set()

    parallel_map(task, [1, 1, 1, 1], least=1)
    assert sorted(parts) == [0, 2, 4, 6] and len(set(parts.values())) == 1


@pytest.mark.parametrize("sizes", [[], [3], [1, 5, 2, 4, 3], [0, 0, 0], [7] * 100])
@pytest.mark.parametrize("least", [1, 8, 1000])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("large", [None, 0, 3, 100])
@pytest.mark.parametrize("most", [1, 2, 64])
def test_each_gives_what_a_loop_would(
    sizes: list[int], least: int, most: int, large: int | None, in_order: bool
) -> None:
    found = parallel_map(lambda i: (i, sizes[i]), sizes, least, most, large=large, in_order=in_order)
    assert found == list(enumerate(sizes))


def test_the_largest_comes_first() -> None:
    order: list[int] = []
    parallel_map(order.append, [1, 5, 2, 4, 3], least=1, most=1)
    assert order == [1, 3, 4, 2, 0]


def test_each_runs_several_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=60)
    parallel_map(lambda i: together.wait(), [1] * 4, least=1)
    assert not together.broken


def test_of_what_is_large_there_is_one_at_a_time() -> None:
    """Others help with it, or are at what is small."""
    running: set[int] = set()
    peak = 0
    parts: dict[int, int] = {}
    together = threading.Barrier(4, timeout=60)

    def work(i: int) -> None:
        nonlocal peak
        if i not in (1, 3):
            return
        running.add(i)
        peak = max(peak, len(running))
        parallel_for(lambda start, stop: parts.update({(10 * i + start): together.wait()}), 4, 1)
        running.remove(i)

    parallel_map(work, [5, 90, 5, 80], least=1, large=10)
    assert peak == 1 and sorted(parts) == [10, 11, 12, 13, 30, 31, 32, 33]


def test_in_order_means_what_is_not_large() -> None:
    order: list[int] = []
    parallel_map(order.append, [1, 50, 2, 40, 60, 3], least=1, large=10, in_order=True, most=1)
    assert order == [4, 1, 3, 0, 2, 5]


def test_a_system_without_threads_does_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    found: list[int] = []
    parallel_for(lambda start, stop: found.append(start), 8, 1)
    assert found == [0, 2, 4, 6] and parallel_map(lambda i: i, [1, 2, 3], 1) == [0, 1, 2]


def test_no_thread_is_started_for_one_at_a_time() -> None:
    before, seen = threading.active_count(), set[int]()
    parallel_map(lambda i: seen.add(threading.active_count()), [1, 5, 2, 4, 3], least=1, most=1)
    assert seen == {before}


def test_each_runs_no_more_at_the_same_time_than_it_may() -> None:
    running: set[int] = set()
    peak = 0

    def work(i: int) -> None:
        nonlocal peak
        running.add(i)
        peak = max(peak, len(running))
        time.sleep(0.01)
        running.remove(i)

    parallel_map(work, [1] * 12, least=1, most=2)
    assert peak == 2


def test_the_first_that_fails_is_told_whichever_was_tried_first() -> None:
    tried: list[int] = []

    def work(i: int) -> None:
        tried.append(i)
        if i in (1, 2, 4):
            raise ValueError(f"at {i}")

    for least, most in ((1, 64), (1000, 64), (1, 1)):
        with pytest.raises(ValueError, match="at 1$"):
            parallel_map(work, [1, 1, 2, 5, 9], least, most)
    assert {0, 1} <= set(tried[-5:])  # a loop would have done these before it failed


def test_an_interrupt_ends_all() -> None:
    tried: list[int] = []

    def work(i: int) -> None:
        tried.append(i)
        if len(tried) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parallel_map(work, [1] * 1000, least=1)
    assert len(tried) < 1000
