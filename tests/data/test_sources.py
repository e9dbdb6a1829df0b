"""Sources: whatever has rows, by number; against plain indexing of NumPy.

Serves: phlox/data/{structure,tables}.py
"""

from __future__ import annotations

from array import array
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox.data import Arrays, Concat, Loader, Mapped, Subset, TokenWindows, as_source, split_rows
from phlox.errors import DataError

ROWS = np.array([4, 0, 4, 2])
X, Y = np.arange(20.0).reshape(5, 2, 2), np.array([5, 6, 7, 8, 9])
Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Batch:
    x: Any
    y: Any


class OneByOne:
    """As a map-style data set of PyTorch is."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, row: int) -> Any:
        assert type(row) is int
        return X[row], int(Y[row])


def flat(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [batch["x"], batch["y"]]
    return [batch.x, batch.y] if isinstance(batch, Batch) else list(batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (X, Y), lambda: {"x": X, "y": Y}, lambda: Pair(X, Y), lambda: Batch(X, Y), lambda: (X, Y.tolist()),
        lambda: [(X[i], Y[i]) for i in range(5)],
        lambda: [{"x": X[i], "y": int(Y[i])} for i in range(5)],
        lambda: Mapped((X, Y), lambda batch: batch),
        lambda: Concat((X[:2], Y[:2]), [(X[i], int(Y[i])) for i in (2, 3)], (X[4:], Y[4:])),
        lambda: Subset((np.flip(X, 0), np.flip(Y)), [4, 3, 2, 1, 0]),
    ],
)  # fmt: skip
def test_rows_of_every_nesting(make: Any) -> None:
    whole = make()
    source = as_source(whole)
    assert len(source) == 5
    batch = source[ROWS]
    if not isinstance(whole, (list, Mapped, Concat, Subset)):
        assert type(batch) is type(whole)
    for found, expected in zip(flat(batch), (X[ROWS], Y[ROWS]), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(flat(source[np.array([1, 2, 3])])[0], X[1:4])


def test_a_data_set_of_pytorch_is_asked_row_by_row() -> None:
    torch = pytest.importorskip("torch")

    class Set(OneByOne, torch.utils.data.Dataset):
        def __getitem__(self, row: int) -> Any:
            return torch.tensor(X[row]), int(Y[row])

    x, y = as_source(Set())[ROWS]
    np.testing.assert_array_equal(x, X[ROWS])
    np.testing.assert_array_equal(y, Y[ROWS])

    half = torch.utils.data.TensorDataset(torch.tensor(X, dtype=torch.bfloat16), torch.tensor(Y))
    x, y = as_source(torch.utils.data.Subset(half, [4, 0, 2]))[np.array([0, 2])]  # which is asked for several at once
    assert x.tolist() == X[[4, 2]].tolist() and y.tolist() == Y[[4, 2]].tolist()

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(DataError, match="give it to the learner directly"):
        as_source(Endless())


IN_MEMORY: dict[str, Callable[[], Any]] = {
    **{f"tensor on {name}": lambda name=name: px.tensor(Y.astype(np.float32), device=name)
       for name in ("numpy", "jax", *["torch"][: find_spec("torch") is not None])},
    "JAX": lambda: jnp.asarray(Y), "JAX bf16": lambda: jnp.asarray(Y, jnp.bfloat16), "NumPy bf16": lambda: Y.astype(
        ml_dtypes.bfloat16), "PyTorch": lambda: pytest.importorskip("torch").tensor(Y),
    "with a gradient": lambda: pytest.importorskip("torch").tensor(Y.astype(np.float32), requires_grad=True),
    "PyTorch bf16": lambda: pytest.importorskip("torch").tensor(Y).bfloat16(),
    "range": lambda: range(5, 10), "deque": lambda: deque(Y.tolist()), "array": lambda: array("i", Y.tolist()),
    "memory": lambda: memoryview(Y.tobytes()).cast("q"), "list": lambda: Y.tolist(),
    "list of tensors": lambda: [px.tensor(y) for y in Y],
}  # fmt: skip


@pytest.mark.parametrize("way", [lambda x: x, lambda x: {"y": x}], ids=["alone", "in a dict"])
@pytest.mark.parametrize("name", IN_MEMORY)
def test_arrays_and_sequences_of_every_kind(name: str, way: Callable[[Any], Any]) -> None:
    options: dict[str, Any]
    for options in ({}, {"shuffle": True}):
        loader = Loader(way(IN_MEMORY[name]()), 5, **options)
        (batch,) = loader.epoch()
        values = batch["y"] if isinstance(batch, dict) else batch
        assert type(values) is np.ndarray and values.dtype.kind in "fiu"
        assert values.tolist() == Y[loader.rows(0, 0)].tolist()


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "both.npz", x=X, y=Y)
    (tmp_path / "table.csv").write_text('a,b,c\n1,0.5,red\n2,,blue\n3,2e3,"green, dark"\n')
    mapped = as_source(tmp_path / "x.npy")
    assert isinstance(mapped, Arrays) and isinstance(mapped.arrays, np.memmap)
    np.testing.assert_array_equal(mapped[ROWS], X[ROWS], strict=True)
    assert type(mapped[ROWS]) is type(mapped[1:3]) is np.ndarray
    both = as_source(str(tmp_path / "both.npz"))[ROWS]
    np.testing.assert_array_equal(both["x"], X[ROWS])
    table = as_source(tmp_path / "table.csv")[np.array([2, 1])]
    assert table["a"].tolist() == [3, 2] and table["c"].tolist() == ["green, dark", "blue"]
    assert table["b"][0] == 2000.0 and np.isnan(table["b"][1])
    np.testing.assert_array_equal(as_source({"x": tmp_path / "x.npy", "y": Y})[ROWS]["x"], X[ROWS])


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"x": Y, "words": [["a"], [], ["b", "c"], ["d"], ["e"]], "name": list("vwxyz")})
    parquet.write_table(table, tmp_path / "t.parquet")
    batch = as_source(tmp_path / "t.parquet")[ROWS]
    assert batch["x"].tolist() == Y[ROWS].tolist() and batch["name"].tolist() == ["z", "v", "z", "x"]
    assert batch["words"] == [["e"], ["a"], ["e"], ["b", "c"]]
    for name, column, said in (
        ("b", [True, None, False], "column 'b' has truth values, and some are missing, first in row 1"),
        ("t", [time(1), time(2), time(3)], "column 't' has values of type time, which make no array; leave it out"),
    ):
        parquet.write_table(arrow.table({"x": [1, 2, 3], name: column}), tmp_path / "u.parquet")
        with pytest.raises(DataError, match=rf"u\.parquet: {said}"):
            Loader(tmp_path / "u.parquet", 1)


def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist(), "text": list("abcde")})
    batch = as_source(data)[ROWS]
    np.testing.assert_array_equal(batch["x"], X[ROWS])
    np.testing.assert_array_equal(batch["y"], Y[ROWS])
    assert batch["text"] == ["e", "a", "e", "c"]
    for form in ("numpy", "torch", "pandas", "arrow"):
        batch = as_source(data.with_format(form))[ROWS]
        np.testing.assert_allclose(batch["x"], X[ROWS])
        assert type(batch["x"]) is np.ndarray and list(batch["text"]) == ["e", "a", "e", "c"], form


@pytest.mark.parametrize("stride", [None, 1, 5])
def test_windows_of_tokens(stride: int | None, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 60_000, 103).astype(np.uint16)
    tokens.tofile(tmp_path / "flat.bin")
    np.save(tmp_path / "flat.npy", tokens)
    step = stride or 8
    starts = range(0, 103 - 8, step)
    for given, options in ((tokens, {}), (tmp_path / "flat.bin", {"dtype": np.uint16}), (tmp_path / "flat.npy", {})):
        windows = TokenWindows(given, 8, stride=stride, **options)
        assert len(windows) == len(starts)
        batch = windows[np.arange(len(windows))]
        assert batch["input"].dtype == np.int32
        np.testing.assert_array_equal(batch["input"], [tokens[start : start + 8] for start in starts])
        np.testing.assert_array_equal(batch["target"], [tokens[start + 1 : start + 9] for start in starts])


def test_parts_are_disjoint_and_keep_the_classes() -> None:
    labels = np.repeat([0, 1], [80, 20])
    parts = split_rows(labels, 0.5, 0.25, 0.25, labels=labels)
    rows = [part.rows for part in parts]
    assert [len(part) for part in rows] == [50, 25, 25] and sorted(np.concatenate(rows)) == list(range(100))
    assert [int(labels[part].sum()) for part in rows] == [10, 5, 5]
    assert any(np.diff(labels[rows[0]]) < 0)  # shuffled
    assert [part.rows.tolist() for part in split_rows(np.arange(10), 0.7, 0.3, seed=None)] == [
        list(range(7)),
        [7, 8, 9],
    ]
    again = split_rows(labels, 0.5, 0.25, 0.25, labels=labels)
    assert all((a == b.rows).all() for a, b in zip(rows, again, strict=True))


BAD: list[tuple[Any, str]] = [
    (lambda: as_source([]), "it has no rows"),
    (lambda: as_source(np.zeros((0, 3))), "it has no rows"),
    (lambda: as_source({}), "there is no array in it"),
    (lambda: as_source({"x": X, "y": Y[:3]}), "source['y'] has 3 rows, but source['x'] has 5"),
    (lambda: as_source({"x": X, "y": 3}), "source['y'] is one value, 3, and has no rows"),
    (lambda: as_source(((1, 2), (3, 4))), "or more axes (a tuple holds columns, a list holds rows)"),
    (lambda: as_source("data.h5"), "data.h5: there is no such file"),
    (lambda: as_source({"x": [[1], [2, 3]]}), "give a list of rows"),
    (lambda: as_source(3), "int has no len() and [rows]"),
    (lambda: as_source(iter([1])), "give it to the learner directly"),
    (lambda: as_source("nowhere.npy"), "nowhere.npy: there is no such file or folder"),
    (lambda: Subset(X, [0, 5]), "row 5 is out of range; give numbers from 0 to 4"),
    (lambda: Concat(), "there is no source"),
    (lambda: Mapped(X, cast("Any", 3)), "3 is no function"),
    (lambda: TokenWindows(np.arange(8), 8), "8 tokens have no window of 8"),
    (lambda: TokenWindows(np.arange(8.0), 2), "give one axis of integers"),
    (lambda: TokenWindows(np.arange(8), 0), "length is 0"),
    (lambda: TokenWindows("some.bin", 4), "says no dtype"),
    (lambda: split_rows(X, 0.5, 0.6), "positive ones that add up to 1"),
    (lambda: split_rows(X, 0.99, 0.01), "part 1 would have no rows of 5"),
    (lambda: as_source([(X[0], 1), {"x": 1}])[[0, 1]], "row 1 of the batch is a dict of ['x'], but row 0 is a tuple"),
    (lambda: as_source([X[0], X[0][:1]])[np.array([0, 1])], "row 1 of the batch has shape (1, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), BAD)
def test_what_is_no_source(make: Any, said: str) -> None:
    with pytest.raises(DataError) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.npy", b"no array", "cannot be read as NumPy's file"),
        ("x.npz", b"PK", "cannot be read as NumPy's file"),
        ("x.csv", b"", "the file is empty"),
        ("x.csv", b"a,b\n", "no row"),
        ("x.csv", b"a,b\n1,2\n3\n", "line 3 has 1 cells, the header 2"),
        ("x.csv", b"a,a\n1,2\n", "two columns are called 'a'"),
        ("x.csv", b"\xff\xfe\x00", "in UTF-8"),
        ("x.parquet", b"PAR1", "Parquet"),
        ("x.xyz", b"", "cannot read .xyz"),
        ("x.h5", b"", "open it with h5py, and give its arrays: Loader({'x': file['x']"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((DataError, ImportError), match="x[.]") as error:
        Loader(path, 2)
    assert said in str(error.value)


def test_pickles_are_not_run(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DataError, match="never loads"):
        as_source(tmp_path / "x.npy")


# --- rows as people write them

INDEXABLE: dict[str, Callable[[], Any]] = {
    "arrays": lambda: as_source(np.arange(6) * 10),
    "row by row": lambda: as_source([np.int64(row * 10) for row in range(6)]),
    "subset": lambda: Subset(np.arange(9) * 10, range(6)),
    "concat": lambda: Concat(np.arange(4) * 10, np.array([40, 50])),
    "mapped": lambda: Mapped(np.arange(6), lambda batch: batch * 10),
}


@pytest.mark.parametrize("make", INDEXABLE.values(), ids=INDEXABLE)
def test_rows_are_numbers_slices_and_lists(make: Callable[[], Any]) -> None:
    source, whole = make(), np.arange(6) * 10
    for rows in (0, -1, np.int64(3), slice(None, 2), slice(-2, None), slice(None, None, -1), [5, 1, 5], whole > 20):
        np.testing.assert_array_equal(source[rows], whole[rows], strict=isinstance(rows, slice))
    assert [int(row) for row in source] == whole.tolist()
    for wrong, said in (
        (6, "no row 6; it has 6 rows"),
        ([0, -7], "no row -7"),
        ("a", "'a' is no number of a row"),
        (1.0, "1.0"),
    ):
        with pytest.raises(DataError, match=said):
            source[wrong]
