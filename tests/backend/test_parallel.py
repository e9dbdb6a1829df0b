"""Work spread over threads: every part once, and the first failure is told when all have ended."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from phlox.backend import parallel
from phlox.backend.parallel import each, spread


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_cores", lambda: 4)


@pytest.mark.parametrize(
    ("size", "least", "most", "parts"), [(0, 5, 9, 1), (9, 5, 9, 1), (10, 5, 9, 2), (99, 5, 9, 4), (99, 5, 3, 3)]
)
def test_the_parts_make_up_the_whole(size: int, least: int, most: int, parts: int) -> None:
    found: list[tuple[int, int]] = []
    spread(lambda start, stop: found.append((start, stop)), size, least, most)
    assert len(found) == parts
    assert [i for start, stop in sorted(found) for i in range(start, stop)] == list(range(size))
    assert all(stop - start >= min(least, size) for start, stop in found)


def test_they_run_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=60)

    def work(start: int, stop: int) -> None:
        together.wait()

    spread(work, 8, 1)
    assert not together.broken


def test_the_first_part_that_fails_is_told_and_all_have_ended() -> None:
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        ended.append(start)
        if start:
            raise ValueError(f"at {start}")

    with pytest.raises(ValueError, match="at 2$"):
        spread(work, 8, 1)
    assert sorted(ended) == [0, 2, 4, 6]


def test_context_variables_are_the_callers_in_every_thread() -> None:
    variable = contextvars.ContextVar("variable", default="nobody's")
    token = variable.set("the caller's")
    found: list[str] = []
    spread(lambda start, stop: found.append(variable.get()), 8, 1)
    variable.reset(token)
    assert found == ["the caller's"] * 4


def test_what_is_spread_already_is_not_spread_again() -> None:
    found: list[tuple[int, int]] = []
    for _ in range(2):  # and it is over when it is over
        found.clear()
        spread(lambda start, stop: spread(lambda *part: found.append(part), 100, 1), 4, 1)
        assert found == [(0, 100)] * 4

    def fail(start: int, stop: int) -> None:
        raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        spread(fail, 4, 1)
    spread(lambda *part: found.append(part), 4, 1)
    assert len(found) == 8


@pytest.mark.parametrize("sizes", [[], [3], [1, 5, 2, 4, 3], [0, 0, 0], [7] * 100])
@pytest.mark.parametrize("least", [1, 8, 1000])
@pytest.mark.parametrize("alone", [None, 0, 3, 100])
def test_each_gives_what_a_loop_would(sizes: list[int], least: int, alone: int | None) -> None:
    assert each(lambda i: (i, sizes[i]), sizes, least, alone=alone) == list(enumerate(sizes))


def test_the_largest_comes_first() -> None:
    order: list[int] = []
    each(order.append, [1, 5, 2, 4, 3], least=100)
    assert order == [1, 3, 4, 2, 0]


def test_each_runs_several_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=60)
    each(lambda i: together.wait(), [1] * 4, least=1)
    assert not together.broken


def test_what_is_large_comes_alone_and_may_be_spread() -> None:
    running: set[int] = set()
    parts: dict[int, int] = {}
    lock = threading.Lock()
    small = threading.Barrier(2, timeout=60)

    def work(i: int) -> None:
        with lock:
            running.add(i)
            assert len(running) == 1 if i in (1, 3) else running <= {0, 2}
        found: list[int] = []
        spread(lambda start, stop: found.append(start), 4, 1)
        parts[i] = len(found)
        if i in (0, 2):
            small.wait()
        with lock:
            running.remove(i)

    each(work, [5, 90, 5, 80], least=1, alone=10)
    assert parts == {0: 1, 1: 4, 2: 1, 3: 4}


def test_each_runs_no_more_at_the_same_time_than_it_may() -> None:
    running: set[int] = set()
    peak = 0

    def work(i: int) -> None:
        nonlocal peak
        running.add(i)
        peak = max(peak, len(running))
        time.sleep(0.01)
        running.remove(i)

    each(work, [1] * 12, least=1, most=2)
    assert peak == 2


def test_the_first_that_fails_is_told_whichever_was_tried_first() -> None:
    tried: list[int] = []

    def work(i: int) -> None:
        tried.append(i)
        if i in (1, 2, 4):
            raise ValueError(f"at {i}")

    for least, alone in ((1, None), (1000, None), (1, 3)):
        with pytest.raises(ValueError, match="at 1$"):
            each(work, [1, 1, 2, 5, 9], least, alone=alone)
    assert {0, 1} <= set(tried[-5:])  # a loop would have done these before it failed


def test_an_interrupt_ends_all() -> None:
    tried: list[int] = []

    def work(i: int) -> None:
        tried.append(i)
        if len(tried) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each(work, [1] * 1000, least=1)
    assert len(tried) < 1000
