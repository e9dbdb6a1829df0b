"""`Grid`: processes in a grid with named axes, for engines whose processes communicate explicitly."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from phlox.backend.parallel import RowGroup

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Grid:
    """The processes, each one device, in a grid with named axes; the last axis counts fastest.

    >>> grid = Grid(("replica", "data"), (2, 4), rank=6)
    >>> grid.place(("data",)), grid.ranks(("data",)), grid.ranks(("replica",))
    (2, (4, 5, 6, 7), (2, 6))
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rank: int
    """The rank of this process."""
    stage: int = 3
    """The stage of ZeRO of arrays in slices: from stage 3 on, a gathered array is freed after use."""

    @property
    def size(self) -> int:
        """The number of processes."""
        return math.prod(self.sizes)

    def count(self, names: tuple[str, ...]) -> int:
        """The number of processes along some axes."""
        return math.prod(self.sizes[self.names.index(name)] for name in names)

    def place(self, names: tuple[str, ...]) -> int:
        """The index of this process among those along some axes."""
        return self.ranks(names).index(self.rank)

    def ranks(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks of the processes that have this one's coordinates on all other axes."""
        return _ranks(self, names)

    def others(self, names: Iterable[str]) -> tuple[str, ...]:
        """The axes other than these that have several processes."""
        excluded = set(names)
        return tuple(
            [name for name, size in zip(self.names, self.sizes, strict=True) if size > 1 and name not in excluded]
        )

    def at(self, stage: int) -> Grid:
        """The same processes at another stage."""
        return self if stage == self.stage else replace(self, stage=stage)

    def rows(self, names: tuple[str, ...]) -> RowGroup:
        """This process's part of the rows of a batch that is sharded over some axes."""
        return RowGroup(self.place(names), self.count(names))


@lru_cache(maxsize=256)
def _ranks(grid: Grid, names: tuple[str, ...]) -> tuple[int, ...]:
    strides = [math.prod(grid.sizes[number + 1 :]) for number in range(len(grid.sizes))]
    coords = [grid.rank // stride % size for stride, size in zip(strides, grid.sizes, strict=True)]
    start = sum(i * stride for name, i, stride in zip(grid.names, coords, strides, strict=True) if name not in names)
    ranks = [start]
    for name in names:
        number = grid.names.index(name)
        ranks = [rank + step * strides[number] for rank in ranks for step in range(grid.sizes[number])]
    return tuple(ranks)
