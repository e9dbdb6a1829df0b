"""Casts of floats by PyTorch: bit by bit those of NumPy, when saving and when loading."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.errors import RecordError
from phlox.host import float_casts
from phlox.record import BFLOAT16, FULL, HALF, load, save

torch = pytest.importorskip("torch")

from phlox.backend import Torch  # noqa: E402
from phlox.backend.torch.cpu import casts  # noqa: E402

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
SHORTS = {F16: np.arange(1 << 16, dtype=np.uint16).view(F16), BF16: np.arange(1 << 16, dtype=np.uint16).view(BF16)}


@pytest.fixture(autouse=True, params=["PyTorch alone", "another library"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to cast what is PyTorch's."""
    if request.param == "PyTorch alone":
        monkeypatch.setattr(float_casts, "has_instructions", lambda: False)
    else:
        assert float_casts.has_instructions()


@pytest.fixture(autouse=True)
def quiet() -> Generator[None]:
    """NumPy's own casts, which are compared with, warn of NaN in bfloat16."""
    with np.errstate(all="ignore"):
        yield


def finite(short: Any) -> np.ndarray[Any, Any]:
    every = SHORTS[short]
    return every[np.isfinite(every)]


def singles(short: Any) -> np.ndarray[Any, Any]:
    """Every number of a type, half-way to the next one, and the float32 below and above that; of both signs."""
    ordered = np.sort(finite(short).astype(np.float64))
    ties = ((ordered[1:] + ordered[:-1]) / 2).astype(F32)
    up, down = np.nextafter(ties, F32.type(np.inf)), np.nextafter(ties, F32.type(-np.inf))
    return np.concatenate([ordered.astype(F32), ties, up, down])


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("short", [F16, BF16], ids=str)
def test_rounding_is_that_of_numpy(short: Any) -> None:
    for array, dtype in ((singles(short), short), (finite(short), F32)):
        found = Torch().recast(array, dtype)
        assert found is not None and found.dtype == dtype
        np.testing.assert_array_equal(bits(found), bits(array.astype(dtype)))


@pytest.mark.parametrize("short", [F16, BF16], ids=str)
def test_what_is_not_finite_is_left_to_numpy(short: Any) -> None:
    large = float(ml_dtypes.finfo(short).max)
    array = np.ones(2 * casts._BLOCK, F32)
    for place in (0, casts._BLOCK - 1, casts._BLOCK, len(array) - 1):
        for value in (np.nan, np.inf, -np.inf, F32.type(large) * F32.type(1.01)):
            array[place] = value
            assert Torch().recast(array, short) is None
            array[place] = 1.0


def test_other_element_types_are_left_to_numpy() -> None:
    for source, target in ((np.float64, F16), (F32, np.float64), (F16, BF16), (np.int32, F16), (">f4", F16)):
        assert Torch().recast(np.ones(3, source), np.dtype(target)) is None


@pytest.mark.parametrize("engine", [NumPy(), Torch()], ids=str)
def test_any_layout_and_what_may_only_be_read(engine: Any) -> None:
    array = np.arange(60, dtype=F32).reshape(3, 4, 5)
    array.flags.writeable = False
    for view in (array, array.T, array[:, ::2], array[0, 0, 0], array[:0]):
        found = engine.recast(np.asarray(view), F16)
        assert found is not None and found.shape == view.shape
        np.testing.assert_array_equal(found, view.astype(F16))


class Holder(px.Module):
    def __init__(self, values: Any, device: px.Device) -> None:
        self.w = px.Param(px.tensor(values, device=device))


@pytest.mark.filterwarnings("ignore::phlox.errors.RecordWarning")
@pytest.mark.parametrize("precision", [HALF, BFLOAT16], ids=str)
def test_the_engine_saves_what_numpy_would(precision: Any, tmp_path: Path) -> None:
    dtype = F16 if precision is HALF else BF16
    every = SHORTS[dtype].astype(F32)  # with infinities and all NaN
    ordinary = np.random.default_rng(0).normal(size=700_000).astype(F32)
    for values in (ordinary, np.concatenate([ordinary, every]), singles(dtype)):
        by_numpy = save(Holder(values, NumPy().device()).into_record().select("w"), tmp_path / "n", precision)
        models = [Holder(values, device) for device in (NumPy().device(), Torch().device())]
        for model in models:
            model.w.set_id(models[0].w.id)
        files = [save(model.into_record(), tmp_path / f"m{i}", precision) for i, model in enumerate(models)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert by_numpy.exists()
    with mock.patch.object(Torch, "recast", side_effect=AssertionError("asked")), pytest.raises(AssertionError):
        save(Holder(ordinary, Torch().device()).into_record(), tmp_path / "m", precision)


def test_a_number_too_large_is_told_with_its_value(tmp_path: Path) -> None:
    model = Holder(np.array([1.0, 70000.0], F32), Torch().device())
    with pytest.raises(RecordError, match=r"w: the value 70000\.0 does not fit float16"):
        save(model.into_record(), tmp_path / "m", HALF)


@pytest.mark.parametrize("precision", [HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize("device", [NumPy().device(), Torch().device()], ids=str)
def test_what_is_loaded_is_what_numpy_makes_of_it(device: px.Device, precision: Any, tmp_path: Path) -> None:
    short = SHORTS[F16 if precision is HALF else BF16]
    for values in (finite(short.dtype), short, np.tile(finite(short.dtype), 20)):
        file = save(Holder(values.astype(F32), NumPy().device()).into_record(), tmp_path / "m", precision)
        stored = load(file)["w"].tensor.read()
        model = Holder(np.zeros(values.shape, F32), device)
        model.load(file)
        found, meant = model.w.val().numpy(), stored.astype(F32)
        numbers = ~np.isnan(meant)  # which NaN becomes of one is the engine's affair
        np.testing.assert_array_equal(np.isnan(found), ~numbers)
        np.testing.assert_array_equal(bits(found[numbers]), bits(meant[numbers]))


def test_loading_into_fewer_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=300_000).astype(F32)
    file = save(Holder(values, NumPy().device()).into_record(), tmp_path / "m", FULL)
    for engine in (Torch(float="f16"), NumPy(float="f16"), Torch(float="bf16"), NumPy(float="bf16")):
        model = Holder(np.zeros(values.shape, F32), engine.device())
        model.load(file)
        dtype = engine.host_float_dtype
        np.testing.assert_array_equal(bits(model.w.val().numpy()), bits(values.astype(dtype)))


def test_pytorch_casts_where_there_is_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its threads share what is large."""
    by_the_other: list[int] = []
    recast = float_casts.recast

    def watched(array: Any, dtype: Any) -> Any:
        by_the_other.append(array.size)
        return recast(array, dtype)

    monkeypatch.setattr(float_casts, "recast", watched)
    backend, alone = Torch(), not float_casts.has_instructions()
    halved = np.linspace(-2.0, 2.0, 300_000).astype(F16)
    for array, dtype in ((halved, F32), (halved.astype(F32), F16)):
        found = backend.recast(array, dtype)
        assert found is not None
        np.testing.assert_array_equal(found, array.astype(dtype))
    assert by_the_other == ([] if alone else [halved.size] * 2)
    assert backend.casts_on_all_cores() == alone and not NumPy().casts_on_all_cores()
