"""The part of a batch that each process has: its rows, or all rows if they cannot be divided."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from phlox.backend.processes import processes, store
from phlox.data.loader import Loader
from phlox.errors import DataError, DistributedError
from phlox.train.feed import Feed, count

if TYPE_CHECKING:
    from phlox.train.parallel.team import Team

_WAIT = 60.0
"""The seconds in which the others must have come to a batch of another number of rows."""
_numbers = itertools.count()
"""Numbers the feeds: all processes make the same ones in the same order."""


class Portion(NamedTuple):
    """This process's part of a batch."""

    batch: Any
    rows: int
    """How many rows the batch has, of all processes together."""
    is_whole: bool = False
    """Are these all of its rows, and has every process the same?"""
    counts: tuple[int, ...] | None = None
    """The number of rows of each process, if these differ."""


class SharedFeed(Feed):
    """The batches of several processes: of each of a `Loader`'s the part of this one.

    A batch of a loader whose rows do not divide over the devices is given whole to all devices where the engine
    partitions, so that the result is that of one device; elsewhere processes have a row more or less than others, and
    the learner weights their means. Other iterables give the rows of this process, equally many in all processes.

    Raises `DataError` where the rows do not fit: before anything is trained, if a loader's do not.
    """

    def __init__(self, data: Any, team: Team, name: str, *, trains: bool, weighs: bool = True) -> None:
        self._team, self._trains, self._weighs, self.name = team, trains, weighs, name
        self._loader: Loader | None = None
        self._number = next(_numbers)
        self._size: int | None = None
        if isinstance(data, Loader):
            self._loader = data.with_part(0, 1)
            part = team.mesh.part
            if data.part not in ((0, 1), part):
                raise DataError(
                    f"{name}: the loader gives out part {data.part[0]} of {data.part[1]} of each batch, and this "
                    f"process has part {part[0]} of {part[1]} on {team.mesh!r}; give the loader without shard(), and "
                    "the learner takes the right part"
                )
            self._check_loader(data, name)
            data = data.with_part(*part)
        super().__init__(data, name)

    def _check_loader(self, loader: Loader, name: str) -> None:
        team = self._team
        if loader.skips_rows and team.parts > 1:
            raise DataError(
                f"{name}: with on_error='skip' a process could have fewer rows than the others; take the bad rows out "
                "before, or leave on_error out"
            )
        size, last = loader.batch_size, loader.rows_in(len(loader) - 1)
        if not self._trains:
            return
        if team.partitions:
            if size % team.cuts:
                raise DataError(
                    f"{name}: batches of {size} rows cannot be cut over {team.cuts} devices (axis "
                    f"{team.mesh.batch_axis!r} of {team.mesh!r}); give a batch_size that is a multiple of {team.cuts}"
                )
            return
        if min(size, last) < team.parts:
            which = f"batches of {size} rows are" if size < team.parts else f"the last batch of {last} rows is"
            raise DataError(
                f"{name}: {which} too few for {team.parts} processes, of which some would have none; give "
                "a larger batch_size, or drop_last=True"
            )
        if not self._weighs and (size % team.parts or last % team.parts):
            raise self._uneven(f"a batch of {size if size % team.parts else last} rows")

    def _uneven(self, what: str) -> DataError:
        return DataError(
            f"{self.name}: {what} is not the same number of rows for each of {self._team.parts} processes, "
            "and with update= the learner cannot weight them; give the loader drop_last=True, and a batch_size that is "
            f"a multiple of {self._team.parts}"
        )

    # --- batches

    def _first_whole(self) -> int:
        """The number of the first batch that all processes get whole; the number of batches if there is none."""
        loader, team = self._loader, self._team
        assert loader is not None
        if team.partitions:
            if loader.batch_size % team.cuts:
                return 0
            return len(loader) - bool(loader.rows_in(len(loader) - 1) % team.cuts)
        if min(loader.batch_size, loader.num_rows) < team.parts:
            return 0
        return len(loader) - (loader.rows_in(len(loader) - 1) < team.parts)

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        loader = self._loader
        if loader is None:
            return super()._batches(epoch, start)
        self._check_same_loader(start)
        stop = self._first_whole()
        cut: Iterator[Any] = self._data.epoch(epoch, start, stop) if start < stop else iter(())
        whole = loader.epoch(epoch, max(start, stop)) if stop < len(loader) else iter(())
        return itertools.chain(cut, whole)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Portion]:
        """This process's parts of the batches of an epoch, from number `start` on."""
        batches = super().epoch(epoch, start)
        try:
            for number, batch in enumerate(batches, start):
                yield (
                    self._of_loader(batch, number)
                    if self._loader is not None
                    else self._of_others(batch, epoch, number)
                )
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _of_loader(self, batch: Any, number: int) -> Portion:
        assert self._loader is not None
        rows, parts = self._loader.rows_in(number), self._team.parts
        if number >= self._first_whole():
            return Portion(batch, rows, is_whole=True)
        if rows % parts == 0:
            return Portion(batch, rows)
        return Portion(batch, rows, counts=tuple([rows * (k + 1) // parts - rows * k // parts for k in range(parts)]))

    def _of_others(self, batch: Any, epoch: int, number: int) -> Portion:
        team, rows = self._team, count(batch)
        if team.parts == 1:
            return Portion(batch, rows, is_whole=team.partitions and rows % team.cuts != 0)
        if not team.partitions and not self._trains:
            return Portion(batch, rows)  # each is measured by itself, and the sums are added up
        counts = (rows,) * team.parts
        if rows != self._size:
            counts, self._size = self._exchanged(rows, epoch, number), rows
        where = f"{self.name}: batch {number} of epoch {epoch + 1}"
        if len(set(counts)) == 1:
            if team.partitions and rows % (team.cuts // team.parts):
                raise DataError(
                    f"{where} has {rows} rows in this process, which cannot be cut over its {team.cuts // team.parts} "
                    "devices; leave a smaller last batch out (drop_last=True), or give a Loader"
                )
            return Portion(batch, rows * team.parts)
        self._size = None
        if team.partitions or min(counts) < 1:
            raise DataError(
                f"{where} has not equally many rows in all processes, but {', '.join(map(str, counts))}; leave a "
                "smaller last batch out (drop_last=True), or give a Loader"
            )
        if not self._weighs:
            raise self._uneven(f"batch {number}, of {', '.join(map(str, counts))} rows,")
        return Portion(batch, sum(counts), counts=counts)

    def _exchanged(self, rows: int, epoch: int, number: int) -> tuple[int, ...]:
        """How many rows each part has of a batch that is not as large as the one before."""
        known, key = processes(), f"train/rows/{self._number}/{epoch}/{number}"
        store().set(f"{key}/{known.rank}", json.dumps([self._team.part, rows]).encode(), known.size)
        found: dict[int, int] = {}
        for rank in range(known.size):
            try:
                part, rows_there = json.loads(store().get(f"{key}/{rank}", min(_WAIT, known.timeout), rank=rank))
            except DistributedError as error:
                raise DataError(
                    f"{self.name}: batch {number} of epoch {epoch + 1} has {rows} rows in process {known.rank}, and "
                    f"process {rank} has none of another size than before; all processes need equally many rows in "
                    f"each batch: leave a smaller last batch out (drop_last=True), or give a Loader ({error})"
                ) from error
            found[part] = rows_there
        return tuple([found[part] for part in range(self._team.parts)])
