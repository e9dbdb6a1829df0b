"""Bytes that a device sends, against a simulation of the ring in which parts are sent one by one."""

from __future__ import annotations

import pytest

from phlox.backend.analysis import Traffic, sent_by_ring


def around_a_ring(group: int, part: int, rounds: int) -> int:
    """What device 0 sends while each of its neighbours passes on, in each step, the part that it got in the last."""
    sent = 0
    for _ in range(rounds):
        for _ in range(group - 1):
            sent += part
    return sent


@pytest.mark.parametrize("group", [2, 3, 8])
@pytest.mark.parametrize("part", [4, 100])
def test_what_a_ring_sends(group: int, part: int) -> None:
    whole = group * part
    assert sent_by_ring("all-reduce", whole, group) == around_a_ring(group, part, 2)
    assert sent_by_ring("all-gather", whole, group) == around_a_ring(group, part, 1)
    assert sent_by_ring("reduce-scatter", part, group) == around_a_ring(group, part, 1)
    assert sent_by_ring("all-to-all", whole, group) == around_a_ring(group, part, 1)
    assert sent_by_ring("collective-permute", whole, group) == whole


def test_a_device_alone_sends_nothing() -> None:
    assert sent_by_ring("all-reduce", 800, 1) == 0


def test_traffic_adds_up() -> None:
    assert Traffic(1, 10, 20) * 3 + Traffic(1, 1, 1) == Traffic(4, 31, 61)
