"""Serves: phlox/train/observers/checkpoints/checkpoints.py, phlox/train/observers/checkpoints/writers.py"""

from __future__ import annotations

import json
import shutil
import threading
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import phlox as px
from phlox import nn
from phlox.data import Loader
from phlox.errors import DataError, RunError
from phlox.optim import AdamWConfig
from phlox.record import HALF, Record
from phlox.train import Learner
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.checkpoints.files import save
from phlox.train.observers.folder.run_folder import RunFolder
from tests.train.fake_learner import FakeLearner, at_once, listed, names, steps, steps_in

# --- when it saves


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [3, 6, 9]), ({"every_epochs": 2}, [6, 9]), ({"every_steps": 2}, [2, 4, 6, 8, 9]), ({"every_steps": 5}, [5, 9]),
    ({"every_steps": 4, "every_epochs": 1}, [3, 4, 6, 8, 9]), ({"every_minutes": 1000}, [9]),
    ({"every_minutes": 0}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
])  # fmt: skip
def test_when_it_saves(tmp_path: Path, options: dict[str, Any], expected: list[int]) -> None:
    learner = FakeLearner(tmp_path, at_once(keep=None, **options)).fit(3)
    assert steps(tmp_path) == expected and not learner.events
    for step in expected:
        assert steps_in(Checkpoints.load(tmp_path / "checkpoints" / f"step-{step:08d}.safetensors")) == step


def test_minutes_are_those_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    saver = at_once(every_minutes=2, keep=None)
    learner = FakeLearner(tmp_path, saver)
    saver.on_fit_start(learner)  # pyright: ignore[reportArgumentType]
    for minute in (1, 2, 3, 4.5, 6, 6.5):
        now[0] = 100.0 + 60 * minute
        learner.train()
        learner.call("on_step_end")
    assert steps(tmp_path) == [2, 4, 6]


def test_several_steps_in_one_call_pass_over_a_multiple(tmp_path: Path) -> None:
    saver = at_once(every_steps=4, keep=None)
    learner = FakeLearner(tmp_path, saver)
    learner.loss = float("nan")  # of a training whose own step gives none
    learner.call("on_fit_start")
    for step in (3, 6, 7, 12, 13):
        learner.step = step
        learner.call("on_step_end")
    assert steps(tmp_path) == [6, 12]


def test_the_same_step_after_its_epoch_replaces_it(tmp_path: Path) -> None:
    saver = at_once(every_steps=3)
    FakeLearner(tmp_path, saver).fit(1)
    assert steps(tmp_path) == [3] and Checkpoints.load(tmp_path)["progress"]["epoch"] == 1


def test_a_real_training_goes_on_from_any_of_them_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]

    def learner() -> Learner[Any]:
        with px.random.stream(3):
            model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.3), nn.Linear(8, 1))
            return Learner(model, AdamWConfig().init(), 0.01, loss=nn.mse_loss)

    def fit(one: Learner[Any], folder: str, **options: Any) -> dict[str, bytes]:
        data = Loader((x, x * 2), batch_size=5, shuffle=True, seed=1)
        at_once = folder == "a"
        saver = Checkpoints(tmp_path / folder, every_steps=3, best="validation/loss", keep=None, background=not at_once)
        one.fit(data, epochs=4, validation=data, callbacks=[saver], progress=False, **options)
        return {path: entry.tensor.read().tobytes() for path, entry in one.weights().tensors.items()}

    whole = learner()
    expected, former = fit(whole, "a"), names(tmp_path / "a")
    assert former[0] == "best.safetensors"
    for step in (3, 6, 9, 12, 15, 16):
        folder = tmp_path / f"b{step}"
        shutil.copytree(tmp_path / "a", folder)
        again = learner()
        assert fit(again, folder.name, resume=folder / f"step-{step:08d}.safetensors") == expected
        assert not again.events and set(names(folder)) ^ set(former) <= {"history-1.jsonl", "history-2.jsonl"}
        assert [(one.step, one.train, one.validation) for one in again.history] == [
            (one.step, one.train, one.validation) for one in whole.history
        ]
        assert (folder / "best.safetensors").read_bytes() == (tmp_path / "a" / "best.safetensors").read_bytes()


# --- what is in the files


def test_every_dtype_and_value_is_kept_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    nan = np.array([0x7FF8_0000_0000_1234, 0xFFF0_0000_0000_0000, 1, 0x8000_0000_0000_0000], np.uint64)
    arrays: dict[str, Any] = {
        "f64": nan.view(np.float64), "f32": rng.standard_normal((3, 2)).astype(np.float32) * np.float32(1e-42),
        "bf16": rng.integers(0, 2**16, 9, np.uint16).view(ml_dtypes.bfloat16),
        "f16": rng.integers(0, 2**16, (2, 2, 2), np.uint16).view(np.float16), "flags": np.array([True, False, True]),
        "i64": np.array([-(2**63), 2**63 - 1]), "u8": np.arange(256, dtype=np.uint8), "one": np.array(7, np.int32),
        "empty": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    values: Any = {"big": 2**64 - 1, "inf": float("-inf"), "tiny": 5e-324, "text": "é\n", "none": None, "list": [1, {}]}
    learner = FakeLearner(tmp_path, at_once(every_steps=1))
    learner.more = {"other": Record(arrays), "plain": values}
    learner.fit(1)
    record = Checkpoints.load(tmp_path)
    for name, array in arrays.items():
        read = record[f"other.{name}"].tensor.read()
        assert read.dtype == array.dtype and read.shape == array.shape and read.tobytes() == array.tobytes(), name
    assert record["plain"] == values
    # And as the library of the format reads it.
    other = load_file(tmp_path / "checkpoints" / "step-00000003.safetensors")
    assert other["other.f64"].tobytes() == arrays["f64"].tobytes()


def test_a_state_goes_on_in_a_new_learner(tmp_path: Path) -> None:
    first = FakeLearner(tmp_path, at_once(best="train/loss"))
    first.more = {"optimizer": AdamWConfig().init()}
    first.fit(2)
    second = FakeLearner(tmp_path, at_once(best="train/loss"))
    second.more = {"optimizer": AdamWConfig().init()}
    second.load_state(Checkpoints.load(tmp_path))
    assert (second.step, second.epoch) == (6, 2)
    second.fit(4)
    assert steps(tmp_path) == [3, 6, 9, 12], "three, and the one at the best value"
    assert steps_in(Checkpoints.load(tmp_path)) == 12 and not second.events


def test_a_narrow_precision_says_what_it_loses(tmp_path: Path) -> None:
    learner = FakeLearner(tmp_path, at_once(precision=HALF))
    learner.more = {"other": Record({"small": np.array([1e-30, 1.0], np.float32)})}
    learner.fit(1)
    assert Checkpoints.load(tmp_path)["other.small"].tensor.read().tolist() == [0.0, 1.0]
    assert len(learner.events) == 1 and "1 values that are not zero became zero at float16" in learner.events[0][1]


def test_the_list_says_what_there_is(tmp_path: Path) -> None:
    learner = FakeLearner(tmp_path, at_once(best="validation/f1", keep=2))
    learner.scores = {1: 0.25, 2: 0.75, 3: float("nan")}
    learner.fit(3)
    held = listed(tmp_path)
    assert held["format"] == 1 and set(held["files"]) == {
        "best.safetensors", "step-00000003.safetensors", "step-00000006.safetensors", "step-00000009.safetensors",
    }  # fmt: skip
    first, second = held["checkpoints"]
    assert (first["step"], first["epoch"], second["step"], second["epoch"]) == (6, 2, 9, 3)
    assert first["best"] is True and "best" not in second
    assert first["values"] == {"train/loss": 1.0, "validation/f1": 0.75}
    assert second["values"]["validation/f1"] == {"$float": "nan"}
    for line in (first, second, held["best"]):
        data = (tmp_path / "checkpoints" / line["file"]).read_bytes()
        assert line["size"] == len(data) and line["crc32"] == f"{zlib.crc32(data):08x}"
    best = held["best"]
    assert (best["name"], best["mode"], best["value"], best["step"]) == ("validation/f1", "max", 0.75, 6)


# --- what is kept


def test_only_the_newest_are_kept_and_files_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "step-mine.safetensors").write_text("mine")
    saver = at_once(every_steps=1, keep=2)
    learner = FakeLearner(tmp_path, saver)
    learner.call("on_fit_start")
    (folder / "step-00000001.safetensors.bak").write_text("mine")
    (folder / "step-00000100.safetensors").write_text("mine")
    for _ in range(7):
        learner.train()
        learner.call("on_step_end")
    assert names(folder) == [
        "checkpoints.json", "notes.txt", "step-00000001.safetensors.bak", "step-00000006.safetensors",
        "step-00000007.safetensors", "step-00000100.safetensors", "step-mine.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "scores", "best"), [
    ("validation/f1", "auto", [0.1, 0.5, 0.5, 0.2, 0.4, 0.3], 2), ("validation/f1", "min", [0.3, 0.1, 0.2, 0.4], 2),
    ("validation/f1", "max", [float("nan"), 0.1, float("nan"), 0.0], 2),
    ("validation/f1", "min", [float("inf"), 2.0, float("nan"), 3.0, 4.0, 5.0], 2),
    ("validation/f1", "max", [float("-inf"), float("nan")], 1), ("train/loss", "auto", [1.0, 1.0, 1.0, 1.0], 1),
])  # fmt: skip
def test_the_best(tmp_path: Path, name: str, mode: Any, scores: list[float], best: int) -> None:
    learner = FakeLearner(tmp_path, at_once(best=name, mode=mode, keep=1))
    learner.scores = dict(enumerate(scores, start=1))
    learner.fit(len(scores))
    assert steps_in(Checkpoints.best_in(tmp_path)) == 3 * best == listed(tmp_path)["best"]["step"]
    assert steps(tmp_path) == sorted({3 * best, 3 * len(scores)})  # the state at the best, and the last


def test_a_nan_alone_is_no_best(tmp_path: Path) -> None:
    learner = FakeLearner(tmp_path, at_once(best="validation/f1"))
    learner.scores = {1: float("nan")}
    learner.fit(1)
    assert listed(tmp_path)["best"] is None
    with pytest.raises(RunError, match=r"best\.safetensors: is missing"):
        Checkpoints.best_in(tmp_path)


def test_a_resumed_training_knows_the_best(tmp_path: Path) -> None:
    first = FakeLearner(tmp_path, at_once(best="validation/f1"))
    first.scores = {1: 0.5, 2: 0.9, 3: 0.6}
    first.fit(3)
    # From the first epoch on again: the best that was reached since then stays.
    second = FakeLearner(tmp_path, at_once(best="validation/f1"))
    second.load_state(Checkpoints.load(tmp_path / "checkpoints" / "step-00000006.safetensors"))
    second.scores = {3: 0.8, 4: 0.85}
    second.fit(4)
    assert listed(tmp_path)["best"]["step"] == 6 and not second.events
    assert [line["step"] for line in listed(tmp_path)["checkpoints"]] == [6, 9, 12]
    assert steps_in(Checkpoints.best_in(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_best_that_is_lost_is_said_and_found_anew(tmp_path: Path, damage: str) -> None:
    first = FakeLearner(tmp_path, at_once(best="validation/f1"))
    first.scores = {1: 0.9}
    first.fit(1)
    best = tmp_path / "checkpoints" / "best.safetensors"
    best.unlink() if damage == "missing" else best.write_bytes(best.read_bytes()[:-1])
    second = FakeLearner(tmp_path, at_once(best="validation/f1"))
    second.load_state(Checkpoints.load(tmp_path))
    second.scores = {2: 0.5}
    second.fit(2)
    assert len(second.events) == 1 and "the best from now on is kept" in second.events[0][1]
    assert steps_in(Checkpoints.best_in(tmp_path)) == 6


# --- in the background


def gated(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, list[str]]:
    """Writing waits for a gate; it says when it waits, and what it has written."""
    gate, waits, written = threading.Event(), threading.Event(), list[str]()

    def slow(record: Record, path: Path, *rest: Any) -> Any:
        waits.set()
        assert gate.wait(30)
        written.append(path.name)
        return save(record, path, *rest)

    monkeypatch.setattr("phlox.train.observers.checkpoints.checkpoints.save", slow)
    return gate, waits, written


def test_the_training_does_not_wait_and_the_newest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waits, written = gated(monkeypatch)
    saver = Checkpoints(every_steps=1, keep=None)
    learner = FakeLearner(tmp_path, saver)
    learner.call("on_fit_start")
    for _ in range(5):
        learner.train()
        learner.call("on_step_end")
        assert waits.wait(30)
    assert written == [] and learner.announced == [] and steps(tmp_path) == []
    gate.set()
    learner.call("on_fit_end")
    assert written == ["step-00000001.safetensors", "step-00000005.safetensors"] and steps(tmp_path) == [1, 5]
    assert [path.name for path in learner.announced] == written
    assert steps_in(Checkpoints.load(tmp_path)) == 5
    assert not [thread for thread in threading.enumerate() if thread.name == "phlox-checkpoints"]


def test_it_is_announced_by_the_main_thread_at_the_next_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, _, _ = gated(monkeypatch)
    saver = Checkpoints(every_steps=2)
    learner = FakeLearner(tmp_path, saver)
    threads: list[threading.Thread] = []
    announce = learner.announce
    monkeypatch.setattr(learner, "announce", lambda path: (threads.append(threading.current_thread()), announce(path)))
    learner.call("on_fit_start")
    for _ in range(2):
        learner.train()
        learner.call("on_step_end")
    assert threads == []
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "phlox-checkpoints":
            thread.join(30)
    assert threads == []
    learner.train()
    learner.call("on_step_end")
    assert threads == [threading.main_thread()]


def test_the_best_waits_beside_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waits, written = gated(monkeypatch)
    learner = FakeLearner(tmp_path, Checkpoints(best="validation/f1", keep=None))
    learner.scores = {1: 0.1, 2: 0.4, 3: 0.3}
    monkeypatch.setattr(
        learner, "snapshot", lambda take=learner.snapshot, **options: (take(**options), waits.wait(30))[0]
    )
    fitted = threading.Timer(0.2, gate.set)
    fitted.start()
    learner.fit(3)
    fitted.join()
    assert written == ["best.safetensors", "best.safetensors", "step-00000009.safetensors"]
    assert steps_in(Checkpoints.best_in(tmp_path)) == 6 and steps_in(Checkpoints.load(tmp_path)) == 9


# --- the end of a training


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), DataError("x"), OSError(5, "x")])
def test_the_last_state_is_saved_where_it_is_sound(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        FakeLearner(tmp_path, Checkpoints()).fit(4, error, at=8)
    assert steps_in(Checkpoints.load(tmp_path)) == 8 and 8 in steps(tmp_path)


@pytest.mark.parametrize("error", [RunError("the loss is nan"), ValueError(), MemoryError()])
def test_after_an_error_the_checkpoints_stay_as_they_are(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        FakeLearner(tmp_path, at_once()).fit(4, error, at=8)
    assert steps(tmp_path) == [3, 6]


def test_nothing_new_is_not_saved_again(tmp_path: Path) -> None:
    saver = at_once()
    learner = FakeLearner(tmp_path, saver).fit(1)
    before = (tmp_path / "checkpoints" / "step-00000003.safetensors").stat().st_mtime_ns
    learner.fit(1)
    assert len(learner.announced) == 1
    assert (tmp_path / "checkpoints" / "step-00000003.safetensors").stat().st_mtime_ns == before
    learner.fit(2)  # a second call of `fit` goes on in the same folder
    assert steps(tmp_path) == [3, 6] and not learner.events


# --- folders


def test_two_at_once(tmp_path: Path) -> None:
    learner = FakeLearner(None, at_once(tmp_path / "c"))
    learner.call("on_fit_start")
    with pytest.raises(RunError, match="another run is writing there"):
        FakeLearner(None, at_once(tmp_path / "c")).fit(1)
    learner.call("on_fit_end")
    FakeLearner(None, at_once(tmp_path / "c")).fit(1)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no folder to write to; give fit\(folder=\.\.\.\)"):
        FakeLearner(None, at_once()).fit(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be created"):
        FakeLearner(None, at_once(tmp_path / "file" / "c")).fit(1)
    learner = FakeLearner(tmp_path, at_once(best="validation/f1"))
    learner.validation_data = None
    with pytest.raises(RunError, match="there are no validation data"):
        learner.fit(1)


@pytest.mark.parametrize("options", [
    {"every_steps": 0}, {"every_steps": True}, {"every_epochs": 1.5}, {"every_minutes": -1}, {"keep": 0},
    {"every_minutes": float("nan")}, {"mode": "most"}, {"best": ""}, {"best": 3}, {"best": "validation/zzz"},
])  # fmt: skip
def test_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(RunError):
        Checkpoints(**options)


def test_in_the_folder_of_a_run_they_go_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        FakeLearner(path, at_once(keep=1, best="validation/f1")).fit(3)
        folder.complete()
    assert json.loads((path / "run.json").read_text())["files"] == ["checkpoints/"]
    (path / "checkpoints" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match=r"'checkpoints/mine\.txt', which no run has written"):
        RunFolder(path, overwrite=True)
    (path / "checkpoints" / "mine.txt").unlink()
    with RunFolder(path, overwrite=True) as folder:
        folder.complete()
    assert names(path) == ["run.json"] and names(tmp_path) == ["run"]
