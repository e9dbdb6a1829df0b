"""The second argument of a transform: the numbers of the batch's rows, and random numbers for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox.backend.threefry.generator import fold_in
from phlox.data.order import Rows, uniform_at
from phlox.errors import DataError

_SUB_STREAM = int.from_bytes(b"rows")


def _nothing_to_load(rows: Rows) -> Any:
    raise DataError("these draws belong to no loader, so there is no source to load other rows from")


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of a batch; each depends only on the seed, the epoch and the number of the row.

    So a row gets the same augmentation in any batch, and with any number of workers or processes.

    Attributes:
        seed: the seed of the loader.
        epoch: the number of the epoch, from 0.
        rows: `int64 [n]`, the number in the source of each row of the batch.
        num_rows: the number of rows in the source.
        stage: the index of the transform, so that each transform draws different numbers.

    >>> draws = Draws(seed=0, epoch=1, rows=np.array([4, 9]))
    >>> alone = Draws(seed=0, epoch=1, rows=np.array([9]))
    >>> bool(draws.uniform("angle")[1] == alone.uniform("angle")[0])
    True
    """

    seed: int
    epoch: int
    rows: Rows
    num_rows: int = 1
    stage: int = 0
    load: Callable[[Rows], Any] = field(default=_nothing_to_load, repr=False, compare=False)
    """A function from row numbers to a batch of these rows, which has gone through the transforms before this one."""

    def __len__(self) -> int:
        return len(self.rows)

    def at_stage(self, stage: int) -> Draws:
        """The draws of the same rows for another transform; its numbers differ."""
        return replace(self, stage=stage)

    def uniform(
        self, name: str, low: float = 0.0, high: float = 1.0, size: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Draw uniform numbers in [low, high): one for each row, float32 [n], or `size` for each row, [n, size].

        Args:
            name: a name for the numbers. Another name gives other numbers.
            low: the lower bound, included.
            high: the upper bound, excluded.
            size: the number of numbers for each row.

        Raises:
            DataError: `high` is below `low`.
        """
        if not low <= high:
            raise DataError(f"uniform: {name} has low {low} and high {high}; give a high of at least low")
        columns = [self._unit(name, number) for number in range(1 if size is None else size)]
        unit = columns[0] if size is None else np.stack(columns, axis=1)
        return (low + (high - low) * unit).astype(np.float32)

    def integers(self, name: str, low: int, high: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Draw an integer in [low, high) for each row, int64 [n]; `high` may be an array, a bound for each row."""
        return (low + np.floor(self._unit(name, 0) * (np.asarray(high) - low))).astype(np.int64)

    def happens(self, name: str, probability: float) -> npt.NDArray[np.bool_]:
        """Draw True with this probability for each row, bool [n]."""
        return self._unit(name, 0) < probability

    def _unit(self, name: str, number: int) -> npt.NDArray[np.float64]:
        return uniform_at(self.rows, _key(self.seed, self.epoch, self.stage, name), number)


@lru_cache(256)
def _key(seed: int, epoch: int, stage: int, name: str) -> tuple[int, int]:
    """The key of a named draw, the same for all batches of an epoch."""
    key = fold_in(fold_in((seed >> 32, seed & 0xFFFFFFFF), _SUB_STREAM), epoch)
    return fold_in(fold_in(key, stage), _code(name))


def _code(name: str) -> int:
    """FNV-1a of 32 bits: Python's own hash of a text differs from process to process."""
    code = 0x811C9DC5
    for byte in name.encode():
        code = (code ^ byte) * 0x01000193 & 0xFFFFFFFF
    return code
