"""Which of several processes of one program this is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processes:
    """The place of this process among all that run one program together; the default is a process alone."""

    rank: int = 0
    """The number of this process, from 0 to size - 1."""
    size: int = 1
    local_rank: int = 0
    """Its number among those of its machine."""
    local_size: int = 1
    address: str = ""
    """Where they meet: host:port of the process of rank 0."""
    attempt: int = 0
    """How often they were started again."""
    run: str = ""
    """A name for this launch, the same in all processes."""


_known = Processes()


def processes() -> Processes:
    """What `phlox.distributed.initialize` found; a process alone before it is called."""
    return _known


def set_processes(found: Processes) -> None:
    """Say which process this is."""
    global _known
    _known = found
