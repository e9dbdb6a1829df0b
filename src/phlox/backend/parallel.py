"""The rows of a global batch that the code of a process computes on, where an engine leaves communication to us."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from phlox.host.signal_guard import scope


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The processes whose rows together are a batch: this one has part `rank` of `size`."""

    rank: int
    size: int


_current: ContextVar[RowGroup | None] = ContextVar("phlox_row_group", default=None)


def row_group() -> RowGroup | None:
    """The group whose rows the code that runs now computes on; None outside of `with mesh:`."""
    return _current.get()


@contextmanager
def rows_of(group: RowGroup | None) -> Generator[None]:
    """Within this scope the code computes on this process's rows of a global batch."""
    with scope(_current, group):
        yield
