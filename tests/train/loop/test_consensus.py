"""Processes, here threads with a store between them, end after the same step, whoever asks, and whenever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from phlox.backend.processes import Processes
from phlox.backend.store import Store
from phlox.errors import DistributedError
from phlox.train.loop import consensus as module
from phlox.train.loop.consensus import Consensus, Decision

SIZE = 3


class Board(Store):
    """A store in memory, which can lose a process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.gone = False

    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values or self.gone, min(timeout or 20.0, 20.0))
            if key not in self.values:
                raise DistributedError("process 1 is gone" if self.gone else f"nothing came: {key}")
            return self.values[key]

    def peek(self, key: str) -> bytes | None:
        return self.values.get(key)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def barrier(self, name: str, timeout: float | None = None) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Generator[Board]:
    found = Board()
    monkeypatch.setattr(module, "store", lambda: found)
    yield found
    found.gone = True
    with found.changed:
        found.changed.notify_all()


def members(board: Board, monkeypatch: pytest.MonkeyPatch) -> list[Consensus]:
    made: list[Consensus] = []
    for rank in range(SIZE):
        monkeypatch.setattr(module, "processes", lambda rank=rank: Processes(rank, SIZE, timeout=10.0))
        monkeypatch.setattr(module, "_count", iter([0]))
        made.append(Consensus(0))
    return made


def together(work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * SIZE

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive(), "a process waits for ever"
    return results


class Steps:
    """Steps in which processes wait for each other, as in a collective."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(SIZE)

    def take(self) -> None:
        self.barrier.wait(20.0)


@pytest.mark.parametrize("seed", range(8))
def test_all_stop_after_the_same_step(seed: int, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    members_of, steps, moments = members(board, monkeypatch), Steps(), random.Random(seed)
    who, when = moments.randrange(SIZE), moments.randrange(1, 6)
    pauses = [[moments.random() * 0.004 for _ in range(40)] for _ in range(SIZE)]

    def train(rank: int) -> tuple[int, Decision | None, Decision | None]:
        consensus, step = members_of[rank], 0
        assert consensus.at(0) is None
        while step < 30:
            steps.take()
            step += 1
            time.sleep(pauses[rank][step])
            if rank == who and step >= when:
                consensus.ask(stop="enough", signal=15)
            decision = consensus.at(step)
            if decision is not None:  # final, however late the next question is
                time.sleep(pauses[rank][-step])
                consensus.ask(stop="enough")
                again = consensus.at(step)
                assert again == decision, again
                return step, decision, consensus.end()
        return step, None, consensus.end()

    results = together(train)
    assert len({repr(one) for one in results}) == 1, results
    step, decision, _ = results[0]
    assert step in (when, when + 1)
    assert (decision.step, decision.stop, decision.signal) == (step, "enough", 15)


@pytest.mark.parametrize("seed", range(4))
def test_saves_on_the_way_and_an_end_by_a_limit(seed: int, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    members_of, steps, moments = members(board, monkeypatch), Steps(), random.Random(seed)
    wanted = {moments.randrange(1, 11) for _ in range(3)}
    last_words = moments.randrange(SIZE)

    def train(rank: int) -> tuple[list[int], int | None]:
        consensus, saved = members_of[rank], list[int]()
        assert consensus.at(0) is None
        for step in range(1, 13):
            steps.take()
            if rank == 0 and step in wanted:
                consensus.ask(saves=True)
            while step < 12 and (decision := consensus.at(step)) is not None:
                assert decision.saves and decision.stop is None
                saved.append(step)
        decision = consensus.end(signal=2 if rank == last_words else None)
        return saved, None if decision is None else decision.signal

    results = together(train)
    assert results[0] == results[1] == results[2], results
    saved, signal = results[0]
    assert signal in (2, None)  # None: the others had come to their end before it was asked for
    assert 1 <= len(saved) <= len(wanted)


def test_an_error_in_one_is_told_to_the_others(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    members_of = members(board, monkeypatch)

    def train(rank: int) -> None:
        if rank == 1:
            members_of[rank].end(ValueError("no such row"))
            return
        for step in range(1, 10_000):
            members_of[rank].at(step)
            time.sleep(0.001)

    first, second, third = together(train)
    assert second is None
    for error in (first, third):
        assert isinstance(error, DistributedError)
        assert "process 1 has failed: ValueError: no such row" in str(error)


def test_a_process_that_is_gone(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    consensus = members(board, monkeypatch)[0]
    assert consensus.at(1) is None
    board.gone = True
    with board.changed:
        board.changed.notify_all()
    consensus._thread.join(10.0)
    with pytest.raises(DistributedError, match="process 1 is gone"):
        consensus.at(2)
