"""Precision settings: lazily, both ways, by path, and never by a wrong word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from phlox.record import (
    BFLOAT16,
    DOUBLE,
    FULL,
    HALF,
    LazyTensor,
    PrecisionSettings,
    Record,
    RecordError,
    RecordWarning,
    SafetensorsRecorder,
    TensorEntry,
    load,
    save,
)
from tests.record.support import AS_IS, FORMATS, recorders


class ByPath:
    """Norms as they are, the rest in half; step counts in a byte."""

    def stored(self, path: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        if "norm" in path:
            return dtype
        return np.dtype(np.uint8) if dtype.kind == "i" else HALF.stored(path, dtype)


RECORD = Record(
    {
        "norm.w": np.array([0.1, 0.2]),
        "up.w": np.array([0.1, 0.2]),
        "steps": np.array([3, 255]),
        "mask": np.array([True]),
    },
    {"k": "v"},
)


@pytest.mark.parametrize("name", FORMATS)
def test_by_path_when_saved_and_when_loaded(name: str, tmp_path: Path) -> None:
    for recorder, precision in ((recorders(ByPath())[name], AS_IS), (recorders()[name], ByPath())):
        loaded = recorder.load(recorder.save(RECORD, tmp_path / "m")).with_precision(precision)
        types = {path: str(entry.tensor.dtype) for path, entry in loaded.tensors.items()}
        assert types == {"norm.w": "float64", "up.w": "float16", "steps": "uint8", "mask": "bool"}
        np.testing.assert_array_equal(loaded["up.w"].tensor.read(), np.array([0.1, 0.2], np.float16))
        np.testing.assert_array_equal(loaded["steps"].tensor.read(), np.array([3, 255], np.uint8))
        assert dict(loaded.metadata) == {"k": "v"}
    header = recorders(ByPath())[name].from_bytes(recorders(ByPath())[name].to_bytes(RECORD)).header
    assert header is not None and header.precision == "ByPath"


@pytest.mark.parametrize("precision", [DOUBLE, FULL, HALF, BFLOAT16], ids=str)
def test_a_loaded_record_is_cast_when_read_and_not_before(precision: PrecisionSettings, tmp_path: Path) -> None:
    values = np.array([1.0, 1 + 2**-9, 3.14159, -(2.0**-20), np.inf, np.nan])
    record = load(save(Record({"w": values}), tmp_path / "m", DOUBLE)).with_precision(precision)
    types = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    read = record["w"].tensor.read()
    assert precision.float is not None and read.dtype == types[precision.float]
    # The nearest of all that the type has, by search: independent of any cast.
    if read.dtype.itemsize == 2:
        with np.errstate(invalid="ignore"):
            every = np.arange(2**16, dtype=np.uint16).view(read.dtype).astype(np.float64)
        every = every[np.isfinite(every)]
        for value, got in zip(values[:4], read[:4].astype(np.float64), strict=True):
            assert abs(got - value) == np.abs(every - value).min()
    assert np.isinf(read[4]) and np.isnan(read[5])
    again = record.with_precision(DOUBLE)["w"].tensor.read()
    np.testing.assert_array_equal(again, read.astype(np.float64))


def test_what_does_not_fit_names_its_path_when_it_is_read(tmp_path: Path) -> None:
    record = load(save(Record({"a.w": np.array([1e10]), "a.n": np.array([300]), "b": np.ones(1)}), tmp_path / "m"))
    for precision, path, limit in (
        (HALF, "a.w", r"a\.w: the value 10000000000\.0 does not fit float16 \(largest 65504\)"),
        (PrecisionSettings(int="i8"), "a.n", r"a\.n: the value 300 does not fit int8 \(-128 to 127\)"),
        (PrecisionSettings(int="u8"), "a.n", r"a\.n: the value 300 does not fit uint8 \(0 to 255\)"),
    ):
        view = record.with_precision(precision)
        assert view["b"].tensor.read() == 1
        with pytest.raises(RecordError, match=limit):
            view[path].tensor.read()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "w: Odd.stored gave None; expected a dtype"),
        ("i8", "w: Odd.stored gave 'i8'; expected a dtype"),  # np.dtype("i8") is int64
        (16, "w: Odd.stored gave 16; expected a dtype"),
        (np.float32(1), "w: Odd.stored gave .*; expected a dtype"),
        (np.dtype(np.int32), "w: Odd.stored gave int32 for float64; a record does not cast between floats, ints and"),
        (bool, "w: Odd.stored gave bool for float64"),
        (np.dtype(np.complex64), "w: a record cannot hold elements of type complex64"),
        (str, "w: a record cannot hold elements of type"),
        (object, "w: a record cannot hold elements of type"),
    ],
    ids=str,
)
def test_nonsense_of_a_users_own_precision(given: Any, sentence: str, tmp_path: Path) -> None:
    class Odd:
        def stored(self, path: str, dtype: np.dtype[Any]) -> Any:
            return given

    Odd.__qualname__ = "Odd"
    record = Record({"w": np.ones(2)})
    with pytest.raises(RecordError, match=sentence):
        record.with_precision(Odd())
    with pytest.raises(RecordError, match=f"cannot save .*: {sentence}"):
        SafetensorsRecorder(Odd()).save(record, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_types_of_numpy_are_element_types() -> None:
    class Native:
        def stored(self, path: str, dtype: np.dtype[Any]) -> Any:
            return np.float16 if path == "a" else np.dtype(">f4")

    view = Record({"a": np.ones(1), "b": np.ones(1)}).with_precision(Native())
    assert [view[path].tensor.read().dtype for path in "ab"] == [np.float16, np.float32]


@pytest.mark.parametrize(
    "precision", ["half", np.float16, None, ByPath, object()], ids=["name", "type", "None", "class", "object"]
)
def test_what_is_no_precision(precision: Any) -> None:
    sentence = r"precision=.*: expected 'f64', .*or an object with a method stored\(path, dtype\)"
    with pytest.raises(RecordError, match=sentence):
        SafetensorsRecorder(precision)
    with pytest.raises(RecordError, match=sentence):
        Record().with_precision(precision)


def test_errors_of_a_users_own_precision_are_their_own() -> None:
    class Broken:
        def stored(self, path: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
            raise KeyError(path)

    with pytest.raises(KeyError, match="w"):
        Record({"w": LazyTensor.from_array(np.ones(1))}).with_precision(Broken())


TINY = {"f16": 1e-9, "bf16": 1e-41, "f32": 1e-50}
"""Not zero in float64, and zero at these."""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("element", list(TINY))
def test_values_that_become_zero_are_told_of_once(name: str, element: Any, tmp_path: Path) -> None:
    tiny = TINY[element]
    values = np.array([1.0, tiny, -tiny, 0.0, -0.0])
    record = Record({"a.w": values, "b": np.tile(values, 100_000), "fits": np.zeros(3)})
    recorder = recorders(PrecisionSettings(float=element))[name]
    message = "200002 values that are not zero became zero at .*, in a.w, b$"
    with pytest.warns(RecordWarning, match=message) as found:
        path = recorder.save(record, tmp_path / "m")
    assert len(found) == 1 and str(path) in str(found[0].message)
    with pytest.warns(RecordWarning, match=message):
        assert recorder.to_bytes(record)
    np.testing.assert_array_equal(recorder.load(path)["a.w"].tensor.read().astype(np.float64), [1, 0, 0, 0, 0])


def test_values_that_become_zero_when_they_are_read(tmp_path: Path) -> None:
    record = load(save(Record({"w": np.array([1.0, 1e-9])}), tmp_path / "m", DOUBLE))
    with pytest.warns(RecordWarning, match=r"^w: values that are not zero became zero at float16"):
        record.with_precision(HALF)["w"].tensor.read()
    for precision in (BFLOAT16, FULL):
        record.with_precision(precision)["w"].tensor.read()
    save(Record({"w": np.array([0.0, -0.0, 6e-8])}), tmp_path / "m", HALF)


STATE = "run.optimizer.states.0a1b.state.moment_2"


@pytest.mark.parametrize(
    ("settings", "dtype", "state", "other"),
    [
        (HALF, "float32", "float32", "float16"),
        (HALF, "float64", "float32", "float16"),
        (BFLOAT16, "float32", "float32", "bfloat16"),
        (HALF, "bfloat16", "bfloat16", "float16"),
        (FULL, "float16", "float32", "float32"),
        (FULL, "float64", "float32", "float32"),
        (PrecisionSettings(), "float16", "float16", "float16"),
        (PrecisionSettings(float="f16", state="bf16"), "float32", "bfloat16", "float16"),
        (PrecisionSettings(float="f16", state="f64"), "float32", "float64", "float16"),
        (PrecisionSettings(float="f16", int="i8", state="f16"), "int32", "int8", "int8"),
    ],
    ids=str,
)
def test_what_optimizers_keep_is_not_narrowed_below_f32(settings: Any, dtype: str, state: str, other: str) -> None:
    given = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    array = np.ones(2).astype(given)
    record = Record(
        {
            STATE: array,
            "states.0a1b.state": array,
            "model.w": array,
            "model.states": array,
            "model.sum": TensorEntry(LazyTensor.from_array(array), None, True),
        }
    ).with_precision(settings)
    types = {path: str(entry.tensor.dtype) for path, entry in record.tensors.items()}
    assert types == {
        STATE: state, "states.0a1b.state": state, "model.w": other, "model.states": other, "model.sum": state
    }  # fmt: skip


def test_settings_are_told_in_files() -> None:
    settings = PrecisionSettings(float="f16", state="bf16")
    assert str(settings) == "float=f16, int=as is, state=bf16"
    with pytest.raises(RecordError, match=r"PrecisionSettings\(state='half'\): expected None or one of f64"):
        PrecisionSettings(state="half")  # pyright: ignore[reportArgumentType]
