"""Padding and packing: what goes in comes out, at its place, and the masks say where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox.data import Concat, Loader, Pack, Pad, Subset, next_tokens, split_rows
from phlox.errors import DataError


def rows(*lengths: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(lengths))
    return [{"tokens": rng.integers(1, 50, n), "state": rng.normal(size=(n, 2)), "label": n} for n in lengths]


@pytest.mark.parametrize(("options", "width"), [({}, 7), ({"length": 9}, 9), ({"multiple_of": 4}, 8)])
def test_padding(options: dict[str, Any], width: int) -> None:
    given = rows(3, 7, 1)
    batch = Pad(value=-2, **options)(given)
    assert batch["tokens"].shape == (3, width) and batch["state"].shape == (3, width, 2)
    assert batch["label"].tolist() == [3, 7, 1]
    for number, row in enumerate(given):
        mask = batch["mask"][number]
        np.testing.assert_array_equal(batch["tokens"][number][mask], row["tokens"])
        np.testing.assert_array_equal(batch["state"][number][mask], row["state"])
        assert (batch["tokens"][number][~mask] == -2).all() and mask.sum() == len(row["tokens"])


def test_what_is_padded_may_be_bare_or_cut() -> None:
    batch, mask = Pad()([[1, 2, 3], [4]])
    assert batch.tolist() == [[1, 2, 3], [4, 0, 0]] and mask.tolist() == [[True] * 3, [True, False, False]]
    assert Pad(length=2, truncate=True, mask=None)([[1, 2, 3], [4]]).tolist() == [[1, 2], [4, 0]]


def test_packing_has_every_sequence_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 40)
    given = [{"tokens": np.arange(n) + 100 * i, "weight": np.full(n, i / 7)} for i, n in enumerate(lengths)]
    batch = Pack(64, value=-1)(given)
    assert batch["tokens"].shape[1] == 64 and batch["tokens"].shape[0] < 1.2 * lengths.sum() / 64 + 1
    found = {}
    for row in range(len(batch["tokens"])):
        for segment in range(1, batch["segment"][row].max() + 1):
            here = batch["segment"][row] == segment
            assert np.ptp(np.flatnonzero(here)) == here.sum() - 1  # side by side
            assert batch["position"][row][here].tolist() == list(range(here.sum()))
            tokens = batch["tokens"][row][here]
            found[tokens[0] // 100] = tokens.tolist(), batch["weight"][row][here].tolist()
    assert found == {i: (one["tokens"].tolist(), one["weight"].tolist()) for i, one in enumerate(given)}
    assert (batch["tokens"][~batch["mask"]] == -1).all() and batch["mask"].sum() == lengths.sum()
    assert Pack(64, rows=50)(given)["tokens"].shape == (50, 64)


def test_packing_is_first_fit_and_may_cut() -> None:
    """Each text, the longest first, is in the first row with room: in a plain search, and the same here."""
    lengths = np.random.default_rng(1).integers(1, 40, 500).tolist()
    ends: list[int] = []
    for size in sorted(lengths, reverse=True):
        row = next((i for i, end in enumerate(ends) if end + size <= 48), len(ends))
        ends[row : row + 1] = [size + (ends[row] if row < len(ends) else 0)]
    batch = Pack(48)([np.full(n, n) for n in lengths])
    assert batch["mask"].sum(1).tolist() == ends
    cut = Pack(3, truncate=True, value={"target": -100})(
        [{"a": [1, 2, 3, 4], "target": [5, 6, 7, 8]}, {"a": [9], "target": [9]}]
    )
    assert cut["a"].tolist() == [[1, 2, 3], [9, 0, 0]] and cut["target"].tolist() == [[5, 6, 7], [9, -100, -100]]


def test_rows_of_next_tokens() -> None:
    row = next_tokens([4, 5, 6, 7], [True, False, True, True])
    assert row["input"].tolist() == [4, 5, 6] and row["target"].tolist() == [-100, 6, 7]
    batch = Pad(value={"target": -100})([row, next_tokens([8, 9])])
    assert batch["input"].tolist() == [[4, 5, 6], [8, 0, 0]] and batch["target"].tolist() == [
        [-100, 6, 7],
        [9, -100, -100],
    ]
    assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Pad(length=2)(rows(1, 3)), "row 1 of the batch has length 3, and length is 2"),
        (lambda: Pad()([{"a": [1], "b": [1, 2]}]), "row 0 of the batch has arrays of lengths [1, 2]"),
        (lambda: Pad()([{"a": 1}]), "has no array of one or more axes"),
        (lambda: Pad(multiple_of=0), "must be 1 or more"),
        (lambda: Pack(2)([[1, 2, 3]]), "row 0 of the batch has length 3, more than 2"),
        (lambda: Pack(2, rows=1)([[1, 2], [1]]), "needs 2 rows of 2, and rows is 1"),
        (lambda: Pack(0), "must be 1 or more"),
        (lambda: Pack(4)([{"tokens": [1], "mask": [True]}]), "a field 'mask', which a packed batch has too"),
        (lambda: Pad(value={"a": 1})([[1, 2]]), "a dict of values needs rows that are dicts of fields"),
        (lambda: next_tokens([1]), "two tokens or more, got shape (1,)"),
        (lambda: next_tokens([1, 2], [True]), "the mask has shape (1,), and the tokens (2,)"),
    ],
)
def test_what_does_not_fit(call: Any, said: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert said in str(error.value)


def test_parts_of_a_list_of_rows_are_padded_too() -> None:
    """Whose rows have no common shape before."""
    given = rows(3, 1, 2, 5)
    train, validation = split_rows(given, 0.5, 0.5, seed=None)
    first, second = (next(Loader(part, 2, collate=Pad()).epoch()) for part in (train, validation))
    assert first["mask"].sum(1).tolist() == [3, 1] and second["mask"].sum(1).tolist() == [2, 5]
    np.testing.assert_array_equal(second["tokens"][1], given[3]["tokens"])
    whole = Concat(Subset(given, [3, 0]), given[1:3], {"tokens": np.ones((1, 4), int), "label": np.array([4])})
    found = next(Loader(Subset(whole, [2, 1, 0]), 3, collate=lambda rows: [row["label"] for row in rows]).epoch())
    assert found == [1, 3, 5]
    last = next(Loader(Subset(whole, [4]), 1, collate=Pad()).epoch())
    assert last["tokens"].tolist() == [[1, 1, 1, 1]]
