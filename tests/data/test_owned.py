"""The user's data are the user's: a batch is memory of its own, and what is on the disk is read row by row.

Serves: phlox/data/sources.py, phlox/data/loader.py, phlox/data/maker.py, phlox/data/workers.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.data import Concat, Loader, Mapped, Subset, split_rows
from phlox.data.structure import leaves
from phlox.errors import DataError

X = np.arange(24.0).reshape(12, 2)


@dataclass
class Pair:
    x: Any
    y: Any


SOURCES: dict[str, Any] = {
    "array": lambda x: x, "tuple": lambda x: (x, x[:, 0]), "dict": lambda x: {"a": x, "b": {"c": x}},
    "dataclass": lambda x: Pair(x, x[:, 1]), "rows": list, "subset": lambda x: Subset(x, np.arange(12)),
    "concat": lambda x: Concat(x[:6], x[6:]), "mapped": lambda x: Mapped(x, lambda batch: batch),
}  # fmt: skip


def spoil(batch: Any) -> Any:
    for _, leaf in leaves(batch):
        leaf *= 0.0
    return batch


@pytest.mark.parametrize("way", [{}, {"shuffle": True}, {"workers": 2}, {"prefetch": 2}], ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_a_transform_in_place_leaves_the_source_as_it_is(source: str, way: dict[str, Any]) -> None:
    x = X.copy()
    loader = Loader(SOURCES[source](x), 4, transform=spoil, **way)
    for _ in range(2):
        for batch in loader.epoch():
            assert all(not leaf.any() for _, leaf in leaves(batch))
            spoil(batch)
    np.testing.assert_array_equal(x, X)


class OnDisk:
    shape, dtype, ndim = (1000, 4), np.dtype(np.float32), 2
    read = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, rows: Any) -> Any:
        assert isinstance(rows, slice) or (np.diff(rows) > 0).all()  # as h5py demands
        found = np.arange(4000, dtype=np.float32).reshape(1000, 4)[rows]
        self.read += len(found)
        return found

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.read += 1000
        return self[:]


@dataclass(frozen=True)
class LikeZarr:
    """As an array of zarr: a dataclass without a length, with an index of its own for rows."""

    parts: Any

    @property
    def shape(self) -> Any:
        return self.parts.shape

    @property
    def dtype(self) -> Any:
        return self.parts.dtype

    @property
    def read(self) -> int:
        return self.parts.read

    @property
    def oindex(self) -> Any:
        return self.parts

    def __getitem__(self, rows: Any) -> Any:
        assert isinstance(rows, slice)
        return self.parts[rows]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.parts.__array__()


@dataclass(frozen=True)
class Group:
    """As a group of zarr: a dataclass with arrays by name, which is no mapping."""

    held: Any

    def __len__(self) -> int:
        return len(self.held)

    def keys(self) -> Any:
        return iter(self.held)

    def __getitem__(self, name: Any) -> Any:
        assert isinstance(name, str)
        return self.held[name]


@pytest.mark.parametrize("make", [OnDisk, lambda: LikeZarr(OnDisk())], ids=["hdf5", "zarr"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "put",
    [
        lambda x: Group({"x": x, "y": np.arange(1000)}),
        lambda x: x,
        lambda x: {"x": x},
        lambda x: (x, np.arange(1000)),
        lambda x: Pair(x, x),
    ],
)
def test_an_array_on_the_disk_is_read_by_rows(put: Any, shuffle: bool, make: Any) -> None:
    array = make()
    loader = Loader(put(array), 10, shuffle=shuffle)
    first = next(iter(loader.epoch()))
    rows = loader.rows(0, 0)
    assert array.read <= 20
    _, values = next(leaves(first))
    np.testing.assert_array_equal(values, np.arange(4000, dtype=np.float32).reshape(1000, 4)[rows])


def test_files_of_hdf5_and_zarr(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["group/z"] = X, np.arange(12), X[:, 0]
        whole = {"x": file["x"], "y": file["y"]}
        for source, expected in ((file["x"], X), (whole, X), (file["group"], X[:, 0]), ((file["x"], file["y"]), X)):
            loader = Loader(source, 5, shuffle=True)
            _, values = next(leaves(next(iter(loader.epoch()))))
            np.testing.assert_array_equal(values, expected[loader.rows(0, 0)])
        file["one"] = 3.0
        with pytest.raises(DataError, match=r"source\['one'\] is one value, 3.0, and has no rows"):
            Loader({"one": file["one"], "x": file["x"]}, 4)
    (tmp_path / "b.zarr").mkdir()
    with pytest.raises(DataError, match=r"b\.zarr: open it with zarr\.open\(path\), and give the group"):
        Loader(tmp_path / "b.zarr", 4)


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array"])
def test_sparse_matrices_are_dense_by_batch(kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    loader = Loader({"x": getattr(sparse, kind)(X), "y": np.arange(12)}, 5, shuffle=True)
    np.testing.assert_array_equal(next(iter(loader.epoch()))["x"], X[loader.rows(0, 0)])


def test_a_source_whose_rows_have_names_is_asked_by_number() -> None:
    class Named:
        def keys(self) -> list[str]:
            return ["a", "b", "c"]

        def __len__(self) -> int:
            return 3

        def __getitem__(self, rows: Any) -> Any:
            return X[rows]

    assert next(iter(Loader(Named(), 2))).tolist() == X[:2].tolist()


def test_a_dataclass_with_len_and_rows_is_a_source() -> None:
    @dataclass
    class Digits:
        folder: str
        scale: float

        def __len__(self) -> int:
            return 8

        def __getitem__(self, rows: Any) -> Any:
            return np.asarray(rows) * self.scale

    assert next(iter(Loader(Digits("there", 2.0), 3))).tolist() == [0.0, 2.0, 4.0]


MASK = X[:, 0] > 10
ROWS: list[tuple[Any, Any]] = [
    (MASK, np.flatnonzero(MASK).tolist()), (MASK.tolist(), np.flatnonzero(MASK).tolist()), ([3, 1], [3, 1]), ([], []),
    (MASK[:3], "mask"), ([0.5, 1.0], "no number of a row"), (["a"], "no number of a row"),
    ([12], "row 12"), ([-1], "row -1"), ([[1, 2]], "no number of a row"),
    (px.tensor(MASK, device="jax"), np.flatnonzero(MASK).tolist()), (px.tensor([3, 1], device="torch"), [3, 1]),
    (np.array([True, None] * 6, object), r"the mask has no truth value in row 1; fill it: mask\.fillna\(False\)"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), ROWS, ids=[str(number) for number in range(len(ROWS))])
def test_rows_are_numbers_or_a_mask(rows: Any, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            Subset(X, rows)
    else:
        assert Subset(X, rows).rows.tolist() == expected


@pytest.mark.parametrize(
    "labels", [np.array(["a", "b", None] * 4, object), np.array(["a", "b", np.nan] * 4, object), [1.0, 2.0, np.nan] * 4]
)
def test_labels_with_gaps_are_named(labels: Any) -> None:
    with pytest.raises(DataError, match=r"labels are missing, first in row 2 \(4 of 12 rows\)"):
        split_rows(X, 0.5, 0.5, labels=labels)


class Unreadable:
    """Rows 4 to 7, and the last one, cannot be read."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, rows: Any) -> Any:
        if (np.isin(rows, [4, 5, 6, 7, 12])).any():
            raise OSError("gone")
        return np.asarray(rows)


@pytest.mark.filterwarnings("ignore:row 4 of the source")
@pytest.mark.parametrize("way", [{}, {"workers": 2}, {"prefetch": 3}], ids=str)
def test_a_batch_without_a_row_is_left_out_and_counted(way: dict[str, Any]) -> None:
    loader = Loader(Unreadable(), 4, on_error="skip", **way)
    assert [(number, batch.tolist()) for number, batch in loader.numbered()] == [(0, [0, 1, 2, 3]), (2, [8, 9, 10, 11])]
    assert [row for row, _ in loader.skipped] == [4, 5, 6, 7, 12]
    assert [batch.tolist() for batch in loader.epoch(1, start=1)] == [[8, 9, 10, 11]]


def refuse(batch: Any) -> Any:
    if (batch >= 8).any():
        raise ZeroDivisionError("odd") from KeyError("label")
    return batch


@pytest.mark.parametrize("way", [{}, {"workers": 2}, {"workers": 1, "worker_type": "process"}], ids=str)
def test_an_error_of_a_transform_names_its_batch_and_rows(way: dict[str, Any]) -> None:
    loader = Loader(np.arange(12), 4, transform=refuse, **way)
    with pytest.raises(ZeroDivisionError) as raised:
        list(loader.epoch(3))
    assert "in batch 2 of epoch 3, rows 8, 9, 10, 11" in raised.value.__notes__
    cause = raised.value.__cause__ or next(note for note in raised.value.__notes__ if "because of" in note)
    assert "label" in str(cause)
