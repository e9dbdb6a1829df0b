"""The UCI handwritten digits that come with Phlox, and a split of labelled data into a training and a test set.

Source, licence (CC BY 4.0) and checksum of the data are in `DIGITS.md` beside this file.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phlox.data.order import classes_of
from phlox.errors import DataError

SHA256 = "b3b9c8cc11d765ce4264d8748bf3edbafa5038d91c93cf713ddbd6ae8652b410"


@dataclass(frozen=True)
class Digits:
    """The handwritten digits, as `load_digits` returns them.

    Attributes:
        images: `uint8 [1797, 8, 8]`, from 0 (paper) to 16 (ink); the first pixel is the top left one.
        labels: `uint8 [1797]`, the digit that each image shows.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


def load_digits() -> Digits:
    """The 1,797 handwritten digits that come with Phlox, in new arrays.

    Raises:
        DataError: the data file of the installation is missing or damaged.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
    https://doi.org/10.24432/C50P49 (the test part).

    >>> digits = load_digits()
    >>> digits.images.shape, digits.labels.shape
    ((1797, 8, 8), (1797,))
    >>> digits.labels[:10].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    file = resources.files("phlox.data").joinpath("digits.npz")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); install Phlox again") from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise DataError(f"{file}: damaged, its checksum is wrong; install Phlox again")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Digits(arrays["images"], arrays["labels"])


class Split(NamedTuple):
    """A training and a test set; each row of the data is in exactly one of them."""

    train_images: npt.NDArray[Any]
    train_labels: npt.NDArray[Any]
    test_images: npt.NDArray[Any]
    test_labels: npt.NDArray[Any]


def split(images: npt.ArrayLike, labels: npt.ArrayLike, held_out: float = 0.2, seed: int = 0) -> Split:
    """Split labelled images into a training and a test set, each label in the same proportion.

    The test set gets `held_out * n` of the `n` images of a label, rounded half up: the first ones in the order of the
    SHA-256 of the text `"{seed}:{index}"`, where `index` is the image's index in `images`. So the split is the same on
    every machine and with every version of Python and NumPy. Both sets keep the order of `images`.

    Args:
        images: `[n, ...]`, of any dtype.
        labels: `[n]`, integers (or anything that NumPy can compare).
        held_out: the fraction of the test set, between 0 and 1, both excluded.
        seed: the seed; another seed gives another split.

    Raises:
        DataError: the two lengths differ, `labels` has more than one axis, a label is missing, or one of the sets
            would be empty.

    >>> digits = load_digits()
    >>> parts = split(digits.images, digits.labels)
    >>> len(parts.train_labels), len(parts.test_labels)
    (1438, 359)
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if labels.ndim != 1 or images.shape[:1] != labels.shape:
        raise DataError(
            f"split: labels of shape {labels.shape} do not fit images of shape {images.shape}; "
            "give one label for each image"
        )
    if not 0.0 < held_out < 1.0:
        raise DataError(f"split: held_out is {held_out}; give a fraction between 0 and 1, such as 0.2")
    test = np.zeros(len(labels), dtype=np.bool_)
    kinds, counts = classes_of(labels, len(labels), "split: labels")
    for kind in range(len(counts)):
        members = _in_hashed_order(np.flatnonzero(kinds == kind).tolist(), seed)
        test[members[: int(held_out * len(members) + 0.5)]] = True
    if test.all() or not test.any():
        raise DataError(
            f"split: {len(labels)} images with held_out={held_out} leave the {'training' if test.all() else 'test'} "
            "set empty; give more images, or another held_out"
        )
    return Split(images[~test], labels[~test], images[test], labels[test])


def _in_hashed_order(indices: Iterable[int], seed: int) -> list[int]:
    return sorted(indices, key=lambda index: hashlib.sha256(f"{seed}:{index}".encode()).digest())
