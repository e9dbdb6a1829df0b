"""Mini-batches of arrays, in an order that depends on nothing but the seed and the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from phlox.backend.threefry.generator import fold_in, random_permutation
from phlox.errors import DataError

Transform: TypeAlias = Callable[[int, tuple[npt.NDArray[Any], ...]], tuple[npt.NDArray[Any], ...]]
"""`(step, batch)` to the batch that is given out, such as `RandomAffine`; `step` counts batches through all epochs."""

_LAST_SEED = 2**64 - 1
_LAST_EPOCH = 2**32 - 2  # the position after it is reserved for sub-streams
_SUB_STREAM = int.from_bytes(b"data")


class Batches:
    """Mini-batches of arrays that belong together row by row, such as images and labels.

    It holds no position: `epoch(e, start=i)` gives the batches of epoch `e` from batch `i` on, always the same ones, so
    a run that writes down `(e, i)` resumes exactly there. Epochs may be read at once, in any order, by several threads.

    Shuffled, epoch `e` is in the order of the Threefry permutation at position `e` of a sub-stream of the seed's own:
    the same on every machine and for every backend, and unrelated to what else is drawn with that seed. NumPy's global
    generator is left alone.

    Args:
        arrays: at least one array `[n, ...]`, all of the same length `n`.
        batch_size: rows in a batch.
        shuffle: whether each epoch has an order of its own; otherwise each is in the order of the arrays.
        seed: of the shuffling; from 0 to `2**64 - 1`.
        drop_last: whether a last batch of fewer rows is left out. By default it is when shuffling, which is training:
            all steps then have one shape and one weight, and each epoch leaves out other rows. Unshuffled, which is
            evaluation, every row counts and is kept.
        transform: what each batch goes through, `(step, batch) -> batch`; such as `RandomAffine`. The step of batch `i`
            of epoch `e` is `e * len(self) + i`.

    Raises:
        DataError: no array, lengths that differ, no rows, or a number out of range.

    >>> import numpy as np
    >>> batches = Batches(np.arange(5), batch_size=2)
    >>> [rows.tolist() for (rows,) in batches.epoch()]
    [[0, 1], [2, 3], [4]]
    >>> training = Batches(np.arange(5), batch_size=2, shuffle=True, seed=1)
    >>> first, second = training.epoch(3)
    >>> (resumed,) = training.epoch(3, start=1)
    >>> bool((resumed[0] == second[0]).all())
    True
    """

    def __init__(
        self,
        *arrays: npt.ArrayLike,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.arrays: tuple[npt.NDArray[Any], ...] = tuple(np.asarray(array) for array in arrays)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = shuffle if drop_last is None else drop_last
        self.transform = transform
        shapes = [array.shape for array in self.arrays]
        if not shapes or any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise DataError(f"Batches: got arrays of shapes {shapes}; give one or more of the same length")
        self.num_rows = shapes[0][0]
        if batch_size < 1:
            raise DataError(f"Batches: batch_size is {batch_size}; give 1 or more")
        if not 0 <= seed <= _LAST_SEED:
            raise DataError(f"Batches: seed is {seed}; give 0 to 2**64 - 1")
        if len(self) == 0:
            raise DataError(
                f"Batches: {self.num_rows} rows make no batch of {batch_size}; give more rows, a smaller batch_size, "
                "or drop_last=False"
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(self.num_rows, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """The batches of an epoch, from batch `start` on: of each array `[batch_size, ...]`.

        Unshuffled batches are views of the arrays, not copies.

        Args:
            epoch: counted from 0; unshuffled, all epochs are alike.
            start: the first batch to give, counted from 0; `len(self)` gives none.

        Raises:
            DataError: `epoch` or `start` is out of range.
        """
        # Not itself a generator, so that a wrong number is reported here and not at the first batch.
        if not 0 <= epoch <= _LAST_EPOCH:
            raise DataError(f"Batches: epoch is {epoch}; give 0 to 2**32 - 2")
        if not 0 <= start <= len(self):
            raise DataError(f"Batches: start is {start}, but an epoch has batches 0 to {len(self) - 1}")
        return self._batches(self._order(epoch), epoch, start)

    def _order(self, epoch: int) -> npt.NDArray[Any] | None:
        if not self.shuffle:
            return None
        key = fold_in((self.seed >> 32, self.seed & 0xFFFFFFFF), _SUB_STREAM)
        return random_permutation(np.array([*key, epoch], dtype=np.uint32), self.num_rows)

    def _batches(
        self, order: npt.NDArray[Any] | None, epoch: int, start: int
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        for number in range(start, len(self)):
            rows = slice(number * self.batch_size, (number + 1) * self.batch_size)
            batch = tuple(array[rows if order is None else order[rows]] for array in self.arrays)
            yield batch if self.transform is None else self.transform(epoch * len(self) + number, batch)
