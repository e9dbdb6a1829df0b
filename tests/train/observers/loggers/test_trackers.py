"""Loggers for TensorBoard, MLflow and Weights & Biases: with the real packages where they are, and with stand-ins."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phlox.config import Config
from phlox.errors import ExtraNotInstalledError, RunError
from phlox.train.observers.callback import Callback
from phlox.train.observers.loggers.trackers import MlflowLogger, TensorBoardLogger, WandbLogger, flat_config
from phlox.train.values import Histogram, Image
from tests.train.fakes import FakeLearner
from tests.train.observers.loggers.test_event_file import read, series


class Head(Config):
    size: int = 3


class Options(Config):
    head: Head = Head()
    rate: float = 0.5


@dataclass
class Plain:
    name: str
    sizes: tuple[int, ...] = (2, 3)


class Fails(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_epoch_end(self, learner: Any) -> None:
        raise self.error


def learner() -> FakeLearner:
    return FakeLearner(train=lambda step: {"loss": 1.0 / step}, validation=lambda step: {"recall@10": 0.5 * step})


class Reports(Callback):
    """A histogram and an image in the second epoch, and an array in each."""

    def on_epoch_end(self, learner: Any) -> None:
        learner.extra["shares"] = np.array([0.25, 0.75])
        if learner.epoch == 2:
            learner.extra["weights"] = Histogram([1.0, 2.0, 4.0], bins=3)
            learner.extra["two samples"] = Image(np.eye(3))


def resumed(state: Any, log: Any, *, epoch: int, epochs: int) -> None:
    one = learner()
    one.epoch, one.step, one.seconds = epoch, 4 * epoch, 4.0 * epoch
    log.restore(state)
    one.fit([log], epochs=epochs, resumed=True)


def test_hyper_parameters_of_any_kind() -> None:
    assert flat_config(Options()) == {"head/size": 3, "rate": 0.5}
    assert flat_config(Plain("a")) == {"name": "a", "sizes": "(2, 3)"}
    assert flat_config({"model": Options(), "x": {"y": True}, "nan": float("nan"), "kind": Plain}) == {
        "model/head/size": 3, "model/rate": 0.5, "x/y": True, "nan": "nan", "kind": str(Plain)
    }  # fmt: skip
    for make in (TensorBoardLogger, MlflowLogger, WandbLogger):
        with pytest.raises(
            RunError, match=rf"{make.__name__}: config must be a config, a dataclass or a dict, got a int"
        ):
            make("name", config=3)


# --- TensorBoard


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_the_rows(tmp_path: Path) -> None:
    log = TensorBoardLogger(tmp_path / "run", every_steps=2, config=Options())
    learner().fit([log], epochs=2)
    found = read(tmp_path / "run")
    assert series(found, "validation/recall@10") == [(4, 2.0), (8, 4.0)]
    assert [step for step, _ in series(found, "train/loss")] == [2, 4, 6, 8]
    assert "step" not in found.Tags()["scalars"] and series(found, "epoch") == [(2, 1.0), (4, 1.0), (6, 2.0), (8, 2.0)]
    [event] = found.Tensors("config/text_summary" if "config/text_summary" in found.Tags()["tensors"] else "config")
    assert "| head/size | 3 |" in event.tensor_proto.string_val[0].decode()
    assert "_hparams_/session_start_info" in found.summary_metadata


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_a_histogram_and_an_image_once(tmp_path: Path) -> None:
    learner().fit([Reports(), TensorBoardLogger(tmp_path)], epochs=4)
    found = read(tmp_path, size_guidance={"histograms": 0, "images": 0})
    assert [(one.step, list(one.histogram_value.bucket)) for one in found.Histograms("weights")] == [(8, [0, 1, 1, 1])]
    assert [one.step for one in found.Images("two samples")] == [8]
    assert [step for step, _ in series(found, "shares/1")] == [4, 8, 12, 16]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_of_a_resumed_training(tmp_path: Path) -> None:
    log, one = TensorBoardLogger(tmp_path), learner()
    one.fit([log], epochs=2)
    state = log.state()
    one.fit([log], epochs=4)
    resumed(state, TensorBoardLogger(tmp_path), epoch=2, epochs=5)
    assert [step for step, _ in series(read(tmp_path), "train/loss")] == [4, 8, 12, 16, 20]


def test_a_folder_with_the_events_of_another_run(tmp_path: Path) -> None:
    learner().fit([TensorBoardLogger(tmp_path)])
    with pytest.raises(RunError, match="has the events of another run; give another folder, or append=True"):
        learner().fit([TensorBoardLogger(tmp_path)])
    learner().fit([TensorBoardLogger(tmp_path, append=True)])
    assert len([*tmp_path.iterdir()]) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        learner().fit([TensorBoardLogger(tmp_path / "file")])


# --- stand-ins


class FakeClient:
    """What is used of MLflow's client, kept in memory."""

    calls: list[Any] = []  # noqa: RUF012
    reachable = True

    def __init__(self, tracking_uri: str | None) -> None:
        self.calls.append(("client", tracking_uri))

    def get_experiment_by_name(self, name: str) -> Any:
        return None if name == "new" else SimpleNamespace(experiment_id="7")

    def create_experiment(self, name: str) -> str:
        return f"{name}-id"

    def create_run(self, experiment_id: str, run_name: str | None, tags: Any) -> Any:
        self.calls.append(("run", experiment_id, run_name, tags))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def update_run(self, run_id: str, status: str) -> None:
        self.calls.append(("update", run_id, status))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        if not self.reachable and metrics:
            raise RuntimeError("no route to host")
        self.calls += [("metric", run_id, name, value, step) for name, value, _, step in metrics]
        self.calls += [("param", run_id, *param) for param in params]

    def log_image(self, run_id: str, image: Any, *, key: str, step: int) -> None:
        self.calls.append(("image", run_id, key, image.shape, step))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.calls.append(("end", run_id, status))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    client = type("Client", (FakeClient,), {"calls": [], "reachable": True})
    entities = SimpleNamespace(Metric=lambda *args: args, Param=lambda *args: args)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=client, entities=entities))
    return client


def test_mlflow_gets_parameters_and_metrics(mlflow: Any) -> None:
    log = MlflowLogger("new", run_name="first", tracking_uri="uri", config=Options(), tags={"a": "b"})
    learner().fit([log], epochs=2)
    assert mlflow.calls[:4] == [
        ("client", "uri"), ("run", "new-id", "first", {"a": "b"}), ("param", "r1", "head/size", "3"),
        ("param", "r1", "rate", "0.5"),
    ]  # fmt: skip
    assert ("metric", "r1", "validation/recall_10", 4.0, 8) in mlflow.calls
    assert mlflow.calls[-1] == ("end", "r1", "FINISHED") and log.run_id == "r1"


def test_mlflow_gets_images_and_the_numbers_of_histograms(mlflow: Any) -> None:
    learner().fit([Reports(), MlflowLogger()], epochs=3)
    assert [one for one in mlflow.calls if one[0] == "image"] == [("image", "r1", "two samples", (3, 3, 1), 8)]
    weights = [one[2:] for one in mlflow.calls if one[0] == "metric" and one[2].startswith("weights")]
    assert [(name, step) for name, _, step in weights] == [(f"weights/{x}", 8) for x in ("mean", "std", "min", "max")]
    assert weights[3][1] == 4.0 and ("metric", "r1", "shares/1", 0.75, 12) in mlflow.calls


def test_mlflow_of_many_parameters(mlflow: Any) -> None:
    learner().fit([MlflowLogger(config={f"p{number}": number for number in range(250)})])
    assert len([one for one in mlflow.calls if one[0] == "param"]) == 250 and ("run", "7", None, {}) in mlflow.calls


def test_mlflow_goes_on_with_the_run_of_a_resumed_training(mlflow: Any) -> None:
    log = MlflowLogger()
    learner().fit([log], epochs=1)
    mlflow.calls.clear()
    resumed(log.state(), MlflowLogger(), epoch=1, epochs=2)
    assert mlflow.calls[1] == ("update", "r1", "RUNNING") and not [one for one in mlflow.calls if one[0] == "run"]
    learner().fit([log])  # another training is another run
    assert [one for one in mlflow.calls if one[0] == "run"]


@pytest.mark.parametrize(("error", "status"), [(ValueError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_mlflow_hears_how_the_training_ended(mlflow: Any, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        learner().fit([MlflowLogger(), Fails(error)])
    assert mlflow.calls[-1] == ("end", "r1", status)


def test_mlflow_that_cannot_be_reached_does_not_end_the_training(mlflow: Any) -> None:
    mlflow.reachable = False
    one = learner().fit([MlflowLogger()], epochs=3)
    assert one.epoch == 3 and len(one.events) == 1 and "no route to host" in one.events[0][1]


class FakeRun:
    def __init__(self, id: str | None) -> None:
        self.id, self.rows, self.code = id or "made-up", [], None
        self.steps: Any = None

    def define_metric(self, name: str, step_metric: str) -> None:
        self.steps = (name, step_metric)

    def log(self, row: Any) -> None:
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    runs: list[Any] = []

    def init(id: str | None = None, **options: Any) -> FakeRun:
        runs.append((FakeRun(id), options))
        return runs[-1][0]

    own = {"Histogram": lambda np_histogram: ("histogram", *np_histogram), "Image": lambda pixels: ("image", pixels)}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, **own))
    return runs


def test_wandb_gets_the_rows(wandb: list[Any], tmp_path: Path) -> None:
    log = WandbLogger("p", name="n", offline=True, folder=tmp_path / "w", config=Options(), tags=("t",), group="g")
    learner().fit([log], epochs=2)
    [(run, options)] = wandb
    assert options == {
        "project": "p", "name": "n", "mode": "offline", "dir": tmp_path / "w", "group": "g", "tags": ["t"],
        "config": {"head": {"size": 3}, "rate": 0.5},
    }  # fmt: skip
    assert [row["step"] for row in run.rows] == [4, 8] and run.steps == ("*", "step") and run.code == 0
    with pytest.raises(ValueError, match="x"):
        learner().fit([WandbLogger(), Fails(ValueError("x"))])
    assert wandb[1][0].code == 1 and wandb[1][1] == {"config": {}, "tags": []}


def test_wandb_gets_histograms_and_images_of_its_own(wandb: list[Any]) -> None:
    learner().fit([Reports(), WandbLogger()], epochs=3)
    rows = wandb[0][0].rows
    kind, counts, edges = rows[1]["weights"]
    assert kind == "histogram" and counts.tolist() == [1, 1, 1] and edges.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rows[1]["two samples"][1].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert ["weights" in row for row in rows] == [False, True, False] and rows[2]["shares/0"] == 0.25


def test_wandb_goes_on_with_the_run_of_a_resumed_training(wandb: list[Any]) -> None:
    log = WandbLogger()
    learner().fit([log])
    resumed(log.state(), WandbLogger(), epoch=1, epochs=2)
    assert wandb[1][0].id == "made-up" and wandb[1][1]["resume"] == "allow"


@pytest.mark.parametrize(("make", "package"), [(MlflowLogger, "mlflow"), (WandbLogger, "wandb")])
def test_a_package_that_is_not_installed(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraNotInstalledError, match=rf"{make.__name__} needs {package}.*pip install {package}"):
        learner().fit([make()])


# --- the real packages


def test_the_real_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    real = pytest.importorskip("mlflow")
    uri = (tmp_path / "runs").as_uri()
    log = MlflowLogger("mine", tracking_uri=uri, config=Options())
    with warnings.catch_warnings(action="ignore"):  # it has many, of its own future
        one = learner().fit([Reports(), log], epochs=2)
        client = real.MlflowClient(tracking_uri=uri)
        run = client.get_run(log.run_id)
        images = [artifact.path for artifact in client.list_artifacts(log.run_id, "images")]
    assert not one.events and any("two samples" in path and path.endswith(".png") for path in images)
    assert run.data.params == {"head/size": "3", "rate": "0.5"} and run.info.status == "FINISHED"
    assert run.data.metrics["validation/recall_10"] == 4.0


def test_the_real_wandb_offline(tmp_path: Path) -> None:
    real = pytest.importorskip("wandb")
    log = WandbLogger("mine", offline=True, folder=tmp_path, config=Options(), settings=real.Settings(silent=True))
    one = learner().fit([Reports(), log], epochs=2)
    assert not one.events
    [written] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert log.run_id is not None and log.run_id in written.name
    for _ in range(200):  # a process of its own writes it
        data = written.read_bytes()
        if all(part in data for part in (b"validation/recall@10", b'"histogram"', b'"image-file"')):
            return
        time.sleep(0.1)
    pytest.fail("the rows are not in the file")
