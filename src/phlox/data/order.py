"""Orders: the rows of a batch, as a function only of the seed, the epoch and the positions in the epoch.

No order makes an array of all rows for each epoch, so an epoch of a billion rows begins at once, and any of its batches
can be computed alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox.backend.threefry.generator import fold_in, random_bits, random_permutation
from phlox.errors import DataError

Rows = npt.NDArray[np.int64]


def check_number(name: str, value: Any, least: int, most: int | None = None) -> None:
    """`DataError` unless this is a whole number within bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or value < least
        or (most is not None and value > most)
    ):
        bounds = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"
        raise DataError(f"{name} is {value!r}; give {bounds}")


VERSION = 1
"""The version of the orders in this file. A saved position has it, since another version would give other rows."""

_SUB_STREAM = int.from_bytes(b"data")
_SMALL = 1 << 12
"""Up to this many rows a permutation is sorted as a whole; for more, only the requested positions are computed."""
_ROUNDS = 8


def key_of(seed: int, epoch: int) -> tuple[int, int]:
    """The key of the draws that belong to the order of one epoch."""
    return fold_in(fold_in((seed >> 32, seed & 0xFFFFFFFF), _SUB_STREAM), epoch)


def permute(positions: Rows, n: int, key: tuple[int, int]) -> Rows:
    """The entries at `positions` of a random permutation of 0..n-1, without computing the others.

    A Feistel network over pairs (a, b) with a * b >= n: each round adds a hash of one part to the other. A round can be
    undone, so no two positions have the same result. A result of n or more goes through the network again, until it is
    below n (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).

    >>> everything = permute(np.arange(100_000), 100_000, (0, 7))
    >>> bool((np.sort(everything) == np.arange(100_000)).all())
    True
    >>> int(permute(np.array([31]), 100_000, (0, 7))[0]) == int(everything[31])
    True
    """
    if n <= _SMALL:
        return _permutation(n, key)[positions]
    sides = math.isqrt(n - 1) + 1
    height = np.uint64(sides)
    width = np.uint64(-(-n // sides))
    keys = random_bits(np.array([*key, 0], np.uint32), 2 * _ROUNDS).astype(np.uint64)
    keys = keys[::2] << np.uint64(32) | keys[1::2]
    out = positions.astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):
        upper, lower = np.divmod(out[outside], width)
        for number in range(0, _ROUNDS, 2):
            upper = (upper + _hash_bits(lower ^ keys[number]) % height) % height
            lower = (lower + _hash_bits(upper ^ keys[number + 1]) % width) % width
        out[outside] = upper * width + lower
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)


@lru_cache(4)
def _permutation(n: int, key: tuple[int, int]) -> Rows:
    order = random_permutation(np.array([*key, 0], np.uint32), n).astype(np.int64)
    order.setflags(write=False)
    return order


def _hash_bits(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)."""
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Order(ABC):
    """The base of orders of rows in an epoch. Implement `length` and `rows`.

    Both must depend only on their arguments: workers, processes and resumed trainings each call them.

    >>> class Backwards(Order):
    ...     def rows(self, positions, num_rows, *, seed, epoch, batch_size):
    ...         return num_rows - 1 - positions
    >>> Backwards().rows(np.arange(3), 3, seed=0, epoch=0, batch_size=2).tolist()
    [2, 1, 0]
    """

    def length(self, num_rows: int) -> int:
        """The number of positions in an epoch of a source with `num_rows` rows."""
        return num_rows

    @abstractmethod
    def rows(self, positions: Rows, num_rows: int, *, seed: int, epoch: int, batch_size: int) -> Rows:
        """The numbers of the rows at the given positions of an epoch."""


@dataclass(frozen=True)
class InOrder(Order):
    """The order of the source, each row once; the default of a `Loader`.

    >>> InOrder().rows(np.arange(3), 5, seed=0, epoch=0, batch_size=2).tolist()
    [0, 1, 2]
    """

    def rows(self, positions: Rows, num_rows: int, *, seed: int, epoch: int, batch_size: int) -> Rows:
        return positions


@dataclass(frozen=True)
class Shuffled(Order):
    """A random order that differs in each epoch, each row once; a `Loader` uses it with `shuffle=True`.

    >>> Shuffled().rows(np.arange(5), 5, seed=0, epoch=0, batch_size=2).tolist()
    [3, 4, 1, 0, 2]
    """

    def rows(self, positions: Rows, num_rows: int, *, seed: int, epoch: int, batch_size: int) -> Rows:
        return permute(positions, num_rows, key_of(seed, epoch))


@dataclass(frozen=True)
class Weighted(Order):
    """An order of rows drawn with replacement, in proportion to their weights.

    Args:
        weights: a number of at least 0 for each row, [n]; they need not add up to 1.
        num_samples: the number of rows in an epoch; by default as many as the source has.

    Raises:
        DataError: a weight is negative or not finite, or all are zero.

    >>> order = Weighted([0.0, 1.0, 3.0])
    >>> drawn = order.rows(np.arange(1000), 3, seed=0, epoch=0, batch_size=10)
    >>> np.bincount(drawn, minlength=3).tolist()
    [0, 269, 731]
    """

    weights: Sequence[float] | npt.NDArray[Any]
    num_samples: int | None = None
    _upto: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False, default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        weights = numbers_of(self.weights, "Weighted: weight")
        upto = np.cumsum(weights)
        if not upto.size or upto[-1] <= 0.0:
            raise DataError("Weighted: all weights are zero; give at least one row a positive weight")
        if self.num_samples is not None:
            check_number("Weighted: num_samples", self.num_samples, 1)
        object.__setattr__(self, "_upto", upto / upto[-1])

    def length(self, num_rows: int) -> int:
        if num_rows != len(self._upto):
            raise DataError(f"Weighted: {len(self._upto)} weights for {num_rows} rows; give one for each row")
        return num_rows if self.num_samples is None else self.num_samples

    def rows(self, positions: Rows, num_rows: int, *, seed: int, epoch: int, batch_size: int) -> Rows:
        return np.searchsorted(self._upto, uniform_at(positions, key_of(seed, epoch)), side="right").astype(np.int64)


def ClassBalanced(labels: npt.ArrayLike, num_samples: int | None = None) -> Weighted:
    """An order of rows drawn with replacement, so that all classes are equally frequent.

    Args:
        labels: the class of each row, [n].
        num_samples: the number of rows in an epoch; by default as many as the source has.

    Raises:
        DataError: a label is missing, or `labels` is not one for each row.

    >>> drawn = ClassBalanced(["cat"] * 90 + ["dog"] * 10).rows(np.arange(1000), 100, seed=1, epoch=0, batch_size=10)
    >>> bool(450 < (drawn >= 90).sum() < 550)
    True
    """
    classes, counts = classes_of(labels, None, "ClassBalanced: labels")
    return Weighted(1.0 / counts[classes], num_samples)


@dataclass(frozen=True)
class ByLength(Order):
    """An order with rows of similar length in one batch, so that little is padded; each row once.

    The rows are shuffled and then sorted by length within groups of `batches` batches; the batches come in random
    order.

    Args:
        lengths: the length of each row, [n], such as the number of tokens.
        batches: the number of batches that are sorted together. More means less padding, but less random batches.
        shuffle: whether to shuffle the rows and the batches; give False for evaluation.

    >>> order = ByLength([5, 1, 4, 2], shuffle=False)
    >>> order.rows(np.arange(4), 4, seed=0, epoch=0, batch_size=2).tolist()
    [1, 3, 2, 0]
    """

    lengths: Sequence[int] | npt.NDArray[Any]
    batches: int = 64
    shuffle: bool = True

    def __post_init__(self) -> None:
        numbers_of(self.lengths, "ByLength: length")
        check_number("ByLength: batches", self.batches, 1)

    def length(self, num_rows: int) -> int:
        if num_rows != len(self.lengths):
            raise DataError(f"ByLength: {len(self.lengths)} lengths for {num_rows} rows; give one for each row")
        return num_rows

    def rows(self, positions: Rows, num_rows: int, *, seed: int, epoch: int, batch_size: int) -> Rows:
        size = batch_size * self.batches
        chunks = positions // size
        out = np.empty_like(positions)
        for chunk in np.unique(chunks):
            mask = chunks == chunk
            out[mask] = self._chunk(int(chunk), size, num_rows, key_of(seed, epoch), batch_size)[positions[mask] % size]
        return out

    def _chunk(self, chunk: int, size: int, num_rows: int, key: tuple[int, int], batch_size: int) -> Rows:
        positions = np.arange(chunk * size, min((chunk + 1) * size, num_rows))
        rows = permute(positions, num_rows, key) if self.shuffle else positions
        rows = rows[np.argsort(np.asarray(self.lengths)[rows], kind="stable")]
        num_batches = len(rows) // batch_size
        if not self.shuffle or num_batches < 2:
            return rows
        order = permute(np.arange(num_batches), num_batches, fold_in(key, chunk))
        parts = [rows[batch * batch_size : (batch + 1) * batch_size] for batch in order]
        return np.concatenate([*parts, rows[num_batches * batch_size :]])


def classes_of(labels: npt.ArrayLike, num_rows: int | None, name: str) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The number of each row's class, from 0, and the number of rows of each class.

    Raises:
        DataError: there is not one label for each row, one is missing, or they cannot be compared.
    """
    try:
        array = np.asarray(labels)
    except ValueError:  # of different lengths
        array = np.array(None, object)
    if array.ndim != 1 or (num_rows is not None and len(array) != num_rows):
        total = "each row" if num_rows is None else f"each of the {num_rows} rows"
        raise DataError(f"{name} have shape {array.shape}; give one for {total}")
    gaps = _missing(array)
    if gaps.size:
        raise DataError(
            f"{name} are missing, first in row {gaps[0]} ({gaps.size} of {len(array)} rows); give these rows a label "
            "of their own, or leave them out: Subset(source, mask)"
        )
    try:
        _, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in array})
        raise DataError(f"{name} are of types {' and '.join(kinds)}, which have no order; give all one type") from None
    return classes.reshape(-1), counts


def _missing(labels: npt.NDArray[Any]) -> Rows:
    """The rows whose label is None, or a value that is not equal to itself: NaN, NaT or the like."""
    if labels.dtype == object:
        return np.flatnonzero([label is None or not _is_itself(label) for label in labels])
    return np.flatnonzero(labels != labels)


def _is_itself(value: Any) -> bool:
    try:
        return bool(value == value)
    except TypeError:  # pandas' NA, which is neither
        return False


def numbers_of(values: Any, name: str) -> npt.NDArray[np.float64]:
    """Finite numbers of at least 0, one for each row; `DataError` names the first that is not."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name}s are no numbers ({error}); give one finite number of at least 0 for each row"
        ) from None
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0.0)))
    if array.ndim != 1 or wrong.size:
        fault = f"{name} {wrong[0]} is {array.ravel()[wrong[0]]}" if array.ndim == 1 else f"its shape is {array.shape}"
        raise DataError(f"{fault}; give one finite number of at least 0 for each row")
    return array


def uniform_at(positions: npt.NDArray[Any], key: tuple[int, int], draw: int = 0) -> npt.NDArray[np.float64]:
    """A uniform number in [0, 1) for each position, independent of the other positions.

    `draw` distinguishes several numbers for one position. The number has 53 bits of a hash of the position:
    SplitMix64's finalizer, twice, keyed by Threefry.
    """
    first, second = _words(key, draw)
    bits = _hash_bits(_hash_bits(positions.astype(np.uint64) ^ first) ^ second)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(256)
def _words(key: tuple[int, int], draw: int) -> tuple[np.uint64, np.uint64]:
    """128 random bits, the same for all batches of an epoch; cached, since they are slow to compute."""
    words = random_bits(np.array([*fold_in(key, draw), 0], np.uint32), 4).astype(np.uint64)
    return words[0] << np.uint64(32) | words[1], words[2] << np.uint64(32) | words[3]
