"""Modules to records and back: values, ids, backends, and what happens when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import RecordError
from phlox.record import (
    FULL,
    HALF,
    BinaryRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    Record,
    SafetensorsRecorder,
)
from tests.calls import calls_of

BACKENDS: list[Backend] = [
    NumPy(), NumPy(float="f64"), Jax(), Jax(float="bf16"), Torch(), Torch(float="f64"), Autodiff(NumPy()),
    Autodiff(Jax()), Autodiff(Torch()),
]  # fmt: skip


class Net(px.Module):
    def __init__(self, device: Any = None, width: int = 3) -> None:
        self.layer = nn.Linear(4, width, device=device)
        self.head = [nn.Linear(width, 2, bias=False, device=device)]
        self.tied = self.head[0].weight
        self.count = px.Param(px.arange(3, device=device))
        self.mean = px.Param(px.full((2,), 0.5, device=device), trained=False)


@pytest.mark.parametrize("target", BACKENDS, ids=repr)
@pytest.mark.parametrize("source", BACKENDS, ids=repr)
def test_round_trip_between_all_backends(source: Backend, target: Backend) -> None:
    model = Net(source.device()).init(3)
    restored = Net(target.device()).load_record(model.into_record())
    low = "bf16" in repr(source) or "bf16" in repr(target)
    for (path, a), (other, b) in zip(model.named_params(), restored.named_params(), strict=True):
        assert path == other and a.id == b.id and b.device == target.device() and a.trained == b.trained
        np.testing.assert_allclose(
            np.asarray(a.val().numpy(), np.float64), np.asarray(b.val().numpy(), np.float64), rtol=4e-3 if low else 1e-6
        )
    assert restored.tied is restored.head[0].weight
    assert restored.layer.weight.val().is_require_grad() == target.differentiates


@pytest.mark.parametrize("recorder", [SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder])
@pytest.mark.parametrize("precision", [FULL, HALF], ids=["full", "half"])
def test_through_every_recorder(recorder: Any, precision: Any, tmp_path: Path) -> None:
    model = Net().init(1)
    path = recorder(precision=precision).save(model.into_record(), tmp_path / "model")
    restored = Net().load_record(recorder(precision=precision).load(path))
    for a, b in zip(model.params(), restored.params(), strict=True):
        np.testing.assert_allclose(
            a.val().numpy(),
            b.val().numpy(),
            rtol=0 if precision is FULL else 1e-3,
            atol=0 if precision is FULL else 1e-4,
        )
        if recorder is not BinaryRecorder:  # positional: it has kept no names, and may keep no ids
            assert a.id == b.id
    assert restored.tied is restored.head[0].weight


def test_a_failed_load_changes_nothing_and_reports_everything() -> None:
    model = Net().init(1)
    before = {path: (param.val().numpy().copy(), param.id) for path, param in model.named_params()}
    other = Net(width=5).init(2).into_record()
    entries: dict[str, Any] = {path: other[path] for path in other.paths() if path != "mean"}
    entries["extra"] = np.zeros(2, np.float32)
    record = Record(entries)
    with pytest.raises(RecordError) as caught:
        model.load_record(record)
    for word in ("layer.weight", "(4, 3)", "(4, 5)", "mean", "extra"):
        assert word in str(caught.value)
    own = model.into_record()
    short = LazyTensor.from_function((2,), np.float32, lambda: np.zeros(3, np.float32), "mean")
    damaged = Record({**{path: own[path] for path in own.paths()}, "mean": short})
    with pytest.raises(RecordError, match="mean"):
        model.load_record(damaged)
    for path, param in model.named_params():
        np.testing.assert_array_equal(param.val().numpy(), before[path][0])
        assert param.id == before[path][1]


@pytest.mark.parametrize("device", [NumPy().device(), Jax().device(), Torch().device()], ids=str)
def test_what_is_cast_is_cast_in_several_threads(device: px.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 4)
    monkeypatch.setattr("phlox.module.records._WORTH", 1)
    sizes = [3, 50, 7, 20, 1]
    rng = np.random.default_rng(0)
    halves = {f"layers.{i}.weight": rng.normal(size=(n, n)).astype(np.float16) for i, n in enumerate(sizes)}
    model = nn.Sequential([nn.Linear(n, n, bias=False, device=device) for n in sizes])
    model.load_record(Record(halves))
    for path, param in model.named_params():
        np.testing.assert_array_equal(param.val().numpy(), halves[path].astype(np.float32))


def test_of_what_cannot_be_cast_in_several_threads_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.host.thread_pool.cores", lambda: 4)
    monkeypatch.setattr("phlox.module.records._WORTH", 1)
    sizes = [2, 3, 50, 4]
    wide = {f"layers.{i}.weight": np.full((n, n), 1e300 if i else 1.0) for i, n in enumerate(sizes)}
    model = nn.Sequential([nn.Linear(n, n, bias=False, device=NumPy().device()) for n in sizes])
    for _ in range(20):
        with pytest.raises(RecordError, match=r"layers\.1\.weight: .*1e\+300 does not fit"):
            model.load_record(Record(wide))
    assert not any(param.is_initialized for param in model.params())


def test_not_strict_takes_what_fits() -> None:
    model, other = Net().init(1), Net().init(2)
    record = other.into_record()
    part = Record({path: record[path] for path in record.paths() if path.startswith("layer")} | {"extra": np.zeros(1)})
    model.load_record(part, strict=False)
    np.testing.assert_array_equal(model.layer.weight.val().numpy(), other.layer.weight.val().numpy())
    assert model.layer.weight.id == other.layer.weight.id and model.tied.id != other.tied.id


def test_a_record_is_not_read_before_it_is_needed_and_follows_no_later_change() -> None:
    model = nn.Linear(2, 2).init(0)
    record = model.into_record()
    before = model.weight.val().numpy().copy()
    model.weight.set(px.zeros((2, 2)))
    np.testing.assert_array_equal(record["weight"].tensor.read(), before)


def test_the_report_names_casts() -> None:
    model = nn.Linear(2, 2, device=NumPy(float="f64").device()).init(0)
    text = str(nn.Linear(2, 2).load_report(model.into_record()))
    assert "weight" in text and "float64" in text


def test_loading_takes_few_calls(tmp_path: Path) -> None:
    model = nn.Sequential([nn.Linear(4, 8, device=NumPy()), nn.Linear(8, 2, device=NumPy())]).init(0)
    path = model.save(tmp_path / "model.safetensors")
    for _ in range(2):
        nn.Sequential([nn.Linear(4, 8, device=NumPy()), nn.Linear(8, 2, device=NumPy())]).load(path)
    fresh = nn.Sequential([nn.Linear(4, 8, device=NumPy()), nn.Linear(8, 2, device=NumPy())])
    calls, files = calls_of(lambda: fresh.load(path))
    assert calls <= 200
    assert len(files) <= 20, sorted(files)


@pytest.mark.parametrize("name", ["model.safetensors", "model"])
def test_saving_makes_few_calls(tmp_path: Path, name: str) -> None:
    model = nn.Sequential([nn.Linear(4, 8, device=NumPy()), nn.Linear(8, 2, device=NumPy())]).init(0)
    for _ in range(2):
        model.save(tmp_path / name)
    calls, files = calls_of(lambda: model.save(tmp_path / name))
    assert calls <= 240
    assert len(files) <= 25, sorted(files)
