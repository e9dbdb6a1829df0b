"""The report of a failing process to its launcher: when it failed, and whether other processes had failed before.

Processes fail together: one has an error, and in the others a collective or a barrier fails. The first to end may
be one without the error, because an engine may delay the end of the other. So each process reports what it knows.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from phlox.backend.processes import PROGRESS


class Report(msgspec.Struct, frozen=True):
    """A process's report of its own failure."""

    when: float
    follows: bool | None
    """Had another process failed or ended before? None while that is unknown."""
    status: int
    """The exit status of its program."""


def report_failure(rank: int, follows: bool | None, when: float | None = None, status: int = 1) -> float:
    """Report that process `rank` fails to the launcher on this host, if there is one; returns the time.

    Args:
        rank: the rank of the process.
        follows: see `Report`.
        when: the time of an earlier report, which this one replaces.
        status: the exit status.
    """
    when = time.time() if when is None else when
    if progress := os.environ.get(PROGRESS):
        path = _path(Path(progress).parent, rank)
        draft = path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the launcher has ended
            draft.write_bytes(msgspec.msgpack.encode(Report(when, follows, status)))
            draft.replace(path)
    return when


def report_of(folder: Path, rank: int) -> Report | None:
    """The report of a process, if it has written one."""
    try:
        return msgspec.msgpack.decode(_path(folder, rank).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def forget_reports(folder: Path) -> None:
    """Remove the reports of an earlier attempt."""
    for path in folder.glob("failed-*"):
        path.unlink(missing_ok=True)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"failed-{rank}"
