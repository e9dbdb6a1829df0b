"""The whole state of a learner as one record: a training that is cut off anywhere ends where the undisturbed one ends.

Serves: phlox/train/state.py, phlox/train/trials/trial.py, phlox/train/step/metric_state.py, phlox/train/step/stepper.py
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import RecordError
from phlox.record import PrecisionSettings, Record, SafetensorsRecorder, load
from phlox.train import Callback, Checkpoints, EarlyStopping, LambdaCallback, Learner, Unfreeze
from phlox.train.events import entries_of

pytestmark = pytest.mark.filterwarnings("ignore:.*batch norm takes:phlox.errors.RunWarning")
X = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)
LABELS = (X.sum(axis=1) > 0).astype(np.int64)
ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}


def learner(engine: str, **options: Any) -> Learner[Any]:
    with px.random.stream(4):
        layers = [nn.Linear(4, 8), nn.BatchNorm(8), nn.Relu(), nn.Dropout(0.2), nn.Linear(8, 2)]
        model = nn.Sequential(layers).init(device=ENGINES[engine].device())
        given: dict[str, Any] = {
            "lr": optim.CosineAnnealingLr(0.05, num_iters=40), "loss": nn.cross_entropy_loss,
            "metrics": {"accuracy": metrics.Accuracy(), "auroc": metrics.Auroc(num_classes=2)}, **options,
        }  # fmt: skip
        return Learner(model, optim.AdamWConfig(), **given)


def carried(model: Any, batch: Any, carry: Any) -> Any:
    output = model(batch[0]) + carry
    return (nn.cross_entropy_loss(output, batch[1]), (output, batch[1]), {"carry": carry.mean()}), output.mean(axis=0)


class Cut(Callback):
    """Keeps the state after a step, and goes on a little before it fails."""

    def __init__(self, at: int, after: int = 1) -> None:
        self.at, self.after = at, after
        self.record: Record | None = None

    def on_step_end(self, learner: Any) -> None:
        if learner.step >= self.at and self.record is None:
            self.record = learner.snapshot()
        if learner.step >= self.at + self.after:
            raise InterruptedError


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 3},
    "ema": {"ema": 0.8, "clip": optim.GradientClipping.norm(0.3)},
    "loss_scaling": {"loss_scaling": True},
    "steps_per_call": {"steps_per_call": 2},
    "bf16": {"precision": "bf16"},
    "carry": {"step": carried, "loss": None, "carry": np.zeros(2, np.float32)},
    "group rates": {"lr": 0.01},
}
CASES = [("numpy", name) for name in OPTIONS] + [
    ("jax", name) for name in ("plain", "accumulate", "ema", "steps_per_call", "carry")
]
CASES += [("torch", "plain"), ("torch", "ema")]


def fit(trained: Learner[Any], *callbacks: Callback, resume: Any = False, workers: int = 0) -> Learner[Any]:
    data = Loader((X, LABELS), 10, shuffle=True, seed=3, workers=workers)
    trained.fit(data, epochs=3, validation=Loader((X, LABELS), 30), callbacks=callbacks, resume=resume, progress=False)
    return trained


@pytest.mark.every(4)
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_a_training_that_is_cut_off_ends_where_the_undisturbed_one_ends(engine: str, name: str, tmp_path: Path) -> None:
    options = OPTIONS[name]
    whole = fit(learner(engine, **options))
    for at in (5,) if engine == "torch" else (5, 14):  # within an epoch, and at the end of one
        cut = Cut(at)
        with pytest.raises(InterruptedError):
            fit(learner(engine, **options), cut)
        assert cut.record is not None
        path = SafetensorsRecorder(precision=PrecisionSettings()).save(cut.record, tmp_path / f"state{at}")
        again = fit(learner(engine, **options), resume=path, workers=2 if at == 5 and engine == "numpy" else 0)
        assert [one.train for one in again.history] == [one.train for one in whole.history]
        assert [one.validation for one in again.history] == [one.validation for one in whole.history]
        assert [(one.epoch, one.step, one.lr, one.rows) for one in again.history] == [
            (one.epoch, one.step, one.lr, one.rows) for one in whole.history
        ]
        _assert_same(again.snapshot(), whole.snapshot())


def _named(record: Record) -> dict[str, Any]:
    """The tensors by path; ids of parameters, which are others in every run, by their place in the model."""
    ids = [entry.id for path, entry in record.tensors.items() if path.startswith("models.")]
    named: dict[str, Any] = {}
    for path, entry in record.tensors.items():
        parts = [str(ids.index(part)) if part in ids else part for part in path.split(".")]
        named[".".join(parts)] = entry.tensor.read()
    return named


def _plain(record: Record, name: str) -> dict[str, Any]:
    found: Any = record.values[name]
    return found


def _assert_same(one: Record, other: Record) -> None:
    first_tensors, second_tensors = _named(one), _named(other)
    assert first_tensors.keys() == second_tensors.keys()
    for path, array in first_tensors.items():
        np.testing.assert_array_equal(array, second_tensors[path], err_msg=path)
    for path in ("random", "values"):
        assert one.values[path] == other.values[path]
    reports = [entries_of(_plain(record, "log")["lines"]["history"]) for record in (one, other)]
    first, second = ([{**line, "seconds": 0} for line in lines] for lines in reports)
    assert first == second


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_on_another_backend_it_goes_on_within_rounding(engine: str, tmp_path: Path) -> None:
    whole, cut = fit(learner("numpy")), Cut(9)
    with pytest.raises(InterruptedError):
        fit(learner("numpy"), cut)
    assert cut.record is not None
    path = SafetensorsRecorder(precision=PrecisionSettings()).save(cut.record, tmp_path / "state")
    again = fit(learner(engine), resume=path)
    for one, other in zip(again.history, whole.history, strict=True):
        assert one.train["loss"] == pytest.approx(other.train["loss"], rel=1e-3)


def test_callbacks_are_resumed(tmp_path: Path) -> None:
    def run(*more: Any, resume: Any = False) -> Any:
        stopping = EarlyStopping("train/loss", patience=2, min_delta=0.5, restore_best=True)
        unfreeze = Unfreeze("layers.4.**", epoch=2)
        trained = learner("numpy", lr=0.01)
        trained.model = trained.model.freeze("layers.4.**")
        fit(trained, stopping, unfreeze, *more, resume=resume)
        return trained, stopping

    whole, one = run()
    cut = Cut(16)
    with pytest.raises(InterruptedError):
        run(cut)
    assert cut.record is not None
    path = SafetensorsRecorder(precision=PrecisionSettings()).save(cut.record, tmp_path / "state")
    again, other = run(resume=path)
    assert (one.bad, one.best, whole.stopped) == (other.bad, other.best, again.stopped)
    assert [line.train for line in again.history] == [line.train for line in whole.history]
    _assert_same(again.snapshot(), whole.snapshot())


def test_a_snapshot_is_not_changed_by_what_follows() -> None:
    trained = fit(learner("jax"))
    record = trained.snapshot()
    before = {path: np.array(entry.tensor.read()) for path, entry in record.tensors.items()}
    fit(trained)
    for path, entry in record.tensors.items():
        np.testing.assert_array_equal(entry.tensor.read(), before[path])


def test_a_state_goes_through_a_file(tmp_path: Path) -> None:
    trained = fit(learner("numpy", ema=0.9))
    path = trained.save(tmp_path / "state")
    other = learner("numpy", ema=0.9)
    other.load_state(load(path))
    _assert_same(other.snapshot(), trained.snapshot())
    assert (other.epoch, other.step, other.updates) == (3, 21, 21)
    weights = trained.weights()
    model = learner("numpy").model.valid().load_record(weights)
    np.testing.assert_array_equal(model(px.tensor(X)).numpy(), trained.average(px.tensor(X)).numpy())


def _others() -> list[tuple[Any, str]]:
    def other_model() -> Any:
        return Learner(nn.Linear(4, 2), optim.AdamWConfig(), 0.1, nn.cross_entropy_loss)

    return [
        (other_model, "models.model"),
        (
            lambda: learner("numpy", metrics={"accuracy": metrics.Accuracy()}),
            "rows of the metric number 1, and the learner's metrics are accuracy",
        ),
        (lambda: learner("numpy", lr=0.1), "schedules.model: the record is of a CosineAnnealingLr"),
        (lambda: learner("numpy", ema=0.9), "aids"),
    ]


@pytest.mark.parametrize(("make", "message"), _others(), ids=[message for _, message in _others()])
def test_a_state_of_another_learner_is_refused_and_nothing_is_changed(make: Any, message: str) -> None:
    record = fit(learner("numpy")).snapshot()
    other = make()
    before = other.snapshot()
    with pytest.raises(RecordError, match=message):
        other.load_state(record)
    _assert_same(other.snapshot(), before)


def test_what_is_no_state_of_a_learner_is_refused() -> None:
    trained = learner("numpy")
    with pytest.raises(RecordError, match="not the state of a learner; for a model alone use model.load_record"):
        trained.load_state(trained.weights())
    record = trained.snapshot()
    later = Record({**{path: record[path] for path in record}, "progress": {"format": 99}}, record.metadata)
    with pytest.raises(RecordError, match="has format 99 of a learner, and this Phlox reads formats up to 3"):
        trained.load_state(later)


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_of_a_former_format_is_read(version: int) -> None:
    """The first had reports and events as plain values, the second as lines."""
    trained = fit(learner("numpy"))
    trained.warn("news")
    record = trained.snapshot()
    lines = _plain(record, "log")["lines"]
    former: dict[str, Any] = {"log": {name: lines[name] for name in ("history", "events")}}
    if version == 1:
        former = {"history": [one.to_plain() for one in trained.history], "events": [list(e) for e in trained.events]}
    entries = {path: record[path] for path in record if path != "log"}
    parts = [name for name in json.loads(record.metadata["parts"]) if name != "log"]
    metadata = {**record.metadata, "parts": json.dumps([*parts, *former])}
    progress = {**_plain(record, "progress"), "format": version}
    other = learner("numpy")
    other.load_state(Record({**entries, **former, "progress": progress}, metadata))
    assert (other.history, other.events) == (trained.history, trained.events)
    _assert_same(other.snapshot(), record)


def test_ids_and_states_stay_with_their_parameters() -> None:
    trained = fit(learner("numpy"))
    other = learner("numpy")
    other.load_state(trained.snapshot())
    assert [param.id for param in other.model.params()] == [param.id for param in trained.model.params()]
    assert other.optimizer.states.keys() == trained.optimizer.states.keys()


def test_means_of_an_epoch_so_far() -> None:
    seen: list[Any] = []
    note = LambdaCallback(on_step_end=lambda learner: seen.append(learner.means()))
    trained = fit(learner("numpy"), note)
    assert seen[6] == trained.history[0].train and seen[-1] == trained.history[-1].train
    assert seen[0] != seen[1]


def test_a_validation_that_is_due_when_the_state_is_saved_is_made_up_for(tmp_path: Path) -> None:
    def run(*more: Any, resume: Any = False) -> Any:
        seen: list[Any] = []
        note = LambdaCallback(on_validation_end=lambda learner: seen.append((learner.step, learner.validation["loss"])))
        trained = learner("numpy")
        data = Loader((X, LABELS), 10, shuffle=True, seed=3)
        trained.fit(
            data, epochs=2, validation=Loader((X, LABELS), 30), validate_every_steps=4, callbacks=[note, *more],
            resume=resume, progress=False,
        )  # fmt: skip
        return seen

    whole, cut = run(), Cut(8, after=0)
    with pytest.raises(InterruptedError):
        run(cut)
    assert cut.record is not None
    path = SafetensorsRecorder(precision=PrecisionSettings()).save(cut.record, tmp_path / "state")
    assert [step for step, _ in whole] == [4, 7, 8, 12, 14]
    assert run(resume=path) == whole[2:]


def test_a_training_that_a_limit_has_cut_off_can_be_made_longer(tmp_path: Path) -> None:
    def run(steps: int, resume: bool = False) -> Any:
        trained = learner("numpy")
        stopping = EarlyStopping("validation/loss", patience=50)
        trained.fit(
            Loader((X, LABELS), 10, shuffle=True, seed=3), steps=steps, validation=Loader((X, LABELS), 30),
            callbacks=[stopping, Checkpoints(tmp_path / str(steps if not resume else 10))], resume=resume,
            progress=False,
        )  # fmt: skip
        return trained, stopping.state()

    whole, expected = run(18)
    first, _ = run(10)
    assert [one.complete for one in first.history] == [True, False]
    longer, found = run(18, resume=True)
    assert [one.train for one in longer.history] == [one.train for one in whole.history]
    assert found == expected


OTHER_ARGUMENTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"ema": 0.9}, {}, r"the training had ema=, and this learner has none"),
    ({}, {"accumulate": 2}, r"the training had no accumulate=, and this learner has it"),
    ({"loss_scaling": True}, {"ema": 0.5}, r"had no ema=, and this learner has it\nthe training had loss_scaling="),
    ({"metrics": {"top": metrics.Accuracy()}}, {"metrics": {}}, r"had the metric 'top', and this learner has not"),
    ({"metrics": {}}, {"metrics": {"top": metrics.Accuracy()}}, r"had no metric 'top', and this learner has it"),
    ({"lr": 0.1}, {"lr": optim.LinearLr(0.1, 0.0, num_iters=9)}, r"select\('models\.model'\)"),
]


@pytest.mark.parametrize(
    ("before", "now", "message"), OTHER_ARGUMENTS, ids=[message for _, _, message in OTHER_ARGUMENTS]
)
def test_arguments_that_were_others_are_named(before: Any, now: Any, message: str) -> None:
    first, other = learner("numpy", **before), learner("numpy", **now)
    untouched = other.snapshot()
    with pytest.raises(RecordError, match=message):
        other.load_state(first.snapshot())
    _assert_same(other.snapshot(), untouched)
    fresh = other.model.valid().load_record(first.snapshot().select("models.model"))
    for (_, one), (_, two) in zip(fresh.named_params(), first.model.named_params(), strict=True):
        np.testing.assert_array_equal(one.val().numpy(), two.val().numpy())


def test_a_snapshot_of_large_tensors_has_memory_of_its_own() -> None:  # they are copied by several threads
    model = nn.Sequential([nn.Linear(1500, 1500), nn.Linear(1500, 1000)]).init(seed=0, device="numpy")
    learner = Learner(model, optim.SgdConfig(), 0.1, nn.mse_loss)
    record, params = learner.snapshot(), dict(learner.model.named_params())
    for path, param in params.items():
        held = record.tensors[f"models.model.{path}"].tensor.read()
        np.testing.assert_array_equal(held, param.val().numpy())
        assert not np.shares_memory(held, param.val().numpy())


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_copy_goes_on_by_itself(engine: str) -> None:
    """A compiled step writes over the memory of its arguments: a copy has memory of its own."""
    trained = learner(engine, ema=0.9)
    data = Loader((X, LABELS), 10, shuffle=True, seed=3)
    trained.fit(data, steps=4, progress=False)
    copied = copy.deepcopy(trained)
    for one in (trained, copied):
        one.fit(data, epochs=1, progress=False)
    _assert_same(copied.snapshot(), trained.snapshot())
