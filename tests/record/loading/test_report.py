"""`match` with patterns and other names; hints where layers have moved; reports as pages for people.

Serves: phlox/record/loading/hints.py
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.record import BinaryRecorder, Record, RecordError, match


def floats(*shapes: tuple[int, ...]) -> list[Any]:
    return [(shape, "float", None) for shape in shapes]


NET: dict[str, Any] = dict(zip(["body.weight", "body.bias", "head.weight"], floats((2, 3), (3,), (3, 1)), strict=True))


def record_of(expected: dict[str, Any], **others: Any) -> Record:
    return Record({path: np.zeros(shape, np.float32) for path, (shape, _, _) in expected.items()} | others)


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ({"include": "body"}, ["body.weight", "body.bias"]),
        ({"include": ["**.weight"]}, ["body.weight", "head.weight"]),
        ({"exclude": "head"}, ["body.weight", "body.bias"]),
        ({"include": "body", "exclude": "**.bias"}, ["body.weight"]),
        ({"include": ["!head"]}, ["body.weight", "body.bias"]),
        ({"exclude": "**"}, []),
    ],
    ids=repr,
)
def test_only_what_is_meant(options: Any, loaded: list[str]) -> None:
    report = match(NET, record_of(NET), **options)
    assert report.ok and report.loaded == loaded
    rest = [path for path in NET if path not in loaded]
    assert list(report.kept) == rest == list(report.ignored)
    assert set(report.kept.values()) | set(report.ignored.values()) <= {"not meant"}


def test_what_is_not_meant_may_be_anything() -> None:
    record = record_of({"body.weight": NET["body.weight"]}, **{"head.weight": np.zeros(7), "old.step": 3})
    assert match(NET, record, include="body.weight").ok
    report = match(NET, record, include="body.weight", exclude=["old"])
    assert report.ok and report.ignored == {"head.weight": "not meant", "old.step": "not meant"}
    report = match(NET, record, include="body")  # here it matters that the bias is missing
    assert not report.ok and report.missing == ["body.bias"] and report.unexpected == []
    assert match(NET, record, exclude=["head", "body.bias"]).unexpected == ["old.step"]


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_that_means_nothing_is_an_error(option: str) -> None:
    with pytest.raises(RecordError, match=r"no path matches `heda`; did you mean `head`\?"):
        match(NET, record_of(NET), **{option: ["body", "heda"]})  # type: ignore[arg-type]
    assert match(NET, record_of(NET, extra=1), **{option: "extra"}).ignored  # type: ignore[arg-type]


def test_patterns_mean_a_tied_tensor_by_any_of_its_names() -> None:
    tied: dict[str, Any] = {"embed": ((3, 2), "float", None)}
    record = Record({"embed": np.ones((3, 2)), "old": np.ones(1)}, aliases={"head": "embed", "older": "old"})
    for name in ("embed", "head"):
        assert match(tied, record, aliases={"head": "embed"}, include=name).loaded == ["embed"]
        assert match(tied, record, aliases={"head": "embed"}, include="**", exclude=[name]).kept == {
            "embed": "not meant"
        }
    assert match({"head": tied["embed"]}, record, exclude="embed").kept == {"head": "not meant"}
    assert match(tied, record, exclude="older").ok


def test_positional_records_take_patterns_of_what_is_expected() -> None:
    recorder = BinaryRecorder(names=False)
    record = recorder.from_bytes(recorder.to_bytes(record_of(NET)))
    report = match(NET, record, include="head")
    assert report.matches == {"head.weight": "2"} and report.ok
    with pytest.raises(RecordError, match="no path matches `0`"):
        match(NET, record, include="0")


def test_a_positional_record_of_another_structure() -> None:
    recorder = BinaryRecorder(names=False)
    record = recorder.from_bytes(recorder.to_bytes(record_of(NET)))
    assert match(NET, record).ok
    renamed = {path.replace("body", "trunk"): spec for path, spec in NET.items()}  # same shapes, in the same order
    report = match(renamed, record)
    assert not report.ok and report.other_structure
    with pytest.raises(RecordError, match="written by a module of another structure"):
        report.raise_if_failed("Net")
    lax = match(renamed, record, strict=False)
    assert lax.ok and lax.loaded == list(renamed) and "another structure" in str(lax)


def test_other_names_come_first_and_are_told() -> None:
    record = Record({f"model.{path}": np.zeros(spec[0], np.float32) for path, spec in NET.items()} | {"clock": 1})
    report = match(NET, record, remap={r"^model\.": ""}, exclude="clock")
    assert report.ok and report.matches == {path: f"model.{path}" for path in NET}
    assert report.remapped == {f"model.{path}": path for path in NET}
    assert str(report).startswith("all 3 parameters fit; remapped: model.body.weight to body.weight, ")
    report = match(NET, record, remap=lambda path: path.removeprefix("model.") if "." in path else None)
    assert report.ok and report.ignored == {"clock": "dropped by remap"}
    failed = match(NET, record, remap={r"^modle\.": ""})
    assert not failed.ok
    assert "modle" in str(match({"a": NET["body.bias"]}, Record({"b": 1}), remap={r"^modle\.": ""}))


def layers(*numbers: int, sizes: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, (inputs, outputs) in zip(numbers, pairwise(sizes), strict=False):
        found[f"net.layers.{number}.weight"] = ((inputs, outputs), "float", None)
        found[f"net.layers.{number}.bias"] = ((outputs,), "float", None)
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((0, 1), (0, 2)),
        ((0, 2, 4), (0, 3, 5)),
        ((0, 3, 5), (0, 2, 4)),
        ((0, 1, 2, 3), (0, 2, 3, 5)),
        ((1, 2, 3), (0, 2, 5)),
        ((0, 1, 2, 3, 4, 5), (0, 2, 4, 6, 8, 10)),
        ((3, 4, 5, 6, 7, 8), (0, 1, 2, 3, 4, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(2, 3, 4, 5, 6, 7, 8), (4,) * 7], ids=["differing", "alike"])
def test_a_shift_of_numbers_is_explained_and_the_remap_offered_works(
    before: tuple[int, ...], after: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    expected, record = layers(*after, sizes=sizes), record_of(layers(*before, sizes=sizes))
    report = match(expected, record)
    assert not report.ok and report.hint is not None
    assert "The layers in `net.layers` have other indices in the record" in str(report)
    offered = re.search(r"remap=(\{.*\})\.$", report.hint)
    assert offered, report.hint
    scope: dict[str, Any] = {}
    exec(f"remap = {offered[1]}", scope)
    mended = match(expected, record, remap=scope["remap"])
    assert mended.ok
    places = {f"net.layers.{new}.": f"net.layers.{old}." for old, new in zip(before, after, strict=True)}
    for path, source in mended.matches.items():
        start, _, end = path.rpartition(".")
        assert source == places[start + "."] + end
    for path in report.missing:
        start, _, end = path.rpartition(".")
        assert report.suggestions[path] == places[start + "."] + end


@pytest.mark.parametrize(
    ("expected", "record"),
    [
        (layers(0, 2), record_of(layers(0, 1, sizes=(2, 3, 9)))),
        (layers(0, 2), record_of(layers(0))),
        (layers(0, 2), record_of(layers(0, 2))),
        ({"a": ((1,), "float", None)}, Record({"b": np.zeros(1)})),
        ({"n.10000000000000000000.a": ((1,), "float", None)}, Record({"n.1.a": np.zeros(1)})),
    ],
    ids=["shapes", "count", "none", "no-list", "no-number"],
)
def test_no_shift_is_claimed_where_there_is_none(expected: Any, record: Record) -> None:
    assert "other numbers" not in str(match(expected, record))


def test_pages() -> None:
    report = match(NET, record_of(NET))
    assert str(report) == "all 3 parameters fit" and str(report.as_done()) == "all 3 parameters loaded"
    half = {path: (shape, kind, np.dtype(np.float16)) for path, (shape, kind, _) in NET.items()}
    page = str(match(half, record_of(NET), aliases={"again": "head.weight"}).as_done())
    assert page == (
        "all 3 parameters loaded; cast from float32 to float16: body.weight, body.bias, head.weight; "
        "tied: again is head.weight"
    )
    record = record_of({"body.weight": NET["body.weight"], "heda.weight": NET["head.weight"]})
    lax = match(NET, record, strict=False, exclude="body.bias").as_done()
    assert str(lax).splitlines() == [
        "1 of 3 parameters loaded",
        "  kept, not meant: body.bias",
        "  kept, the record lacks it: head.weight",
        "  ignored in the record, the module has no such parameter: heda.weight",
        "  did you mean `heda.weight` by `head.weight`?",
        "  did you mean `head.weight` by `heda.weight`?",
    ]


def test_a_page_is_bounded_and_shows_no_control_characters() -> None:
    record = Record({f"x{i}": np.zeros(1) for i in range(5000)} | {"evil\x1b[2J": 1, "y" * 100_000: 2})
    page = str(match(NET, record))
    assert len(page) < 20_000 and "5,005 problems" in page and "more, which the fields of load_report" in page
    page = str(match({}, Record({"evil\x1b[2J": 1, "y" * 100_000: 2})))
    assert "\x1b" not in page and "evil" in page and len(page) < 1000


@given(st.sets(st.sampled_from(list(NET))), st.sets(st.sampled_from(list(NET))), st.sets(st.sampled_from(list(NET))))
def test_every_parameter_is_loaded_or_kept_and_every_entry_used_or_ignored(
    held: set[str], included: set[str], excluded: set[str]
) -> None:
    record = record_of({path: spec for path, spec in NET.items() if path in held}, extra=3)
    report = match(NET, record, strict=False, include=[*included, "extra"], exclude=[*excluded, "extra"])
    assert set(report.loaded) == held & (included - excluded)
    assert sorted([*report.loaded, *report.kept]) == sorted(NET)
    assert sorted([*report.matches.values(), *report.ignored]) == sorted(record.paths())
    assert set(report.missing) == (included - excluded) - held and report.unexpected == []
    assert match(NET, record, include=[*included, "extra"], exclude=[*excluded, "extra"]).ok == (not report.missing)
