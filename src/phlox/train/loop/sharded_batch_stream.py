"""`ShardedBatchStream`: the shard of each batch that a process has; all rows, if they cannot be divided."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from phlox.data.loader import Loader
from phlox.errors import DataError
from phlox.train.loop.batch_stream import BatchStream
from phlox.train.step.batch import count
from phlox.train.step.data_parallel import BatchShard, DataParallel


class ShardedBatchStream(BatchStream):
    """The shards of one process: its part of the rows of each batch of a `Loader`.

    If the rows of a loader's batch do not divide over the devices, and the engine partitions, all devices get the whole
    batch, so that the result is that of one device. On other engines, some processes get one row more than others, and
    the learner weights their means. Other iterables yield the rows of this process, as many as in all other processes.

    Raises `DataError` if the rows do not fit; for a loader, before anything is trained.
    """

    def __init__(self, data: Any, team: DataParallel, name: str, *, training: bool, weighted: bool = True) -> None:
        self._team, self._is_training, self._is_weighted, self.name = team, training, weighted, name
        self._loader: Loader | None = None
        if isinstance(data, Loader):
            self._loader = data.with_part(0, 1)
            part = team.mesh.part
            if data.part not in ((0, 1), part):
                raise DataError(
                    f"{name}: the loader gives out part {data.part[0]} of {data.part[1]} of each batch, and this "
                    f"process has part {part[0]} of {part[1]} on {team.mesh!r}; give the loader without shard(), "
                    "because the learner takes the right part by itself"
                )
            self._check_loader(data, name)
            data = data.with_part(*part)
        super().__init__(data, name)

    def _check_loader(self, loader: Loader, name: str) -> None:
        team = self._team
        if loader.skips_rows and team.parts > 1:
            raise DataError(
                f"{name}: with on_error='skip' a process could have fewer rows than the others; remove the bad rows "
                "from the data, or leave out on_error="
            )
        size, last = loader.batch_size, loader.rows_in(len(loader) - 1)
        if not self._is_training:
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
                f"{name}: {which} too few for {team.parts} processes: some would have no row; give a larger "
                "batch_size, or drop_last=True"
            )
        if not self._is_weighted and (size % team.parts or last % team.parts):
            raise self._uneven_error(f"a batch of {size if size % team.parts else last} rows")

    def _uneven_error(self, rows_text: str) -> DataError:
        return DataError(
            f"{self.name}: {rows_text} cannot be divided equally over {self._team.parts} processes, and with update= "
            "the learner cannot weight them; give the loader drop_last=True, and a batch_size that is "
            f"a multiple of {self._team.parts}"
        )

    # --- batches

    def _first_whole(self) -> int:
        """The number of the first batch that all processes get as a whole; the number of batches if there is none."""
        loader, team = self._loader, self._team
        assert loader is not None
        if team.partitions:
            if loader.batch_size % team.cuts:
                return 0
            return len(loader) - bool(loader.rows_in(len(loader) - 1) % team.cuts)
        if min(loader.batch_size, loader.num_rows) < team.parts:
            return 0
        return len(loader) - (loader.rows_in(len(loader) - 1) < team.parts)

    def _numbered(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        return enumerate(self._batches(epoch, start), start)

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        loader = self._loader
        if loader is None:
            return super()._batches(epoch, start)
        self._check_same_loader(start)
        stop = self._first_whole()
        cut: Iterator[Any] = self._data.epoch(epoch, start, stop) if start < stop else iter(())
        whole = loader.epoch(epoch, max(start, stop)) if stop < len(loader) else iter(())
        return itertools.chain(cut, whole)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchShard]:
        """This process's parts of the batches of an epoch, from number `start` on."""
        batches, number = super().epoch(epoch, start), start
        try:
            for batch in batches:
                is_cut = self._loader is not None
                yield (self._loader_shard(batch, number) if is_cut else self._other_shard(batch, epoch, number))
                number += 1
            if self._in_lock_step:
                self._exchange_counts(0, epoch, number)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    @property
    def _in_lock_step(self) -> bool:
        """Does every process have its own iterable, and do all take every batch together?"""
        team = self._team
        return self._loader is None and team.parts > 1 and (team.computes_together or self._is_training)

    def _loader_shard(self, batch: Any, number: int) -> BatchShard:
        assert self._loader is not None
        rows, parts = self._loader.rows_in(number), self._team.parts
        if number >= self._first_whole():
            return BatchShard(batch, rows, is_whole=True)
        if rows % parts == 0:
            return BatchShard(batch, rows)
        return BatchShard(
            batch, rows, counts=tuple([rows * (k + 1) // parts - rows * k // parts for k in range(parts)])
        )

    def _other_shard(self, batch: Any, epoch: int, number: int) -> BatchShard:
        team, rows = self._team, count(batch)
        if team.parts == 1:
            return BatchShard(batch, rows, is_whole=team.partitions and rows % team.cuts != 0)
        if not team.computes_together and not self._is_training:
            return BatchShard(batch, rows)  # each process measures its own batch, and the sums are added up
        counts = self._exchange_counts(rows, epoch, number)
        where = f"{self.name}: batch {number} of epoch {epoch + 1}"
        if len(set(counts)) == 1:
            if team.partitions and rows % (team.cuts // team.parts):
                raise DataError(
                    f"{where} has {rows} rows in this process, which cannot be cut over its {team.cuts // team.parts} "
                    "devices; leave out a smaller last batch (drop_last=True), or give a Loader"
                )
            return BatchShard(batch, rows * team.parts)
        if team.partitions or min(counts) < 1:
            raise DataError(
                f"{where} must have equally many rows in all processes, got {', '.join(map(str, counts))}; leave out a "
                "smaller last batch (drop_last=True), or give a Loader"
            )
        if not self._is_weighted:
            raise self._uneven_error(f"batch {number}, of {', '.join(map(str, counts))} rows,")
        return BatchShard(batch, sum(counts), counts=counts)

    def _exchange_counts(self, rows: int, epoch: int, number: int) -> tuple[int, ...]:
        """The number of rows of each part of a batch; `DataError` in all processes if some have no further batch."""
        all_counts: list[list[int]] = self._team.gathered(np.array([self._team.part, rows], np.int64)).tolist()
        ended = [rank for rank, (_, count) in enumerate(all_counts) if count == 0]
        if ended and len(ended) < len(all_counts):
            others = [rank for rank in range(len(all_counts)) if rank not in ended]
            raise DataError(
                f"{self.name}: epoch {epoch + 1} has {number} batches in process {', '.join(map(str, ended))}, and "
                f"more in process {', '.join(map(str, others))}; all processes need equally many batches in an epoch: "
                "give each as many, or give a Loader, which cuts every batch"
            )
        counts = {row[0]: row[1] for row in all_counts}
        return tuple([counts[part] for part in range(self._team.parts)])
