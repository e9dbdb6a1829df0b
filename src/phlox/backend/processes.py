"""The group of processes that this one belongs to, and the store through which they find each other.

`phlox.distributed.initialize` sets both; a single process is a group of one, with a store of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.backend.store import Store

PROGRESS = "PHLOX_PROGRESS"
"""The environment variable that names a file whose modification time `phlox launch --hang` reads."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The group of processes that computes together, as this one sees it."""

    rank: int = 0
    """The number of this process, from 0."""
    size: int = 1
    """The number of processes."""
    local_rank: int = 0
    """The rank of this process among those on its host."""
    local_size: int = 1
    """The number of processes on its host."""
    address: str = ""
    """The address of process 0's store, as host:port."""
    attempt: int = 0
    """The number of restarts of the group so far."""
    run: str = ""
    """The name of the launch, the same in all processes; not its secret."""
    launcher: str = ""
    """The launcher of the processes, as a text."""
    timeout: float = 300.0
    """The seconds for which a process waits for the others."""
    spans_hosts: bool = field(default=False, compare=False)
    """Has the launcher said that there are processes on other hosts?"""
    named: str = field(default="", compare=False)
    """The variables, with their values, that have the address of process 0, for errors."""
    seed: int | None = None
    """The seed that all processes have agreed on; None if they have not yet."""

    @property
    def host(self) -> str:
        """The host of process 0."""
        return self.address.rpartition(":")[0].strip("[]")


@dataclass(slots=True)
class Agreement:
    """The comparison of values between processes, which each call of a compiled function uses."""

    compare: Callable[[Mapping[str, Any]], object] | None = None
    """A function that raises `DistributedError` if values, by name, differ; None in a single process."""


agreement = Agreement()
_processes = Processes()
_store: Store | None = None
_progress = os.environ.get(PROGRESS)
_reported = 0.0
_leaving: list[Callable[[], object]] = []


def processes() -> Processes:
    """The group of processes that `initialize` has joined; `Processes()` in a single process.

    >>> processes().size
    1
    """
    return _processes


def set_processes(group: Processes, store: Store | None = None) -> None:
    """Join a group of processes; a group of several has a store."""
    global _processes, _store
    _processes, _store = group, store


def at_leaving(leave: Callable[[], object]) -> None:
    """An engine has joined the group; `leave()` makes it leave, together with the others."""
    _leaving.append(leave)


def leave() -> None:
    """Let all engines that have joined leave, the last one first."""
    while _leaving:
        _leaving.pop()()


def store() -> Store:
    """The store that all processes of the group reach.

    >>> store().set("greeting", b"hello")
    >>> store().get("greeting")
    b'hello'
    """
    global _store
    if _store is None:
        from phlox.backend.store import OwnStore  # not needed by most programs

        _store = OwnStore()
    return _store


def report_progress() -> None:
    """Tell `phlox launch --hang` that this process makes progress, at most once a second, if there is a launcher."""
    global _reported
    if _progress is not None and (now := time.monotonic()) > _reported + 1.0:
        from pathlib import Path  # slow to import, and only a launched process needs it

        _reported = now
        try:
            Path(_progress).touch()
        except OSError:  # the launcher has ended
            pass
