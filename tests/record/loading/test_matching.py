"""`match`: every difference at once, in words that help; tied parameters under either name; positional records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox.record import BinaryRecorder, LazyTensor, LoadReport, Record, RecordError, match, renamed
from phlox.record.loading.report import grouped

LINEAR: dict[str, Any] = {"weight": ((16, 4), "float", None), "bias": ((4,), "float", None)}


def linear() -> Record:
    return Record({"weight": np.ones((16, 4), np.float32), "bias": np.ones(4, np.float32)})


def text_of(report: LoadReport) -> str:
    with pytest.raises(RecordError) as caught:
        report.raise_if_failed("Net")
    return str(caught.value)


def test_all_is_well() -> None:
    report = match(LINEAR, linear())
    report.raise_if_failed("Linear")
    assert report.ok and report.matches == {"weight": "weight", "bias": "bias"} and not report.cast
    assert str(report) == "all 2 parameters fit"


def test_every_problem_is_told_at_once() -> None:
    expected: dict[str, Any] = {
        "encoder.norm.weight": ((3,), "float", None),
        "mlp.weight": ((16, 5), "float", None),
        "steps": ((), "int", None),
        "mask": ((2,), "bool", None),
        "half": ((2,), "float", np.dtype(np.float32)),
    }
    record = Record(
        {
            "encoder.nrom.weight": np.zeros(3),
            "mlp.weight": np.zeros((16, 4)),
            "steps": 3,
            "mask": np.zeros(2, np.int8),
            "half": np.zeros(2, np.float16),
        }
    )
    report = match(expected, record)
    assert not report.ok and report.matches == {"half": "half"}
    assert report.missing == ["encoder.norm.weight"] and report.unexpected == ["encoder.nrom.weight"]
    assert [tuple(d) for d in report.cast] == [("half", np.float16, np.float32)]
    assert text_of(report).splitlines() == [
        "cannot load the record into Net, 5 problems:",
        "  mlp.weight: the record has shape (16, 4), the module expects (16, 5)",
        "  steps: the record has a plain value, the module expects an int tensor",
        "  mask: the record has an int tensor, the module expects a bool tensor",
        "  encoder.norm.weight: missing from the record; did you mean `encoder.nrom.weight`?",
        "  encoder.nrom.weight: in the record, but not in the module; did you mean `encoder.norm.weight`?",
    ]
    assert "cast from float16 to float32: half" in str(report)


def test_without_strictness_only_misfits_fail() -> None:
    record = Record({"weight": np.zeros((16, 4)), "extra": np.zeros(1)})
    report = match(LINEAR, record, strict=False)
    assert report.ok and report.missing == ["bias"] and report.unexpected == ["extra"]
    assert str(report).splitlines() == [
        "1 of 2 parameters fit",
        "  kept, the record lacks it: bias",
        "  ignored in the record, the module has no such parameter: extra",
    ]
    assert not match({"weight": ((4, 16), "float", None)}, record, strict=False).ok


def test_a_wrong_prefix_is_recognised() -> None:
    whole = Record.merge({"state.model": linear(), "clock": Record({"step": 1})})
    assert "load record.select('state.model')" in text_of(match(LINEAR, whole))
    nested = {f"body.{path}": spec for path, spec in LINEAR.items()}
    assert "load Record.merge({'body': record})" in text_of(match(nested, linear()))


def test_names_without_end_are_compared_in_bounded_time() -> None:
    record = Record({f"{'x' * 5000}{i}": np.zeros(1) for i in range(200)} | {f"y{i}": 1 for i in range(5000)})
    expected: dict[str, Any] = {f"{'x' * 5000}a{i}": ((1,), "float", None) for i in range(300)}
    assert len(match(expected, record).missing) == 300


def tied(first: str, second: str) -> Record:
    return Record({first: np.ones((3, 2))}, aliases={second: first})


TIED: dict[str, Any] = {"embed": ((3, 2), "float", None)}


@pytest.mark.parametrize("stored, alias", [("embed", "head"), ("head", "embed")])
def test_tied_in_both(stored: str, alias: str) -> None:
    report = match(TIED, tied(stored, alias), aliases={"head": "embed"})
    assert report.ok and report.matches == {"embed": "embed"}


def test_tied_in_the_record_only() -> None:
    report = match({**TIED, "head": ((3, 2), "float", None)}, tied("embed", "head"))
    assert report.ok and report.matches == {"embed": "embed", "head": "head"}


def test_a_module_that_has_only_the_second_name() -> None:
    report = match({"head": TIED["embed"]}, tied("embed", "head"))
    assert report.ok and report.matches == {"head": "head"}


def test_tied_in_the_module_only() -> None:
    equal = Record({"embed": np.full((3, 2), np.nan), "head": np.full((3, 2), np.nan)})
    assert match(TIED, equal, aliases={"head": "embed"}).ok
    assert match(TIED, Record({"head": np.ones((3, 2))}), aliases={"head": "embed"}).matches == {"embed": "head"}
    differing = Record({"embed": np.zeros((3, 2)), "head": np.ones((3, 2))})
    report = match(TIED, differing, aliases={"head": "embed"}, strict=False)
    assert "embed: the record has another tensor at head, but in the module both are one" in text_of(report)


def test_nothing_is_read() -> None:
    def fail() -> np.ndarray:
        raise AssertionError("read")

    record = Record({path: LazyTensor.from_function(spec[0], np.float32, fail) for path, spec in LINEAR.items()})
    assert match(LINEAR, record, aliases={"x": "weight"}).ok


def test_positional_records_match_in_order() -> None:
    recorder = BinaryRecorder(names=False)
    record = recorder.from_bytes(recorder.to_bytes(linear()))
    assert match(LINEAR, record).matches == {"weight": "0", "bias": "1"}
    report = match(dict(reversed(LINEAR.items())), record)
    assert [tuple(d) for d in report.misshapen] == [("bias", (16, 4), (4,)), ("weight", (4,), (16, 4))]
    more = {**LINEAR, "scale": ((4,), "float", None)}
    assert "positional: 2 tensors without names, matched in order; the module expects 3" in text_of(match(more, record))
    assert match({"weight": LINEAR["weight"]}, record).unexpected == ["1"]


def test_an_entry_that_is_expected_and_unreadable() -> None:
    expected: Any = {"w": ((2,), "float", None), "b": ((1,), "float", None)}
    record = Record({"b": np.ones(1)}, unreadable={"w": "a complex tensor", "args": "an object"})
    for strict in (True, False):
        report = match(expected, record, strict=strict)
        assert not report.ok and report.unreadable == {"w": "a complex tensor"} and not report.missing
        assert "w: the record's cannot be read: a complex tensor" in str(report)
    assert "args: in the record, but not in the module" in str(match(expected, record))
    report = match(expected, record, strict=False, exclude="w")
    assert report.ok and report.kept["w"] == "not meant"
    assert "it cannot be read (an object): args" in str(report)
    assert match({"b": ((1,), "float", None)}, renamed(record, lambda p: p if p == "b" else None)).ok
    tied = match({"w": ((1,), "float", None)}, Record({"v": np.ones(1)}, unreadable={"w": "x"}), aliases={"v": "w"})
    assert tied.ok and tied.matches == {"w": "v"}


def test_the_hint_comes_first_and_groups_are_told_as_one() -> None:
    expected: Any = {f"layers.{i}.w": ((1,), "float", None) for i in range(12)}
    state = {f"optimizer_state.{i}.m": np.ones(1) for i in range(240)}
    record = Record({**{f"model.{path}": np.ones(1) for path in expected}, **state, "epoch": 3})
    lines = str(match(expected, record)).split("\n")
    assert lines[1].startswith("  The record has all missing entries below 'model'")
    assert lines[2:4] == [
        "  layers.**: 12 entries missing from the record",
        "  model.**: 12 entries in the record, but not in the module",
    ]
    assert "  optimizer_state.**: 240 entries in the record, but not in the module" in lines
    fits = Record({**{path: np.ones(1) for path in expected}, **state})
    assert "no such parameter: optimizer_state.** (240 entries)" in str(match(expected, fits, strict=False))


def test_groups_hold_nothing_that_fits() -> None:
    assert grouped([f"a.b.{i}" for i in range(9)], ["a.c"]) == [("a.b.**", 9)]
    assert grouped([f"a.{i}" for i in range(9)], ["a.c"]) == [(f"a.{i}", 1) for i in range(9)]
    assert grouped([f"a.{i}" for i in range(3)], []) == [(f"a.{i}", 1) for i in range(3)]
    assert grouped([".".join("a" * 500) + str(i) for i in range(9)], ["a"])[0][1] in (1, 9)
