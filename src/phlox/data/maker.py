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
from phlox.data.sources import listed
from phlox.data.structure import is_array, mapped, owned
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
    """Which batch: what workers are asked for, and what messages call it."""

    epoch: int
    number: int
    device: Device | None = None
    """Where its arrays are put, as tensors; None leaves NumPy's arrays."""

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.epoch}"


class SkippedRow(NamedTuple):
    """A row that a loader with `on_error="skip"` could not read."""

    row: int
    """The number of the row in the source."""
    error: str
    """The message of the error."""


class Made(NamedTuple):
    """A batch, and what became of its rows."""

    batch: Any
    skipped: list[SkippedRow]
    rows: int
    """How many rows it has; with none of those asked for there is no batch."""


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
    """The rows of the last positions that were asked for: epoch, number of the block, and the rows."""

    def __call__(self, task: Task) -> Made:
        rows: Rows | None = None
        try:
            rows = self.rows(task)
            batch, good, skipped = self._fetched(rows)
            if skipped and not len(good):
                return Made(None, skipped, 0)
            rows = good
            if self.stages:
                batch = self._through(batch, Draws(self.seed, task.epoch, rows, len(self.source)), len(self.stages))
            return Made(batch if task.device is None else placed(batch, task.device), skipped, len(rows))
        except Exception as error:
            error.add_note(f"in {task}{'' if rows is None else f', rows {_shown(rows)}'}")
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
        known = self.block[0] if self.block else None
        if known is None or known[:2] != (task.epoch, block):
            positions = np.arange(block * width, min((block + 1) * width, self.length))
            known = task.epoch, block, self._ordered(positions, task.epoch)
            self.block[:] = [known]
        return known[2][first - block * width : last - block * width]

    def _ordered(self, positions: Rows, epoch: int) -> Rows:
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

    def _fetched(self, rows: Rows) -> tuple[Any, Rows, list[SkippedRow]]:
        try:
            return self._batch(rows), rows, []
        except Exception as error:
            bad = self._bad_rows(rows)
            if not bad:  # each can be read alone: they do not fit together
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
            listed(self.source, rows)
        except Exception:
            return False
        return True

    def _bad_rows(self, rows: Rows) -> list[SkippedRow]:
        bad = list[SkippedRow]()
        for place in range(len(rows)):
            try:
                self._batch(rows[place : place + 1])
            except Exception as error:
                bad.append(SkippedRow(int(rows[place]), f"{type(error).__name__}: {error}"))
        return bad

    def _batch(self, rows: Rows) -> Any:
        return owned(self.source[rows]) if self.collate is None else self.collate(listed(self.source, rows))

    def _through(self, batch: Any, draws: Draws, stages: int) -> Any:
        for number, (transform, takes_draws) in enumerate(self.stages[:stages]):
            if takes_draws:
                at = replace(draws.at_stage(number), load=self._loading(draws, number))
                batch = transform(batch, at)
            else:
                batch = transform(batch)
        return batch

    def _loading(self, draws: Draws, stage: int) -> Callable[[Rows], Any]:
        return lambda rows: self._through(self._batch(rows), replace(draws, rows=rows), stage)


def _shown(rows: Rows) -> str:
    return ", ".join(map(str, rows[:_SHOWN].tolist())) + ", ..." * (len(rows) > _SHOWN)


def placed(batch: Any, device: Device) -> Any:
    """A batch with its arrays as tensors on a device; texts and other objects stay as they are."""

    def moved(leaf: Any) -> Any:
        return tensor(leaf, device=device) if is_array(leaf) and leaf.dtype.kind in "fiub" else leaf

    return mapped(moved, batch)


def stages_of(transform: Transform | Sequence[Transform] | None) -> tuple[tuple[Transform, bool], ...]:
    """The transforms in order, each with whether it takes draws; `DataError` for an object that is no function."""
    transforms = (
        [] if transform is None else [transform] if callable(transform) else list(cast("Sequence[Any]", transform))
    )
    for one in transforms:
        if not callable(one):
            raise DataError(f"Loader: transform holds {one!r}; give functions of a batch")
    return tuple((one, _takes_draws(one)) for one in transforms)


def _takes_draws(transform: Transform) -> bool:
    """Has the function a second argument that must be given? Where Python cannot tell, it has one argument."""
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    if len(needed) > 2:
        raise DataError(
            f"Loader: transform {transform!r} takes {len(needed)} arguments; it is given a batch, or a batch and draws"
        )
    return len(needed) == 2
