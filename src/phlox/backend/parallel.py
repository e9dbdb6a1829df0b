"""Which rows of a global batch this process computes on, where an engine knows only of its own arrays.

XLA's partitioner sees one global batch, and there is nothing to say. On engines with explicit collectives every process
runs the same program on its own rows, and three things have to know of the others: random draws, gradients, and
statistics over a batch. They ask for the ambient `RowGroup`.
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
    """This process computes on part `rank` of a batch that is cut along its first axis into `size` parts.

    They are equal, unless `rows` says how many rows each of them has.

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
        """What a mean over the rows here counts in the mean over the processes that is the mean over all rows."""
        return 1.0 if self.rows is None else self.rows[self.rank] * self.size / sum(self.rows)

    def part(self, shape: tuple[int, ...]) -> Part | None:
        """Which elements of the draw for the whole batch those of an array of this shape are.

        None for one without axes: it has no rows, and is the same everywhere.
        """
        if not shape:
            return None
        n = math.prod(shape)
        if self.rows is not None and n % self.rows[self.rank] == 0:
            of_row = n // self.rows[self.rank]
            return Part(sum(self.rows[: self.rank]) * of_row, sum(self.rows) * of_row)
        return Part(self.rank * n, self.size * n)


def part_of(rows: RowGroup | None, shape: tuple[int, ...]) -> Part | None:
    """As `RowGroup.part`; None without a group, too."""
    return None if rows is None else rows.part(shape)


_group: ContextVar[RowGroup | None] = ContextVar("phlox_row_group", default=None)


row_group: Callable[[], RowGroup | None] = _group.get  # itself, for every draw asks
"""The ambient group; None if this process computes on all rows."""


@contextmanager
def rows_of(group: RowGroup | None) -> Generator[RowGroup | None]:
    """A scope in which the code computes on this process's rows of a global batch.

    Random numbers are then those of its rows in the draw for the whole batch, gradients of modules are averaged over
    the processes, and functions compiled inside and outside are kept apart.

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
"""Do gradients stay those of this process's rows?"""


def no_sync() -> AbstractContextManager[object]:
    """A scope in which gradients stay those of this process's rows, for accumulation: nothing is sent for them.

    Of several batches, one step communicates once: `GradientsAccumulator(model, local=True)` adds such gradients up,
    and `take` makes the mean over the processes. Each process holds the gradients as a whole meanwhile.

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
    """A scope in which all processes compute with the same arrays, so that of a whole one each may take its slice.

    `backend` is that of the arrays; where it has none in slices, there is nothing to say.
    """
    return scope(_same, True) if backend is not None and backend.has_slices else nullcontext()
