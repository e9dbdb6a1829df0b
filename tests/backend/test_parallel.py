"""Work spread over threads: every part once, and the first failure is told when all have ended."""

from __future__ import annotations

import threading

import pytest

from phlox.backend import parallel
from phlox.backend.parallel import spread


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
