"""How a loader makes one batch: which rows it has, how they are read, and the transforms on the way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Device
from phlox.data.draws import Draws
from phlox.data.order import Order, Rows
from phlox.data.rows import Source
from phlox.data.sources import list_rows
from phlox.data.structure import copy_views, is_array, mapped
from phlox.errors import DataError
from phlox.tensor import tensor

Transform = Callable[..., Any]
"""A function of `(batch)` or `(batch, draws)` that returns the new batch; see `Draws`."""

Collate = Callable[[Sequence[Any]], Any]
"""A function from a list of rows to a batch."""

_SHOWN = 16
"""The number of rows that a message names."""
_AT_ONCE = 4096
"""The number of positions of an order that are looked up in one call."""


class Task(NamedTuple):
    """The batch that a worker is to make; messages name it by this text."""

    epoch: int
    number: int
    device: Device | None = None
    """The device of its arrays, as tensors; None leaves NumPy arrays."""

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.epoch}"


class SkippedRow(NamedTuple):
    """A row that a loader with `on_error="skip"` could not read."""

    row: int
    """The number of the row in the source."""
    error: str
    """The message of the error."""


class BatchResult(NamedTuple):
    """A batch, and which of its rows could not be read."""

    batch: Any
    skipped: list[SkippedRow]
    rows: int
    """The number of rows; if all rows were skipped, it is 0 and there is no batch."""


@dataclass(frozen=True)
class Maker:
    """Makes batches; it has everything that a worker process needs."""

    source: Source
    order: Order
    batch_size: int
    length: int
    seed: int
    stages: tuple[tuple[Transform, bool], ...]
    collate: Collate | None
    skips: bool
    part: tuple[int, int] = (0, 1)
    block: list[tuple[int, int, Rows]] = field(default_factory=list[tuple[int, int, Rows]], compare=False, repr=False)
    """A cache of the last block of rows: its epoch, its number, and the rows."""

    def __call__(self, task: Task) -> BatchResult:
        rows: Rows | None = None
        try:
            rows = self.rows(task)
            batch, good, skipped = self._read_batch(rows)
            if skipped and not len(good):
                return BatchResult(None, skipped, 0)
            rows = good
            if self.stages:
                batch = self._transform(batch, Draws(self.seed, task.epoch, rows, len(self.source)), len(self.stages))
            return BatchResult(batch if task.device is None else placed(batch, task.device), skipped, len(rows))
        except Exception as error:
            error.add_note(f"in {task}{'' if rows is None else f', rows {_format_rows(rows)}'}")
            raise

    def rows(self, task: Task) -> Rows:
        """The numbers of the rows of a batch, or of this process's part of it."""
        start = task.number * self.batch_size
        stop = min(start + self.batch_size, self.length)
        part, parts = self.part
        size = stop - start
        first, last = start + size * part // parts, start + size * (part + 1) // parts
        # A call for many positions takes little longer than one for few.
        width = self.batch_size * max(1, _AT_ONCE // self.batch_size)
        block = start // width
        cached = self.block[0] if self.block else None
        if cached is None or cached[:2] != (task.epoch, block):
            positions = np.arange(block * width, min((block + 1) * width, self.length))
            cached = task.epoch, block, self._rows_at(positions, task.epoch)
            self.block[:] = [cached]
        return cached[2][first - block * width : last - block * width]

    def _rows_at(self, positions: Rows, epoch: int) -> Rows:
        total, name = len(self.source), type(self.order).__name__
        rows = np.asarray(self.order.rows(positions, total, seed=self.seed, epoch=epoch, batch_size=self.batch_size))
        if rows.shape != positions.shape or rows.dtype.kind not in "iu":
            raise DataError(
                f"Loader: order {name} gives {rows.dtype} of shape {rows.shape} for {len(positions)} positions; "
                "its rows must be a whole number for each"
            )
        wrong = rows[(rows < 0) | (rows >= total)]
        if wrong.size:
            raise DataError(f"Loader: order {name} gives row {wrong[0]}; the source has rows 0 to {total - 1}")
        return rows.astype(np.int64, copy=False)

    def _read_batch(self, rows: Rows) -> tuple[Any, Rows, list[SkippedRow]]:
        try:
            return self._batch(rows), rows, []
        except Exception as error:
            bad = self._bad_rows(rows)
            if not bad:  # each row can be read alone, so the rows do not fit together
                raise
            if not self.skips:
                if self.collate is not None and self._can_read(rows):
                    raise
                row, reason = bad[0]
                raise DataError(
                    f"row {row} of the source cannot be read: {reason}; on_error='skip' leaves such rows out"
                ) from error
        good = rows[~np.isin(rows, [row for row, _ in bad])]
        return self._batch(good) if len(good) else None, good, bad

    def _can_read(self, rows: Rows) -> bool:
        try:
            list_rows(self.source, rows)
        except Exception:
            return False
        return True

    def _bad_rows(self, rows: Rows) -> list[SkippedRow]:
        bad = list[SkippedRow]()
        for index in range(len(rows)):
            try:
                self._batch(rows[index : index + 1])
            except Exception as error:
                bad.append(SkippedRow(int(rows[index]), f"{type(error).__name__}: {error}"))
        return bad

    def _batch(self, rows: Rows) -> Any:
        return copy_views(self.source[rows]) if self.collate is None else self.collate(list_rows(self.source, rows))

    def _transform(self, batch: Any, draws: Draws, stages: int) -> Any:
        for number, (transform, takes_draws) in enumerate(self.stages[:stages]):
            if takes_draws:
                stage_draws = replace(draws.at_stage(number), load=self._batch_loader(draws, number))
                batch = transform(batch, stage_draws)
            else:
                batch = transform(batch)
        return batch

    def _batch_loader(self, draws: Draws, stage: int) -> Callable[[Rows], Any]:
        return lambda rows: self._transform(self._batch(rows), replace(draws, rows=rows), stage)


def _format_rows(rows: Rows) -> str:
    return ", ".join(map(str, rows[:_SHOWN].tolist())) + ", ..." * (len(rows) > _SHOWN)


def placed(batch: Any, device: Device) -> Any:
    """A batch with its arrays as tensors on a device; texts and other objects stay as they are."""

    def leaf_to_device(leaf: Any) -> Any:
        return tensor(leaf, device=device) if is_array(leaf) and leaf.dtype.kind in "fiub" else leaf

    return mapped(leaf_to_device, batch)


def stages_of(transform: Transform | Sequence[Transform] | None) -> tuple[tuple[Transform, bool], ...]:
    """The transforms in order, each with whether it takes draws; `DataError` for an object that is no function."""
    transforms = (
        [] if transform is None else [transform] if callable(transform) else list(cast("Sequence[Any]", transform))
    )
    for function in transforms:
        if not callable(function):
            raise DataError(f"Loader: transform holds {function!r}; give functions of a batch")
    return tuple((function, _takes_draws(function)) for function in transforms)


def _takes_draws(transform: Transform) -> bool:
    """Does the function need a second argument? If Python does not know its signature, it has one."""
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    if len(needed) > 2:
        raise DataError(
            f"Loader: transform {transform!r} takes {len(needed)} arguments; it gets a batch, or a batch and draws"
        )
    return len(needed) == 2
