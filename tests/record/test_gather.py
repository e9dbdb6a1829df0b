"""`gather` and `restore`: parts of every sort, all or nothing, and everything that is wrong told at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import RecordError
from phlox.random import Stream
from phlox.record import Record, gather, load, restore, save
from tests.record.support import AS_IS, FORMATS, recorders


class Part:
    """Recordable, without a way to tell beforehand whether a record fits."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.log: list[str] = []

    def into_record(self) -> Record:
        return Record({"value": np.array(self.value)}, {"sort": "part"})

    def load_record(self, record: Record) -> None:
        self.log.append("loaded")
        if "value" not in record:
            raise RecordError("value: missing")
        self.value = float(record["value"].tensor.read())


class Careful(Part):
    """One that has: it is never loaded on trial."""

    def prepare_load(self, record: Record) -> Callable[[], None]:
        value = float(record["value"].tensor.read())
        return lambda: self.load_record(Record({"value": np.array(value)}))


class Stricter(Part):
    """One that refuses some values."""

    def load_record(self, record: Record) -> None:
        if record["value"].tensor.read() < 0:
            raise RecordError("value: negative")
        super().load_record(record)


class Counter:
    """Stateful."""

    def __init__(self, count: int) -> None:
        self.count = count

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Empty(Part):
    def into_record(self) -> Record:
        return Record()

    def load_record(self, record: Record) -> None:
        self.log.append("loaded")


def parts(value: float, count: int) -> dict[str, Any]:
    return {
        "one": Part(value),
        "careful": Careful(value + 1),
        "strict": Stricter(value + 2),
        "counter": Counter(count),
        "stream": Stream((1, count), position=count),
        "nested": {"deep": {"part": Part(value + 3)}, "count": Counter(count + 1), "flag": True},
        "empty": Empty(0),
        "progress": {"epoch": count, "best": None, "name": "x"},
        "step": count,
        "rate": 0.5,
    }


def seen(parts: dict[str, Any]) -> list[Any]:
    nested = parts["nested"]
    return [
        parts["one"].value, parts["careful"].value, parts["strict"].value, parts["counter"].count,
        parts["stream"].position, parts["stream"].key, nested["deep"]["part"].value, nested["count"].count,
    ]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
def test_everything_comes_back_through_every_format(format: str) -> None:
    old, new = parts(2.5, 7), parts(0.0, 0)
    recorder = recorders()[format]
    record = recorder.from_bytes(recorder.to_bytes(gather(old)))
    values = restore(record, new)
    assert seen(new) == seen(old) != seen(parts(0.0, 0))
    assert values == {"nested": {"deep": {}, "flag": True}, "progress": old["progress"], "step": 7, "rate": 0.5}
    assert [len(new[name].log) for name in ("careful", "strict", "empty")] == [1, 3, 3]


def test_a_record_of_parts_is_a_plain_record(tmp_path: Any) -> None:
    record = gather(model=Part(1.0), nested={"a": Part(2.0), "b": 3}, step=4)
    assert record.paths() == ["model.value", "nested.a.value", "nested.b", "step"]
    assert record.metadata["model.sort"] == "part" and json.loads(record.metadata["parts"]) == [
        "model",
        "nested",
        "step",
    ]
    path = save(record, tmp_path / "state", AS_IS)
    alone = Part(0.0)
    alone.load_record(load(path).select("model"))
    assert alone.value == 1.0
    bare = Record({path: record[path] for path in record})  # made by hand: without the names of the parts
    assert restore(bare, model=alone, nested=None, step=None)["step"] == 4
    assert restore(bare, model=alone, nested=None, step=0)["nested"].paths() == ["a.value", "b"]


def test_nothing_is_read_or_copied() -> None:
    class Lazy(Part):
        def into_record(self) -> Record:
            def read() -> np.ndarray:
                raise AssertionError("read")

            return Record({"x": px.record.LazyTensor.from_function((2,), np.float32, read)})

    assert gather(a=Lazy(0), b={"c": Lazy(1)}).paths() == ["a.x", "b.c.x"]


def test_names_and_aliases_stay() -> None:
    class Tied(Part):
        def into_record(self) -> Record:
            return Record({"embed": np.ones(2)}, aliases={"head": "embed"})

    assert dict(gather(model=Tied(0)).aliases) == {"model.head": "model.embed"}
    assert dict(gather(record=Record({"a": 1}, {"of": "me"})).metadata)["record.of"] == "me"


def test_everything_wrong_is_told_at_once_and_nothing_is_changed() -> None:
    record = gather(
        first=Part(1.0), modle=Part(2.0), stream=Stream((0, 0), 5), strict=Part(-1.0), step="seven",
        deep={"x": Part(3.0)}, progress=3, clock=Counter(1),
    )  # fmt: skip
    given = {
        "first": Part(10.0), "model": Part(20.0), "stream": Stream((9, 9), 9), "strict": Stricter(30.0), "step": 1,
        "deep": {"y": Part(40.0)}, "progress": Part(50.0), "clock": Careful(60.0),
    }  # fmt: skip
    with pytest.raises(RecordError) as caught:
        restore(record, given)
    assert str(caught.value).splitlines() == [
        "cannot restore, 8 problems; nothing was changed:",
        "  model: the record has no such part; did you mean `modle`?",
        "  modle: the record has this part, but it was not given; did you mean `model`?",
        "  strict: value: negative",
        "  step: the record has 'seven', where a value of type int was expected; give None for any value",
        "  deep.y: the record has no such part; it has x",
        "  deep.x: the record has this part, but it was not given; give it too",
        "  progress: the record has 3, where a value of type Part was expected",
        "  clock: the record has {'count': 1}, where a value of type Careful was expected",
    ]
    assert given["first"].value == 10.0 and given["strict"].value == 30.0 and given["progress"].value == 50.0
    assert (given["stream"].key, given["stream"].position) == ((9, 9), 9)


@pytest.mark.parametrize(
    ("state", "part", "said"),
    [
        ({"key": [0, 0]}, Stream((9, 9), 9), "a state of a random stream must be"),
        ({"key": [0, -1], "position": 3}, Stream((9, 9), 9), "must be in 0..2"),
        ({"other": 1}, Counter(9), "KeyError: 'count'"),
        (3, Counter(9), "TypeError"),
    ],
    ids=["missing", "range", "key", "type"],
)
def test_a_state_that_does_not_fit(state: Any, part: Any, said: str) -> None:
    other, before = Part(1.0), part.state()
    with pytest.raises(RecordError, match=rf"cannot restore, 1 problem; nothing was changed:\n  clock: .*{said}"):
        restore(gather(other=Part(2.0), clock=state), other=other, clock=part)
    assert other.value == 1.0 and part.state() == before


@pytest.mark.parametrize("whole", [True, False])
def test_the_ambient_streams(whole: bool) -> None:
    source = px.random if whole else px.random.current()
    with px.random.stream(3):
        here = px.random if whole else px.random.current()
        record = gather(random=here)
        expected = px.random.normal((3,)).numpy()
        px.random.normal((3,))
        restore(record, random=here)
        np.testing.assert_array_equal(px.random.normal((3,)).numpy(), expected)
    assert source is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"a": object()},
            r"a: no part that can be saved: a value of <class 'object'> is not a plain value.*into_record",
        ),
        ({"a": {"b": fail} if (fail := print) else {}}, r"a\.b: no part that can be saved"),
        ({"a.b": 1}, r"'a\.b' is not a name for a part"),
        ({"": 1}, "'' is not a name"),
        ({"a": {3: Part(1.0)}}, "a: 3 is not a name for a part"),
        ({"a": 2**70}, "a: no part that can be saved: the int does not fit 64 bits"),
        ({"a": [Part(1.0)]}, "a: no part that can be saved: .*Part"),
    ],
    ids=["object", "function", "dot", "empty", "number", "large", "list"],
)
def test_what_is_no_part(given: Any, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        gather(given)


def test_bad_calls() -> None:
    with pytest.raises(RecordError, match="expected the parts by name, as in model="):
        gather(Part(1.0))  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="the part 'a' is given twice"):
        gather({"a": 1}, a=2)
    recorder = recorders()["binary"]
    bare = px.record.BinaryRecorder(names=False)
    with pytest.raises(RecordError, match="positional record has no names"):
        restore(bare.from_bytes(bare.to_bytes(gather(a=1))), a=1)
    assert restore(recorder.from_bytes(recorder.to_bytes(gather())), {}) == {}

    class Wrong(Counter):
        def state(self) -> dict[str, Any]:
            return {"count": object()}

    with pytest.raises(RecordError, match=r"clock: its state\(\) holds something else than plain values"):
        gather(clock=Wrong(1))


@pytest.mark.parametrize("names", ["[1, 2]", "{}", "[" * 100_000, "3", '["a", "a", "b"]', "nan"])
def test_damaged_names_of_parts_do_no_harm(names: str) -> None:
    record = Record({"a": 1}, {"parts": names})
    if "b" in names:
        with pytest.raises(RecordError, match="b: the record has this part"):
            restore(record, a=0)
    else:
        assert restore(record, a=0) == {"a": 1}
