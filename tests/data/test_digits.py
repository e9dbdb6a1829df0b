from __future__ import annotations

import hashlib
import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.data import digits as module
from phlox.data import load_digits, split
from phlox.errors import DataError, PhloxError

# From the description that UCI publishes with the data: examples of each class in the test part.
PUBLISHED_COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]

# The first line of UCI's optdigits.tes.
PUBLISHED_FIRST = [
    [0, 0, 5, 13, 9, 1, 0, 0],
    [0, 0, 13, 15, 10, 15, 5, 0],
    [0, 3, 15, 2, 0, 11, 8, 0],
    [0, 4, 12, 0, 0, 8, 8, 0],
    [0, 5, 8, 0, 0, 9, 8, 0],
    [0, 4, 11, 0, 1, 12, 7, 0],
    [0, 2, 14, 5, 10, 12, 0, 0],
    [0, 0, 6, 13, 10, 0, 0, 0],
]


def test_the_digits_are_those_that_uci_publishes() -> None:
    digits = load_digits()
    assert digits.images.shape == (1797, 8, 8)
    assert digits.labels.shape == (1797,)
    assert digits.images.dtype == digits.labels.dtype == np.uint8
    assert np.bincount(digits.labels).tolist() == PUBLISHED_COUNTS
    assert digits.images[0].tolist() == PUBLISHED_FIRST
    assert digits.labels[0] == 0
    assert (digits.images.min(), digits.images.max()) == (0, 16)


def test_each_call_gives_arrays_of_its_own() -> None:
    load_digits().images[:] = 0
    assert load_digits().images.any()


def test_the_checksum_in_the_description_is_that_of_the_file() -> None:
    folder = resources.files("phlox.data")
    checksum = hashlib.sha256(folder.joinpath("digits.npz").read_bytes()).hexdigest()
    assert checksum in folder.joinpath("DIGITS.md").read_text(encoding="utf-8")


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data file, which `load_digits` reads instead."""
    target = tmp_path / "digits.npz"
    shutil.copy(str(resources.files("phlox.data").joinpath("digits.npz")), target)
    monkeypatch.setattr(module.resources, "files", lambda _: tmp_path)
    load_digits()
    return target


def test_a_damaged_data_file_is_refused(installation: Path) -> None:
    data = bytearray(installation.read_bytes())
    data[len(data) // 2] ^= 1
    installation.write_bytes(data)
    with pytest.raises(DataError, match=r"digits\.npz: damaged, .*install Phlox again"):
        load_digits()


def test_a_missing_data_file_is_refused(installation: Path) -> None:
    installation.unlink()
    with pytest.raises(PhloxError, match=r"digits\.npz: cannot be read .*install Phlox again"):
        load_digits()


def test_the_split_of_the_digits_is_stratified_and_complete() -> None:
    digits = load_digits()
    parts = split(digits.images, digits.labels)
    assert np.bincount(parts.test_labels).tolist() == [int(0.2 * n + 0.5) for n in PUBLISHED_COUNTS]
    assert (np.bincount(parts.train_labels) + np.bincount(parts.test_labels)).tolist() == PUBLISHED_COUNTS
    whole = sorted(zip(digits.labels.tolist(), (image.tobytes() for image in digits.images), strict=True))
    train = zip(parts.train_labels.tolist(), (image.tobytes() for image in parts.train_images), strict=True)
    test = zip(parts.test_labels.tolist(), (image.tobytes() for image in parts.test_images), strict=True)
    assert sorted([*train, *test]) == whole


def test_the_split_is_the_documented_one() -> None:
    # The hash of "7:0", "7:1", ...; there is one label, so the two smallest of ten are the test part.
    hashes = {index: hashlib.sha256(b"7:%d" % index).hexdigest() for index in range(10)}
    expected = sorted(sorted(hashes, key=hashes.__getitem__)[:2])
    rows = np.arange(10)
    parts = split(rows, np.zeros(10, dtype=int), held_out=0.2, seed=7)
    assert parts.test_images.tolist() == expected


def test_the_split_stays_the_same_for_ever() -> None:
    # Fixed values: users compare test accuracies across versions of Phlox.
    digits = load_digits()
    rows = np.arange(len(digits.labels))
    of_seed_0, of_seed_1 = [7, 15, 18, 20, 25, 36, 44, 46, 57, 61], [27, 29, 30, 35, 38, 39, 42, 44, 49, 50]
    assert split(rows, digits.labels).test_images[:10].tolist() == of_seed_0
    assert split(rows, digits.labels, seed=1).test_images[:10].tolist() == of_seed_1


def test_the_split_leaves_numpy_generator_alone() -> None:
    digits = load_digits()
    np.random.seed(0)  # noqa: NPY002
    split(digits.images, digits.labels)
    assert np.random.random() == np.random.RandomState(0).random()  # noqa: NPY002


@given(
    labels=st.lists(st.integers(0, 3), min_size=8, max_size=60),
    held_out=st.floats(0.25, 0.7),  # of 8 rows, some label has two or more, so that neither part is empty
    seed=st.integers(0, 2**40),
)
def test_every_row_is_in_one_part_and_every_label_in_proportion(labels: list[int], held_out: float, seed: int) -> None:
    rows = np.arange(len(labels))
    parts = split(rows, labels, held_out, seed)
    assert sorted([*parts.train_images, *parts.test_images]) == rows.tolist()
    assert parts.test_labels.tolist() == [labels[row] for row in parts.test_images]
    assert parts.train_labels.tolist() == [labels[row] for row in parts.train_images]
    for label in set(labels):
        assert abs((parts.test_labels == label).sum() - held_out * labels.count(label)) <= 0.5 + 1e-9


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_proportion_out_of_range_is_refused(held_out: float) -> None:
    with pytest.raises(DataError, match="held_out is .*between 0 and 1"):
        split(np.zeros((4, 8, 8)), np.zeros(4), held_out=held_out)


@pytest.mark.parametrize("labels", [np.zeros(3), np.zeros((4, 1)), np.zeros(())])
def test_labels_that_do_not_fit_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"labels of shape .* do not fit images of shape \(4, 8, 8\)"):
        split(np.zeros((4, 8, 8)), labels)


@pytest.mark.parametrize(("count", "held_out", "part"), [(2, 0.2, "test"), (2, 0.9, "training"), (0, 0.5, "t")])
def test_an_empty_part_is_refused(count: int, held_out: float, part: str) -> None:
    with pytest.raises(DataError, match=f"leave the {part}.* set empty"):
        split(np.zeros((count, 8, 8)), np.zeros(count), held_out=held_out)
