"""The rows of a global batch that this process computes on, for engines that know only this process's arrays.

XLA's partitioner sees one global batch and needs none of this. On engines with explicit collectives, every process runs
the same program on its own rows, and three things depend on the other processes: random draws, gradients, and
statistics over a batch. They read the ambient `RowGroup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from phlox.errors import DistributedError
from phlox.host.signal_guard import scope

if TYPE_CHECKING:
    from phlox.backend.contract.backend import Backend


class Part(NamedTuple):
    """Consecutive elements of a larger draw, by their row-major index: from `start` on, of `total`."""

    start: int
    total: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """This process computes on part `rank` of a batch that is divided along its first axis into `size` parts.

    The parts are equal, unless `rows` has the number of rows of each part.

    >>> RowGroup(1, 4).part((2, 3))
    Part(start=6, total=24)
    >>> RowGroup(1, 2, (3, 2)).part((2, 4)), RowGroup(1, 2, (3, 2)).weight
    (Part(start=12, total=20), 0.8)
    """

    rank: int
    size: int
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise DistributedError(f"a group of {self.size} processes has ranks 0 to {self.size - 1}, not {self.rank}")
        if self.rows is not None and (len(self.rows) != self.size or min(self.rows) < 1):
            raise DistributedError(f"{self.size} processes have a row or more each, not {self.rows}")

    @property
    def weight(self) -> float:
        """The weight of this process's mean in the mean over processes, which then is the mean over all rows."""
        return 1.0 if self.rows is None else self.rows[self.rank] * self.size / sum(self.rows)

    def part(self, shape: tuple[int, ...]) -> Part | None:
        """The part of the draw for the whole batch that an array of this shape is.

        None for an array without axes: it has no rows, and is the same everywhere.
        """
        if not shape:
            return None
        n = math.prod(shape)
        if self.rows is not None and n % self.rows[self.rank] == 0:
            of_row = n // self.rows[self.rank]
            return Part(sum(self.rows[: self.rank]) * of_row, sum(self.rows) * of_row)
        return Part(self.rank * n, self.size * n)


def part_of(rows: RowGroup | None, shape: tuple[int, ...]) -> Part | None:
    """As `RowGroup.part`; None also without a group."""
    return None if rows is None else rows.part(shape)


_group: ContextVar[RowGroup | None] = ContextVar("phlox_row_group", default=None)


row_group: Callable[[], RowGroup | None] = _group.get  # the method itself, since every draw calls it
"""The ambient group; None if this process computes on all rows."""


@contextmanager
def rows_of(group: RowGroup | None) -> Generator[RowGroup | None]:
    """A scope in which the code computes on this process's rows of a global batch.

    Random numbers are then its rows of the draw for the whole batch, gradients of modules are averaged over the
    processes, and functions are compiled separately inside and outside.

    >>> import phlox as px
    >>> px.random.seed(0); whole = px.random.uniform((4,))
    >>> px.random.seed(0)
    >>> with rows_of(RowGroup(1, 2)):
    ...     mine = px.random.uniform((2,))
    >>> bool((mine == whole[2:]).all())
    True
    """
    with scope(_group, group):
        yield group


_local: ContextVar[bool] = ContextVar("phlox_local_gradients", default=False)

are_gradients_local: Callable[[], bool] = _local.get
"""Do gradients stay local, that is, the gradients of this process's rows?"""


def no_sync() -> AbstractContextManager[object]:
    """A scope in which gradients stay local (of this process's rows), for accumulation: nothing is sent for them.

    A step over several batches then communicates once: `GradientsAccumulator(model, local=True)` adds such gradients,
    and `take` computes the mean over the processes. Until then each process holds whole gradients.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> model = nn.Linear(2, 1).train()
    >>> sums = optim.GradientsAccumulator(model, local=True)
    >>> for _ in range(4):
    ...     with px.distributed.no_sync():
    ...         loss = model(px.ones((8, 2))).square().mean()
    ...         grads = optim.GradientsParams.from_grads(loss.backward(), model)
    ...     sums.add(grads, model)
    >>> model = optim.AdamWConfig().init().step(1e-3, model, sums.take(model))
    """
    return scope(_local, True)


_same: ContextVar[bool] = ContextVar("phlox_same_everywhere", default=False)

is_same_everywhere: Callable[[], bool] = _same.get
"""Does the code compute the same in all processes, as a step of an optimizer does with averaged gradients?"""


def same_everywhere(backend: Backend | None) -> AbstractContextManager[object]:
    """A scope in which all processes compute with the same arrays, so that each may take its slice of a whole array.

    `backend` is the arrays' backend; if it has no slices, the scope does nothing.
    """
    return scope(_same, True) if backend is not None and backend.has_slices else nullcontext()
