"""Records and reports about them in notebooks; no tensor is read.

Serves: phlox/record/pages.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phlox import nn
from phlox.record import LazyTensor, Record, TensorEntry, load
from phlox.record.inspection.comparison import difference
from phlox.record.loading.report import LoadReport
from phlox.record.values import Value
from tests.markup import read

HOSTILE = "<script>alert(1)</script>\u202e\x00"


def unread(shape: tuple[int, ...] = (2, 3), dtype: str = "float32") -> LazyTensor:
    return LazyTensor.from_function(shape, np.dtype(dtype), lambda: pytest.fail("it is read"), HOSTILE)


def test_a_record() -> None:
    record = Record(
        {HOSTILE: TensorEntry(unread(), "id"), "step": 7, "text": HOSTILE, "many": list[Value]([1] * 1000)},
        {HOSTILE: HOSTILE},
        aliases={"other": HOSTILE},
        unreadable={"odd": HOSTILE},
    )
    found = read(record)
    shown = "<script>alert(1)</script>\\u202e\\x00"
    assert "4 entries" in found.text and "24 B of tensors" in found.text and "1 cannot be read" in found.badges
    assert [shown, "float32", "(2, 3)", "24 B"] in found.rows and ["step", "value", "7", ""] in found.rows
    assert [shown, shown] in found.rows and ["other", shown] in found.rows and ["odd", shown] in found.rows


def test_large_records_are_bounded() -> None:
    found = read(Record({f"layers.{n}": unread((n, 1 << 40)) for n in range(3000)}))
    assert "and 2,800 more" in found.text and "3,000 entries" in found.text and len(found.rows) == 201
    assert "0 entries" in read(Record()).text
    assert len(read(Record({"a" * 10_000: 1})).rows[1][0]) == 203


def test_tensors_of_a_record() -> None:
    for value in (TensorEntry(unread().astype(np.float16), "<id>"), unread()):
        found = read(value)
        assert "not read" in found.badges and "(2, 3)" in found.text
    assert (
        "float16" in read(unread().astype(np.float16)).text and "stored as float32" in read(unread().astype("f2")).text
    )


def test_what_was_loaded(tmp_path: Path) -> None:
    path = nn.Linear(3, 2).save(tmp_path / "model")
    found = read(nn.Linear(3, 2).load(path))
    assert "loaded" in found.badges and ["weight", "weight"] in found.rows


def test_what_does_not_fit() -> None:
    model = nn.Sequential([nn.Linear(3, 2), nn.Linear(4, 4)])
    record = Record({"layers.0.weight": unread((3, 5)), HOSTILE: unread(), "layers.0.bias": unread((2,), "int32")})
    found = read(model.load_report(record))
    assert "does not fit" in found.badges and "missing from the record: 2" in found.text
    assert ["layers.0.weight", "(3, 5)", "(3, 2)"] in found.rows and ["layers.0.bias", "int", "float"] in found.rows
    assert ["<script>alert(1)</script>\\u202e\\x00"] in found.rows
    every = LoadReport(
        matches={}, unreadable={"a": "b"}, kept={"c": "d"}, ignored={"e": "f"}, remapped={"g": "h"}, tied={"i": "j"},
        by_themselves=["k"], refused={"l": "m"}, suggestions={"n": "o"}, other_structure=True, hint="p\nq",
    )  # fmt: skip
    assert set("abcdefghijklmnopq") <= set(read(every).texts)


def test_differences() -> None:
    first = Record({"a": np.zeros(3), "b": 1, "c": np.zeros(2), "<d>": 2})
    second = Record({"a": np.ones(3), "b": 2, "c": np.zeros(3)})
    found = read(difference(first, second))
    assert "different" in found.badges and ["a", "3 (100%)", "1", "(0,)", "0", "1", "1"] in found.rows
    assert ["b", "1", "2"] in found.rows and ["c", "(2,)", "(3,)"] in found.rows
    assert ["<d>"] in found.rows and "Other shapes" in found.text
    assert "identical" in read(difference(first, first)).badges


def test_records_of_files_stay_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = nn.Linear(3, 2).save(tmp_path / "model")
    record = load(path)
    monkeypatch.setattr(LazyTensor, "read", lambda self: pytest.fail("it is read"))
    monkeypatch.setattr(LazyTensor, "_stored", lambda self, index=None: pytest.fail("it is read"))
    assert ["weight", "float32", "(3, 2)", "24 B"] in read(record).rows
