"""The report of an engine's compiler on a program: operations, memory, and traffic between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """The collectives of one kind in a program, in one run of it."""

    count: int
    """The number of collectives in which a device takes part; in a loop, each iteration counts."""
    payload: int
    """Bytes of their results on one device."""
    sent: int
    """Bytes that one device sends, by the ring algorithms: see `phlox.backend.analysis.sent_by_ring`."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.payload + other.payload, self.sent + other.sent)

    def __mul__(self, times: int) -> Traffic:
        return Traffic(self.count * times, self.payload * times, self.sent * times)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The costs of a program for one of its devices; None if unknown."""

    source: str
    """The source of the figures: `XLA`; or `shapes`, if no compiler reports any."""
    devices: int = 1
    flops: int | None = None
    """Floating-point operations; in a product an addition and a multiplication are two."""
    bytes_accessed: int | None = None
    """Bytes that its operations read and write."""
    arguments: int | None = None
    """Bytes of the arguments."""
    outputs: int | None = None
    """Bytes of the results."""
    temporaries: int | None = None
    """Bytes that are in use only while the program runs."""
    aliased: int | None = None
    """Bytes of results that take the memory of donated arguments."""
    collectives: Mapping[str, Traffic] | None = None
    """The collectives by kind; empty if devices exchange nothing."""
    loops_of_unknown_length: int = 0
    """Loops whose number of iterations the compiler does not know; they are counted as one iteration."""


def sent_by_ring(kind: str, payload: int, group: int) -> int:
    """Bytes that one of `group` devices sends in a collective whose result takes `payload` bytes on each.

    A ring sends every part of an array around once; an all-reduce sends it around twice. No algorithm sends less over
    links between pairs of devices.

    >>> [sent_by_ring(kind, 800, 8) for kind in ("all-reduce", "all-gather", "reduce-scatter")]
    [1400, 700, 5600]
    """
    if group < 2:
        return 0
    match kind:
        case "all-reduce":
            return 2 * payload * (group - 1) // group
        case "all-gather" | "all-to-all" | "ragged-all-to-all":
            return payload * (group - 1) // group
        case "reduce-scatter":  # its result is one part of the reduced array
            return payload * (group - 1)
        case _:
            return payload
