"""Records compared: what is equal, what differs and by how much, and what is in one alone.

Serves: phlox/record/inspection/tensor_difference.py
"""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record import BinaryRecorder, LazyTensor, Record, SafetensorsRecorder, TensorEntry, load
from phlox.record.inspection.comparison import Change, difference
from phlox.record.inspection.tensor_difference import Extreme, TensorDifference
from tests.record.support import AS_IS, DTYPES, FLOATS, FORMATS, INTS, of_bits, recorders, records

RNG = np.random.default_rng(5)


def of(array: Any, other: Any, **tolerance: float) -> TensorDifference | None:
    """The one tensor difference of two arrays."""
    found = difference(Record({"x": np.asarray(array)}), Record({"x": np.asarray(other)}), **tolerance)
    assert len(found.tensors) + len(found.within) <= 1
    return next(iter((*found.tensors, *found.within)), None)


@given(records())
def test_a_record_is_identical_to_itself(record: Record) -> None:
    found = difference(record, record)
    assert found.ok and found.identical and found.equal == len(record)


@pytest.mark.parametrize("name", FORMATS)
@given(record=records())
def test_no_format_makes_a_difference(name: str, record: Record) -> None:
    recorder = recorders()[name]
    assert difference(record, recorder.from_bytes(recorder.to_bytes(record))).identical


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_against_exact_arithmetic(dtype: np.dtype[Any]) -> None:
    """Any bits, more than a block of them, against Python's exact rationals."""
    from fractions import Fraction

    size = 70_000
    bits = RNG.integers(0, 2 ** (8 * dtype.itemsize), size, np.uint64, endpoint=False) if dtype.itemsize < 8 else (
        RNG.integers(0, 2**63, size, np.uint64) * 2 + RNG.integers(0, 2, size, np.uint64)
    )  # fmt: skip
    a = of_bits(bits.astype(f"u{dtype.itemsize}"), dtype)
    b = a.copy()
    places = np.concatenate([RNG.choice(size - 1, 30, replace=False), [size - 1]])
    b[places] = np.roll(a, 7)[places]
    found = of(a, b)
    assert found is not None and found.size == size
    unequal, odd, best, best_relative = 0, 0, Fraction(0), Fraction(0)
    for place in sorted(places.tolist()):
        x, y = a[place].item(), b[place].item()
        if not (math.isfinite(x) and math.isfinite(y)):
            same = x == y or (math.isnan(x) and math.isnan(y))
            odd, unequal = odd + (not same), unequal + (not same)
        elif x != y:
            unequal += 1
            gap = abs(Fraction(x) - Fraction(y))
            best = max(best, gap)
            best_relative = max(best_relative, gap / max(abs(Fraction(x)), abs(Fraction(y))))
    assert (found.unequal, found.different, found.non_finite) == (unequal, unequal, odd)
    assert found.largest is not None and found.relative is not None
    assert found.largest.amount == pytest.approx(float(best) if best < 2**1023 else math.inf, rel=1e-15)
    assert found.relative.amount == pytest.approx(float(best_relative), rel=1e-15)
    (place,) = found.largest.at
    assert (found.largest.first, found.largest.second) == (a[place].item(), b[place].item())


def test_the_largest_is_told_with_its_index() -> None:
    a = RNG.uniform(1, 2, (30, 40, 70)).astype(np.float32)
    b = a.copy()
    b[3, 4, 5] += 1.5
    b[29, 39, 69] += 4.0
    b[0, 0, 0] = 0.0
    found = of(a, b)
    assert found is not None and found.different == 3 and found.non_finite == 0 and found.non_finite_at is None
    assert found.largest is not None and found.largest.at == (29, 39, 69)
    assert found.relative == Extreme(1.0, (0, 0, 0), a[0, 0, 0].item(), 0.0)


def test_integers_that_no_float_holds() -> None:
    found = of(np.array([2**53, 5]), np.array([2**53 + 1, 5]))
    assert found is not None and (found.different, found.largest) == (1, Extreme(1.0, (0,), 2**53, 2**53 + 1))
    found = of(np.array([-(2**63)]), np.array([2**63 - 1]))
    assert found is not None and found.largest is not None and found.largest.amount == 2.0**64
    assert of(np.array([2**64 - 1], np.uint64), np.array([-1], np.int64)) is not None
    assert of(np.array([2**63 - 1], np.uint64), np.array([2**63 - 1], np.int64)) is None
    assert of(np.array([-3, 7], np.int8), np.array([-3, 7], np.int64)) is None


def test_what_is_not_finite() -> None:
    a = np.array([np.nan, np.inf, np.inf, 1.0, np.nan, 0.0])
    b = np.array([np.nan, np.inf, -np.inf, np.inf, 2.0, -0.0])
    found = of(a, b, atol=1e300, rtol=1.0)
    assert found is not None
    assert (found.unequal, found.different, found.non_finite, found.largest) == (3, 3, 3, None)
    assert found.non_finite_at == Extreme(math.inf, (2,), math.inf, -math.inf)
    assert of(np.array([1e308]), np.array([-1e308])).largest.amount == math.inf  # type: ignore[union-attr]


@pytest.mark.parametrize(("a", "b", "rtol", "atol", "ok"), [
    (1.0, 1.5, 0.0, 0.5, True), (1.0, 1.5, 0.0, 0.49, False), (1.0, 1.5, 0.34, 0.0, True), (1.0, 1.5, 0.33, 0.0, False),
    (1.5, 1.0, 0.34, 0.0, True), (0.0, 1e-30, 0.5, 0.0, False), (100.0, 110.0, 0.05, 5.0, True),
], ids=str)  # fmt: skip
def test_tolerance(a: float, b: float, rtol: float, atol: float, ok: bool) -> None:
    tolerance = {"rtol": rtol, "atol": atol}
    found = difference(Record({"x": np.array([a])}), Record({"x": np.array([b])}), **tolerance)
    assert found.ok == ok and (found.equal, len(found.tensors), len(found.within)) == (ok, not ok, ok)
    assert difference(Record({"x": [a, {"y": a}]}), Record({"x": [b, {"y": b}]}), **tolerance).ok == ok


def test_precisions_are_no_difference_of_values() -> None:
    array = RNG.normal(size=100).astype(np.float32)
    for dtype, rtol in ((np.float16, 2**-11), (ml_dtypes.bfloat16, 2**-8), (np.float64, 0.0)):
        record = Record({"x": array.astype(dtype)})
        found = difference(Record({"x": array}), record, rtol=rtol)
        assert found.ok and not found.identical and len(found.precisions) == 1
        assert difference(Record({"x": array}), record, rtol=rtol / 8).ok == (rtol == 0)


def test_everything_at_once() -> None:
    zeros = np.zeros((2, 3), np.float32)
    first = Record(
        {
            "encoder.norm.weight": zeros, "kind": np.zeros(2), "plain": np.zeros(2), "shape": zeros, "a": zeros,
            "small": zeros, "large": zeros, "step": 1, "lr": 0.5, "nan": math.nan, "list": [1, "a"],
            "id": TensorEntry(LazyTensor.from_array(zeros), "i1"),
        },
        {"epoch": "3", "same": "x", "mine": "y"}, aliases={"tied": "a", "left": "a"},
    )  # fmt: skip
    second = Record(
        {
            "encoder.nrom.weight": zeros, "kind": np.zeros(2, int), "plain": 3, "shape": zeros.T, "a": zeros,
            "small": zeros + 1, "large": zeros + 2, "step": True, "lr": 0.5, "nan": math.nan, "list": [1, "b"],
            "id": TensorEntry(LazyTensor.from_array(zeros), "i2"), "zzz": 0,
        },
        {"epoch": "4", "same": "x"}, aliases={"tied": "id"},
    )  # fmt: skip
    found = difference(first, second)
    assert not found.ok and not found.identical
    assert found.only_first == ["encoder.norm.weight"] and found.only_second == ["encoder.nrom.weight", "zzz"]
    assert found.suggestions == {
        "encoder.norm.weight": "encoder.nrom.weight", "encoder.nrom.weight": "encoder.norm.weight",
    }  # fmt: skip
    assert found.kinds == [Change("kind", "float", "int"), Change("plain", "float", "value")]
    assert found.shapes == [Change("shape", (2, 3), (3, 2))]
    assert found.values == [Change("step", 1, True), Change("list", [1, "a"], [1, "b"])]
    assert [one.path for one in found.tensors] == ["large", "small"]
    assert found.ids[0] == Change("id", "i1", "i2")
    assert found.aliases == [Change("tied", "a", "id"), Change("left", "a", None)]
    assert found.metadata == [Change("epoch", "3", "4"), Change("mine", "y", None)]
    assert str(found) == (
        "5 entries agree, 1 only in the first, 2 only in the second, 2 of another kind, 1 of another shape, "
        "4 of another value"
    )


def test_what_has_another_name_is_known_by_its_id() -> None:
    first = Record({f"conv.{i}": TensorEntry(LazyTensor.from_array(np.ones(i)), f"id{i}") for i in range(3)})
    second = Record({f"stem{2 - i}": first[f"conv.{i}"] for i in range(2)})
    found = difference(first, second)
    assert found.only_first == ["conv.0", "conv.1", "conv.2"] and found.only_second == ["stem2", "stem1"]
    assert found.suggestions == {"conv.0": "stem2", "conv.1": "stem1", "stem2": "conv.0", "stem1": "conv.1"}


def test_a_tied_tensor_is_found_under_any_of_its_names() -> None:
    first = Record({"embed": np.ones(3), "x": 1}, aliases={"head": "embed"})
    for second in (Record({"head": np.ones(3), "x": 1}), Record({"x": 1, "head": np.ones(3), "embed": np.ones(3)})):
        for found in (difference(first, second), difference(second, first)):
            assert found.ok and found.aliases and not found.identical
    found = difference(first, Record({"embed": np.ones(3), "head": np.zeros(3), "x": 1}))
    assert [one.path for one in found.tensors] == ["head"] and found.equal == 2


def test_without_names_in_order() -> None:
    record = Record({"b": np.ones(3), "step": 3, "a": np.zeros(2)}, {"by": "me"}, aliases={"c": "a"})
    recorder = BinaryRecorder(AS_IS, names=False)
    positional = recorder.from_bytes(recorder.to_bytes(record))
    for pair in ((record, positional), (positional, record)):
        found = difference(*pair)
        assert found.by_position and found.ok and found.equal == 3
    changed = Record({"b": np.ones(3), "step": 3, "a": np.ones(2), "more": np.ones(1)})
    found = difference(positional, changed)
    assert [one.path for one in found.tensors] == ["a"] and found.only_second == ["more"]
    assert difference(positional, Record({"b": np.ones(3)})).only_first == ["[1]", "[2]"]
    assert difference(positional, positional).identical
    other = Record({"b": np.ones(3), "step": 3, "z": np.zeros(2)}, {"by": "me"})
    for pair in ((positional, other), (other, positional), (positional, recorder.from_bytes(recorder.to_bytes(other)))):
        found = difference(*pair)
        assert found.ok and found.other_names and not found.identical


def training(
    *ids: str, values: tuple[float, ...] = (1.0, 2.0), model: bool = True, order: tuple[int, ...] = (0, 1)
) -> Record:
    """As a model and an optimizer are gathered: the states have the ids of the parameters in their names."""

    def entry(value: float, id: str) -> TensorEntry:
        return TensorEntry(LazyTensor.from_array(np.full(2, value)), id)

    entries: dict[str, Any] = {}
    for name, id in zip(("a", "b"), ids, strict=True):
        if model:
            entries[f"model.{name}"] = entry(0.0, id)
    for place in order:
        entries[f"optimizer.states.{ids[place]}.skeleton"] = ["leaf", "float"]
        entries[f"optimizer.states.{ids[place]}.state.m"] = entry(values[place], ids[place])
    return Record(entries)


def test_states_of_one_parameter_in_two_runs_are_compared() -> None:
    first = training("p", "q")
    found = difference(first, training("x", "y", order=(1, 0)))
    assert found.ok and found.equal == 6 and not found.identical and found.renamed == {"x": "p", "y": "q"}
    assert [change.path for change in found.ids] == ["model.a", "model.b"]
    found = difference(first, training("x", "y", values=(1.0, 3.0)))
    assert [one.path for one in found.tensors] == ["optimizer.states.q.state.m"] and not found.only_first
    # The same ids at other paths: what is at one path is one parameter.
    found = difference(first, training("q", "p"))
    assert found.ok and found.renamed == {"q": "p", "p": "q"}
    assert difference(first, training("p", "q")).identical
    # Without a model, in order, if they are built alike.
    alone = training("p", "q", model=False)
    found = difference(alone, training("x", "y", model=False))
    assert found.ok and found.equal == 4 and not found.identical
    found = difference(alone, training("p", "y", model=False, values=(1.0, 5.0)))
    assert [one.path for one in found.tensors] == ["optimizer.states.q.state.m"] and found.renamed == {"y": "q"}
    other = Record({"optimizer.states.x.state.n": TensorEntry(LazyTensor.from_array(np.ones(2)), "x")})
    assert len(difference(alone, other).only_first) == 4
    one = Record({f"states.{'0' * 32}.skeleton": 1}), Record({f"states.{'a' * 32}.skeleton": 1})
    assert difference(*one).ok and not difference(*one).identical


@pytest.mark.parametrize("tolerance", [{"rtol": -1.0}, {"atol": math.nan}, {"atol": math.inf}], ids=str)
def test_no_tolerance(tolerance: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="a tolerance must be finite and not negative"):
        difference(Record(), Record(), **tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_and_scalar_tensors(dtype: np.dtype[Any]) -> None:
    for shape in ((), (0,), (3, 0)):
        one, other = np.zeros(shape, dtype), np.ones(shape, dtype)
        assert of(one, one) is None
        found = of(one, other)
        assert (found is None) == (shape != ())
        if found is not None:
            assert found.largest == Extreme(1.0, (), 0, 1) and found.relative is not None


@pytest.mark.full
def test_memory_is_that_of_two_tensors(tmp_path: Path) -> None:
    each = 1 << 22
    first = Record({f"t{i}": np.full(each // 8, i, np.float64) for i in range(6)})
    SafetensorsRecorder(AS_IS).save(first, tmp_path / "a")
    files = [SafetensorsRecorder().save(first, tmp_path / "b")]
    files += [recorders(AS_IS)["json-decimal"].save(first, tmp_path / "c")]
    whole = load(tmp_path / "a.safetensors")
    for path in files:
        other = load(path)
        tracemalloc.start()
        assert difference(whole, other).ok
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # JSON decodes a tensor to Python floats (32 bytes of each 8) before it is one.
        assert peak < (2 if path.suffix == ".safetensors" else 9) * each


@given(st.lists(st.floats(width=32), max_size=5), st.lists(st.floats(width=32), max_size=5))
def test_symmetric_in_what_it_finds(one: list[float], other: list[float]) -> None:
    size = min(len(one), len(other))
    a, b = np.array(one[:size], np.float32), np.array(other[:size], np.float32)
    forth, back = of(a, b, rtol=0.1), of(b, a, rtol=0.1)
    assert (forth is None) == (back is None) == bool(np.array_equal(a, b, equal_nan=True))
    if forth is not None and back is not None:
        assert (forth.unequal, forth.different, forth.non_finite) == (back.unequal, back.different, back.non_finite)
