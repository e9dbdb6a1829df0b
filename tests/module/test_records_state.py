"""Whole training states: gathered, saved in every format, restored, and gone on with bit for bit; on every backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import RecordError
from phlox.module.deferred import no_initializers
from phlox.record import (
    FULL,
    BinaryRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    Precision,
    PrecisionSettings,
    Record,
    SafetensorsRecorder,
    TensorEntry,
    gather,
    load,
    renamed,
    restore,
    save,
)

ENGINES: list[Backend] = [NumPy(), Jax(), Torch()]
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


class Net(px.Module):
    def __init__(self, backend: Backend, norm: bool = True) -> None:
        device = backend.device()
        normalise = nn.BatchNorm(8, device=device) if norm else nn.Tanh()
        self.layers = nn.Sequential(
            nn.Linear(4, 8, device=device), normalise, nn.Gelu(), nn.Dropout(0.3),
            nn.Linear(8, 4, device=device),
        )  # fmt: skip
        self.tied = nn.Linear(4, 4, bias=False, device=device)
        self.again = self.tied

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.again(self.tied(self.layers(x)))


def take_step(model: Any, optimizer: Any, lr: Any, x: Any) -> Any:
    loss = (model(x) - x).square().mean()
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


class Run:
    """All that a training run has, as a program sets it up anew each time that it starts."""

    def __init__(self, engine: Backend, compiled: bool, seed: int = 0, norm: bool = True) -> None:
        self.stream = px.random.Stream((0, seed))
        self.tape = Autodiff(engine)
        with px.random.stream(self.stream):
            self.model = Net(self.tape, norm)
        self.optimizer = optim.AdamWConfig(weight_decay=0.1).init()
        self.schedule = optim.CosineAnnealingLr(0.1, num_iters=10)
        self.step = px.compile(take_step) if compiled else take_step
        self.done = 0

    def go(self, steps: int) -> list[float]:
        losses: list[float] = []
        with px.random.stream(self.stream):
            for _ in range(steps):
                x = px.tensor(X * (1.0 + 0.1 * self.done), device=self.tape.device())
                self.model, loss = self.step(self.model, self.optimizer, self.schedule.step(), x)
                losses.append(loss.item())
                self.done += 1
        return losses

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model, "train": {"optimizer": self.optimizer, "schedule": self.schedule},
            "random": self.stream, "done": self.done,
        }  # fmt: skip

    def resume(self, record: Record) -> None:
        with no_initializers():
            self.done = restore(record, self.parts())["done"]


def arrays(module: px.Module) -> list[np.ndarray]:
    return [param.val().numpy() for param in module.params()]


FILES: list[tuple[str, Precision]] = [
    ("s.safetensors", FULL), ("s.msgpack", FULL), ("s.phlox", FULL), ("s.json", FULL), ("s.safetensors.gz", FULL),
    ("s.npz", FULL), ("s.safetensors", PrecisionSettings()), ("s.phlox", PrecisionSettings()),
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "precision"), FILES, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_run_goes_on_bit_for_bit(
    engine: Backend, compiled: bool, precision: Precision, name: str, tmp_path: Path
) -> None:
    whole = Run(engine, compiled)
    whole.go(3)
    path = save(gather(whole.parts()), tmp_path / name, precision)
    expected = whole.go(3)
    resumed = Run(engine, compiled, seed=99)  # as another process would, whatever its own seed
    resumed.resume(load(path))
    assert resumed.go(3) == expected
    for a, b in zip(arrays(resumed.model), arrays(whole.model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [param.id for param in resumed.model.params()] == [param.id for param in whole.model.params()]
    assert resumed.model.again is resumed.model.tied


@pytest.mark.parametrize("target", ENGINES, ids=repr)
@pytest.mark.parametrize("source", ENGINES, ids=repr)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_run_goes_on_on_another_backend(source: Backend, target: Backend, compiled: bool, tmp_path: Path) -> None:
    # Without batch norm: the true gradient of a bias before it is zero, and Adam makes steps of the rounding in it.
    whole = Run(source, compiled, norm=False)
    whole.go(3)
    path = save(gather(whole.parts()), tmp_path / "state")
    expected = whole.go(3)
    resumed = Run(target, not compiled, seed=99, norm=False)
    resumed.resume(load(path))
    np.testing.assert_allclose(resumed.go(3), expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(arrays(resumed.model), arrays(whole.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def state_of(run: Run) -> Any:
    parameters = {
        path: (param.id, param.val() if param.is_initialized else None) for path, param in run.model.named_params()
    }
    return parameters, dict(run.optimizer.states), run.schedule.taken, run.stream.state()


def assert_unchanged(run: Run, before: Any) -> None:
    parameters, states, taken, stream = state_of(run)
    assert {path: id for path, (id, _) in parameters.items()} == {path: id for path, (id, _) in before[0].items()}
    assert all(value is before[0][path][1] for path, (_, value) in parameters.items())
    assert states == before[1] and taken == before[2] and stream == before[3]


def broken(record: Record, part: str) -> Record:
    """The record with one part that does not fit."""

    def fail() -> Any:
        raise RecordError("the checksum is wrong")

    entries: dict[str, Any] = {path: record[path] for path in record}
    if part == "model":
        entries["model.tied.weight"] = np.zeros((4, 5), np.float32)
    elif part == "damaged":
        path = next(path for path in entries if path.endswith("moment_1"))
        tensor = entries[path].tensor
        entries[path] = TensorEntry(LazyTensor.from_function(tensor.shape, tensor.dtype, fail, path), entries[path].id)
    elif part == "optimizer":
        entries = {path: entry for path, entry in entries.items() if not path.endswith("time")}
    elif part == "schedule":
        entries["train.schedule.taken"] = -1
    elif part == "random":
        entries["random"] = {"key": [0, 0], "position": -1}
    elif part == "done":
        entries["done"] = "three"
    return Record(entries, record.metadata, aliases=record.aliases)


SAID = {
    "model": r"model: cannot load the record into Net, 1 problem:\n    *tied.weight: the record has shape \(4, 5\)",
    "damaged": r"train\.optimizer: states\.\w+\.state: .*the checksum is wrong",
    "optimizer": r"train\.optimizer: states\.\w+\.state: the optimizer's state is incomplete",
    "schedule": r"train\.schedule: taken: the record is not of a schedule",
    "random": r"random: the words and the position",
    "done": r"done: the record has 'three', where a value of type int was expected",
}


@pytest.mark.parametrize("part", SAID)
@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_one_part_that_does_not_fit_leaves_all_as_they_were(engine: Backend, part: str) -> None:
    whole = Run(engine, False)
    whole.go(1)
    record = broken(gather(whole.parts()), part)
    for steps in (0, 2):
        run = Run(engine, False, seed=5)
        run.go(steps)
        before = state_of(run)
        with pytest.raises(RecordError, match=SAID[part]):
            run.resume(record)
        assert_unchanged(run, before)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    whole = Run(NumPy(), False)
    whole.go(1)
    record = gather(whole.parts())
    for part in ("model", "schedule", "random", "done"):
        record = broken(record, part)
    with pytest.raises(RecordError, match="4 problems; nothing was changed") as caught:
        Run(NumPy(), False).resume(record)
    for part in ("model", "schedule", "random", "done"):
        assert re.search(SAID[part], str(caught.value)), part


def test_another_optimizer_is_noticed_before_anything_changes() -> None:
    whole = Run(NumPy(), False)
    whole.go(1)
    run = Run(NumPy(), False)
    run.optimizer = optim.SgdConfig(momentum=0.9).init()
    with pytest.raises(
        RecordError, match=r"train\.optimizer: states\.\w+: the record is not one of Sgd: expected velocity"
    ):
        run.resume(gather(whole.parts()))
    assert run.model.tied.weight.is_deferred


def test_a_part_alone_is_loaded_from_its_selection(tmp_path: Path) -> None:
    whole = Run(NumPy(), False)
    whole.go(2)
    record = load(save(gather(whole.parts()), tmp_path / "state"))
    model = Net(NumPy())
    model.load_record(record.select("model"))
    np.testing.assert_array_equal(model.tied.weight.val().numpy(), whole.model.tied.weight.val().numpy())
    report = Net(NumPy()).load(record, remap={r"^model\.": ""}, exclude=["train", "random", "done"])
    assert report.ok and report.tied == {"again.weight": "tied.weight"}
    for recorder in (SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder):
        again = recorder().from_bytes(recorder().to_bytes(record))
        assert again.paths() == record.paths() and again["random"] == whole.stream.state()


class OldModule(px.Module):
    """Knows what its parameter was called once."""

    def __init__(self) -> None:
        self.weight = px.Param.deferred((2,), nn.initializer.Ones())

    def load_record(self, record: Record, **options: Any) -> Any:
        return super().load_record(renamed(record, {"^w$": "weight"}), **options)


class OldSchedule(optim.ConstantLr):
    """Counted from one once."""

    def load_record(self, record: Record) -> None:
        super().load_record(record)
        if not self.taken:
            raise RecordError("taken: it counts from one")
        self.taken -= 1


class OldOptimizer(optim.OptimizerAdaptor):
    """Has more to say of a record."""

    def load_record(self, record: Record) -> None:
        super().load_record(record)
        if "extra" in record:
            raise RecordError("extra: it has none")


def test_what_has_a_way_of_loading_of_its_own_is_restored_by_it() -> None:
    record = gather(
        model=Record({"w": np.full(2, 3.0, np.float32)}), schedule=optim.ConstantLr(1.0), optimizer=Record()
    )
    old = Record({path: record[path] for path in record} | {"schedule.taken": 5}, record.metadata)
    bad = Record({path: old[path] for path in old} | {"optimizer.extra": 1}, record.metadata)
    model, schedule, optimizer = OldModule(), OldSchedule(0.1), OldOptimizer(optim.AdamConfig().init().optimizer)
    schedule.taken = 2
    with no_initializers():
        for wrong, said in ((record, "schedule: taken: it counts"), (bad, "optimizer: the record holds no optimizer")):
            with pytest.raises(RecordError, match=f"1 problem; nothing was changed:\n  {said}"):
                restore(wrong, model=model, schedule=schedule, optimizer=optimizer)
            assert model.weight.is_deferred and schedule.taken == 2 and not optimizer.states
        with pytest.raises(RecordError, match=r"model: cannot load the record into OldModule"):
            restore(gather(model=Record({"x": np.ones(2, np.float32)})), model=model)
        assert model.weight.is_deferred
        restore(old, model=model, schedule=schedule, optimizer=optimizer)
    np.testing.assert_array_equal(model.weight.val().numpy(), np.full(2, 3.0))
    assert schedule.taken == 4
