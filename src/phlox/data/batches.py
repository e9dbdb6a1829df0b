"""Mini-batches of arrays, in an order that depends only on the seed and the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from phlox.backend.threefry.generator import fold_in, random_permutation
from phlox.errors import DataError

Transform: TypeAlias = Callable[[int, tuple[npt.NDArray[Any], ...]], tuple[npt.NDArray[Any], ...]]
"""`(step, batch)` to the batch to return, such as `RandomAffine`; `step` counts batches through all epochs."""

_LAST_SEED = 2**64 - 1
_LAST_EPOCH = 2**32 - 2  # the position after it is reserved for sub-streams
_SUB_STREAM = int.from_bytes(b"data")


class Batches:
    """Deprecated: use `Loader`. Mini-batches of arrays with corresponding rows, such as images and labels.

    It has no state: `epoch(e, start=i)` always returns the same batches, those of epoch `e` from batch `i` on. So a run
    that saves `(e, i)` resumes exactly there. Several threads may read epochs at the same time, in any order.

    If shuffled, epoch `e` has the order of the Threefry permutation at position `e` of a separate sub-stream of the
    seed. It is the same on every machine and for every backend, and independent of other draws with that seed. NumPy's
    global generator is not used.

    Args:
        arrays: at least one array `[n, ...]`, all of the same length `n`.
        batch_size: the number of rows in a batch.
        shuffle: whether each epoch has its own order; otherwise each has the order of the arrays.
        seed: the seed of the shuffling, from 0 to `2**64 - 1`.
        drop_last: whether to omit a last batch with fewer rows. By default it is omitted if `shuffle` is True, as in
            training: all steps then have the same shape and weight, and each epoch omits other rows. Without shuffling,
            as in evaluation, it is kept by default, so that every row counts.
        transform: a function that is applied to each batch, `(step, batch) -> batch`, such as `RandomAffine`. The step
            of batch `i` of epoch `e` is `e * len(self) + i`.

    Raises:
        DataError: there is no array, lengths differ, there are no rows, or an argument is out of range.

    >>> import warnings
    >>> import numpy as np
    >>> warnings.simplefilter("ignore", DeprecationWarning)
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
        warnings.warn(
            "Batches is deprecated and goes with 0.3.0; use Loader((x, y), batch_size), which "
            "keeps a last batch of fewer rows unless drop_last=True",
            DeprecationWarning,
            stacklevel=2,
        )
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
                f"Batches: {self.num_rows} rows do not fill a batch of {batch_size}; "
                "give more rows, a smaller batch_size, or drop_last=False"
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(self.num_rows, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """The batches of an epoch, from batch `start` on, with shape `[batch_size, ...]` for each array.

        Unshuffled batches are views of the arrays, not copies.

        Args:
            epoch: the number of the epoch, from 0; without shuffling, all epochs are the same.
            start: the first batch, counted from 0; `len(self)` gives no batches.

        Raises:
            DataError: `epoch` or `start` is out of range.
        """
        # This method is not a generator itself, so that a wrong argument is reported here and not at the first batch.
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
