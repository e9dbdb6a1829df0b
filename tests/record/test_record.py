"""`Record`: order, lookup, selection, merging, aliases, what it refuses, and how it shows."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from phlox.record import HALF, Header, LazyTensor, Record, RecordError, TensorEntry, difference, gather, renamed
from tests.record.support import FORMATS, recorders, records


def tied() -> Record:
    return Record(
        {"embed.weight": np.ones((3, 2)), "head.bias": np.zeros(3), "step": 4},
        {"note": "x"},
        aliases={"head.weight": "embed.weight"},
    )


def test_order_lookup_and_size() -> None:
    record = tied()
    assert record.paths() == list(record) == ["embed.weight", "head.bias", "step"]
    assert (len(record), record.nbytes, list(record.tensors), dict(record.values)) == (
        3,
        72,
        ["embed.weight", "head.bias"],
        {"step": 4},
    )
    assert "step" in record and "head.weight" in record and "head" not in record
    assert record["head.weight"] is record["embed.weight"]
    with pytest.raises(RecordError, match=r"no entry 'embed.wieght'; did you mean 'embed.weight'"):
        record["embed.wieght"]


def test_other_entries_leave_all_else_as_it_is() -> None:
    record = Record({"a": 1, "b": np.zeros(2)}, {"note": "x"}, aliases={"c": "b"}, unreadable={"d": "why"})
    other = record.with_entries({"a": 2, "new": 3})
    assert dict(other.values) == {"a": 2, "new": 3} and other.paths() == ["a", "b", "new"]
    assert other["c"] is record["b"] and (other.metadata, other.unreadable) == (record.metadata, record.unreadable)
    assert record.with_entries({}, {"note": "y"}).metadata == {"note": "y"} and record["a"] == 1
    unnamed = Record({"0": 1}, positional=True, header=Header.of(Record({}), "binary", "FULL"))
    again = unnamed.with_entries({"0": 2})
    assert again.positional and again.header is unnamed.header


@given(records())
def test_merge_and_select_are_inverse(record: Record) -> None:
    merged = Record.merge({"a": record, "a.b": Record({"zz": 1}), "c": Record()})
    if "b.zz" not in record:
        selected = merged.select("a")
        assert selected.paths() == [*record.paths(), "b.zz"]
        assert dict(selected.aliases) == dict(record.aliases)
        assert dict(selected.metadata) == dict(record.metadata)
        assert set(merged.select("a.b")) == {"zz", *record.select("b")}
    assert len(merged.select("c")) == len(merged.select("nothing")) == 0


def test_merge_refuses_a_collision() -> None:
    with pytest.raises(RecordError, match=r"two records give 'a\.b\.c'"):
        Record.merge({"a": Record({"b.c": 1}), "a.b": Record({"c": 2})})


def test_a_selection_is_complete_in_itself() -> None:
    head = tied().select("head")
    assert head.paths() == ["bias", "weight"] and not head.aliases
    assert head["weight"].tensor.shape == (3, 2)


def test_positional_records_have_no_names() -> None:
    record = Record({"0": np.zeros(1), "1": 3}, positional=True)
    for operation in (lambda: record.select("0"), lambda: Record.merge({"a": record})):
        with pytest.raises(RecordError, match="positional"):
            operation()
    with pytest.raises(RecordError, match='"0", "1"'):
        Record({"a": 1}, positional=True)


def test_nothing_is_read_before_it_is_asked_for() -> None:
    calls: list[str] = []

    def lazy(name: str) -> LazyTensor:
        return LazyTensor.from_function((2,), np.float32, lambda: (calls.append(name), np.ones(2, np.float32))[1])

    record = Record.merge({"m": Record({"a": lazy("a"), "b": lazy("b")})}).with_precision(HALF).select("m")
    assert repr(record) and record.nbytes == 8 and calls == []
    assert record["b"].tensor.read().dtype == np.float16 and calls == ["b"]


class Custom:
    def stored(self, path: str, dtype: Any) -> Any:
        return dtype if "norm" in path else HALF.stored(path, dtype)


def test_a_precision_of_ones_own() -> None:
    record = Record({"norm.weight": np.ones(1, np.float32), "mlp.weight": np.ones(1, np.float32)})
    assert [e.tensor.dtype for e in record.with_precision(Custom()).tensors.values()] == [np.float32, np.float16]


def test_values_are_copied_and_plain() -> None:
    class Color(enum.IntEnum):
        RED = 1

    state: list[Any] = [1, {"a": [2.5, None, "x", True]}]
    record = Record({"state": state, "color": Color.RED, "np": np.float64(2)})
    state.append(3)
    assert record["state"] == [1, {"a": [2.5, None, "x", True]}]
    assert type(record["color"]) is int and type(record["np"]) is float


def recursive() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "value", [object(), (1, 2), {1: 2}, b"x", 2**64, -(2**63) - 1, np.int64(3), {"a": {2}}, "\ud800", recursive()]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(RecordError, match="here"):
        Record({"here": value})


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "../../x", "\ud800", 3])
def test_bad_paths_are_refused(path: Any) -> None:
    with pytest.raises(RecordError):
        Record({path: 1})


@pytest.mark.parametrize("aliases", [{"b": "c"}, {"a": "a"}, {"b..c": "a"}])
def test_bad_aliases_are_refused(aliases: dict[str, str]) -> None:
    with pytest.raises(RecordError):
        Record({"a": 1}, aliases=aliases)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": "\ud800"}])
def test_bad_metadata_is_refused(metadata: Any) -> None:
    with pytest.raises(RecordError):
        Record({}, metadata)


def test_repr_is_a_table() -> None:
    many = Record({f"layer{i}.weight": np.zeros((2, i), np.float32) for i in range(50)})
    lines = repr(many).splitlines()
    assert lines[0] == "Record: 50 entries, 9.80 kB of tensors"
    assert lines[2].split() == ["layer0.weight", "float32", "(2,", "0)", "0", "B"]
    assert lines[-1] == "  ... and 10 more"
    assert "x" * 200 not in repr(Record({"note": "x" * 1000}))


def test_ids_are_text() -> None:
    with pytest.raises(RecordError):
        Record({"a": TensorEntry(LazyTensor.from_array(np.zeros(1)), "\ud800")})


def with_unreadable() -> Record:
    return Record({"a.w": np.zeros(2), "b.w": np.ones(2)}, unreadable={"a.args": "an object", "z": "complex"})


def test_what_is_unreadable_is_told_and_raises_when_it_is_asked_for() -> None:
    record = with_unreadable()
    assert len(record) == 2 and "z" not in record and list(record) == record.paths() == ["a.w", "b.w"]
    assert record.unreadable == {"a.args": "an object", "z": "complex"}
    with pytest.raises(RecordError, match=r"^z: complex$"):
        record["z"]
    assert "  cannot be read: 2\n    a.args  an object\n    z       complex" in repr(record)
    with pytest.raises(RecordError, match="'b.w' is both an entry and unreadable"):
        Record({"b.w": 1}, unreadable={"b.w": "why"})


def test_what_is_unreadable_goes_where_its_record_goes() -> None:
    record = with_unreadable()
    assert record.select("a").unreadable == {"args": "an object"}
    assert Record.merge({"m": record}).unreadable == {"m.a.args": "an object", "m.z": "complex"}
    assert record.with_precision(HALF).unreadable == record.unreadable
    assert renamed(record, {"^a": "c"}).unreadable == {"c.args": "an object", "z": "complex"}
    rest = renamed(record, lambda path: None if path in record.unreadable else path)
    assert not rest.unreadable and rest.paths() == record.paths()
    assert gather(part=record).unreadable == {"part.a.args": "an object", "part.z": "complex"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_unreadable_is_not_left_out_in_silence_when_it_is_saved(format: str) -> None:
    with pytest.raises(RecordError, match=r"a\.args: an object \(1 others likewise\); to save the rest, drop it"):
        recorders()[format].to_bytes(with_unreadable())


def test_differences_tell_what_is_unreadable() -> None:
    record = with_unreadable()
    found = difference(record, Record({"a.w": np.zeros(2), "b.w": np.ones(2), "z": np.ones(1)}))
    assert not found.ok and found.unreadable == [("a.args", "an object", None), ("z", "complex", None)]
    assert not found.only_second and not difference(record, record).ok
    assert "2 that cannot be read" in str(found)
