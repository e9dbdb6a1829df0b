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
from phlox.data.sources import Source, listed
from phlox.data.structure import is_array, mapped
from phlox.errors import DataError
from phlox.tensor import tensor

Transform = Callable[..., Any]
"""A function of `(batch)` or `(batch, draws)` that returns the new batch; see `Draws`."""

Collate = Callable[[Sequence[Any]], Any]
"""A function from a list of rows to a batch."""

_AT_ONCE = 4096
"""The number of positions of an order that are looked up in one call."""


class Task(NamedTuple):
    """Which batch: what workers are asked for, and what messages call it."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.epoch}"


class SkippedRow(NamedTuple):
    """A row that a loader with `on_error="skip"` could not read."""

    row: int
    """The number of the row in the source."""
    error: str
    """The message of the error."""


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
    device: Device | None = field(default=None)
    block: list[tuple[int, int, Rows]] = field(default_factory=list[tuple[int, int, Rows]], compare=False, repr=False)
    """The rows of the last positions that were asked for: epoch, number of the block, and the rows."""

    def __call__(self, task: Task) -> tuple[Any, list[SkippedRow], int]:
        rows = self.rows(task)
        batch, rows, skipped = self._fetched(rows)
        if self.stages:
            batch = self._through(batch, Draws(self.seed, task.epoch, rows, len(self.source)), len(self.stages))
        return (batch if self.device is None else placed(batch, self.device)), skipped, len(rows)

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
            rows = self.order.rows(
                positions, len(self.source), seed=self.seed, epoch=task.epoch, batch_size=self.batch_size
            )
            known = task.epoch, block, rows
            self.block[:] = [known]
        return known[2][first - block * width : last - block * width]

    def _fetched(self, rows: Rows) -> tuple[Any, Rows, list[SkippedRow]]:
        try:
            return self._batch(rows), rows, []
        except Exception as error:
            bad = self._bad_rows(rows)
            if not bad:  # each can be read alone: they do not fit together
                raise
            if not self.skips:
                row, reason = bad[0]
                raise DataError(
                    f"row {row} of the source cannot be read: {reason}; on_error='skip' leaves such rows out"
                ) from error
        good = rows[~np.isin(rows, [row for row, _ in bad])]
        if not len(good):
            raise DataError(f"none of the {len(rows)} rows of a batch can be read; row {bad[0].row}: {bad[0].error}")
        return self._batch(good), good, bad

    def _bad_rows(self, rows: Rows) -> list[SkippedRow]:
        bad = list[SkippedRow]()
        for place in range(len(rows)):
            try:
                self._batch(rows[place : place + 1])
            except Exception as error:
                bad.append(SkippedRow(int(rows[place]), f"{type(error).__name__}: {error}"))
        return bad

    def _batch(self, rows: Rows) -> Any:
        return self.source[rows] if self.collate is None else self.collate(listed(self.source, rows))

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
