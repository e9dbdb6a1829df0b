"""Rows: which are given, that files of them are whole at any moment, and end the same where a training was resumed."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import RunError
from phlox.train import Checkpoints, Learner
from phlox.train.events import kept as kept_values
from phlox.train.observers.callback import Callback
from phlox.train.observers.loggers import files as loggers
from phlox.train.observers.loggers.files import CsvLogger, FileLogger, JsonlLogger, Logger
from phlox.train.values import Histogram, Image, from_plain
from tests.train.fakes import FakeLearner


class Rows(Logger):
    def __init__(self, every_steps: int | None = None) -> None:
        super().__init__(every_steps)
        self.rows: list[dict[str, float]] = []
        self.calls: list[str] = []

    def begin(self, learner: Any) -> None:
        self.calls.append("begin")

    def write(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.calls.append("close" if self.failed is None else f"close after {self.failed!r}")


def learner(**options: Any) -> FakeLearner:
    return FakeLearner(
        train=lambda step: {"loss": 1.0 / step, "recall": [0.5, 0.25 * step]},
        validation=lambda step: {"loss": 10.0 / step},
        **options,
    )


# --- which rows


def test_the_time_of_a_validation_is_not_that_of_the_steps() -> None:
    one, log = learner(), Rows()

    class Slow(Callback):
        def on_validation_start(self, learner: Any) -> None:
            learner.seconds += 100.0

    one.fit([log, Slow()], epochs=1, steps_per_epoch=5, validate_at=[2, 4])
    assert [(row["step"], row["seconds"]) for row in log.rows[:2]] == [(2, 2.0), (4, 4.0)]
    assert log.rows[1]["rows_per_second"] == 4.0


def test_a_row_for_each_epoch() -> None:
    log = Rows()
    learner().fit([log], epochs=2, steps_per_epoch=2)
    assert log.calls == ["begin", "close"]
    assert log.rows[1] == {
        "epoch": 2, "step": 4, "lr": 0.1, "train/loss": pytest.approx((1 / 3 + 1 / 4) / 2), "train/recall/0": 0.5,
        "train/recall/1": 0.875, "validation/loss": 2.5, "seconds": 2.0, "rows_per_second": 4.0,
    }  # fmt: skip
    assert [row["step"] for row in log.rows] == [2, 4]


def test_rows_of_steps_and_of_validations_one_for_a_step() -> None:
    log = Rows(every_steps=2)
    learner().fit([log], epochs=2, steps_per_epoch=5, validate_at=[3, 4])
    assert [(row["step"], row["epoch"]) for row in log.rows] == [
        (2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (8, 2), (10, 2)
    ]  # fmt: skip
    assert ["validation/loss" in row for row in log.rows] == [False, True, True, True, False, False, True]
    at_three = log.rows[1]
    assert at_three["train/loss"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3) and at_three["validation/loss"] == 10 / 3
    assert at_three["seconds"] == 3.0 and at_three["rows_per_second"] == 4.0 and list(at_three) == [*log.rows[3]]


def test_learning_rates_of_groups_and_what_callbacks_add() -> None:
    class Adds(Callback):
        def on_step_end(self, learner: Any) -> None:
            learner.extra["throughput/rows_per_second"] = np.float32(0.5)
            learner.extra["count"] = np.int64(learner.step)

    log, one = Rows(every_steps=1), learner()
    one.lr = {"head": 0.1, "*": 0.01}
    one.fit([Adds(), log], epochs=1, steps_per_epoch=2)
    for row in log.rows:
        assert (row["lr/head"], row["lr/*"], row["throughput/rows_per_second"]) == (0.1, 0.01, 0.5)
        assert row["count"] == row["step"] and type(row["count"]) is int
        assert type(row["throughput/rows_per_second"]) is float


class Adds(Callback):
    """Values besides numbers: a histogram and an array at each step, and an image at each second one."""

    def on_step_end(self, learner: Any) -> None:
        learner.extra["weights"] = Histogram(np.arange(learner.step), bins=2)
        learner.extra["shares"] = np.array([learner.step, 0.5])
        if learner.step % 2 == 0:
            learner.extra["a/../b"] = Image(np.full((1, 2), learner.step, np.uint8))


def test_a_histogram_and_an_image_are_in_one_row_and_numbers_in_all() -> None:
    class Shows(Rows):
        shows = Histogram, Image

    class Once(Callback):
        def on_step_end(self, learner: Any) -> None:
            if learner.step == 2:  # at which there is a row, and a validation, whose row takes its place
                learner.extra |= {"weights": Histogram([1.0, 3.0]), "large": np.zeros(101), "image": Image(np.eye(2))}

    shows, numbers, one = Shows(every_steps=1), Rows(every_steps=1), learner()
    one.fit([Once(), shows, numbers], epochs=1, validate_at=[2])
    assert [[name for name in ("weights", "large", "image") if name in row] for row in shows.rows] == [
        [], ["weights", "large", "image"], [], []
    ]  # fmt: skip
    assert isinstance(shows.rows[1]["large"], Histogram) and "validation/loss" in shows.rows[1]
    expected = {"weights/mean": 2.0, "weights/std": 1.0, "weights/min": 1.0, "weights/max": 3.0}
    assert expected.items() <= numbers.rows[1].items() and "image" not in numbers.rows[1]
    assert all(type(value) in (int, float) for row in numbers.rows for value in row.values())


def test_what_no_logger_writes_is_told_once() -> None:
    one = learner()
    one.extra["note"], one.extra["score"] = "text", 0.5
    logs = Rows(every_steps=1), Rows(every_steps=1)
    one.fit(logs, epochs=2)
    [(step, text)] = one.events
    assert step == 1 and text.startswith("learner.extra: 'note' is a str, which no logger writes; give a number")
    assert all(row["score"] == 0.5 and "note" not in row for log in logs for row in log.rows)


class Ends(Callback):
    def __init__(self, step: int, error: BaseException | None = None) -> None:
        self.step, self.error = step, error

    def on_step_end(self, learner: Any) -> None:
        if learner.step == self.step:
            if self.error is not None:
                raise self.error
            learner.stop("enough")


def test_a_training_that_ends_in_the_middle_of_an_epoch_has_a_row_of_that() -> None:
    log = Rows()
    learner().fit([log, Ends(6)], epochs=3)
    assert [row["step"] for row in log.rows] == [4, 6]
    assert log.rows[1]["train/loss"] == pytest.approx((1 / 5 + 1 / 6) / 2)
    log = Rows(every_steps=3)
    learner().fit([log, Ends(6)], epochs=3)
    assert [row["step"] for row in log.rows] == [3, 4, 6]


def test_after_an_exception_the_rows_so_far_are_given_and_it_is_closed() -> None:
    log, error = Rows(every_steps=3), ValueError("it fails")
    with pytest.raises(ValueError, match="it fails"):
        learner().fit([log, Ends(6, error)], epochs=3)
    assert [row["step"] for row in log.rows] == [3, 4, 6] and log.calls == ["begin", f"close after {error!r}"]
    learner().fit([log])
    assert log.calls[-1] == "close"


def test_one_that_cannot_write_warns_once() -> None:
    class Full(Logger):
        def write(self, row: dict[str, float]) -> None:
            raise OSError(28, "No space left on device")

    one = learner().fit([Full(1)], epochs=2)
    assert one.step == 8 and len(one.events) == 1
    assert "No space left on device" in one.events[0][1] and "the training goes on" in one.events[0][1]

    class Wrong(Logger):
        def write(self, row: dict[str, float]) -> None:
            raise KeyError("validation/acuracy")

    with pytest.raises(KeyError, match="acuracy"):
        learner().fit([Wrong()])


@pytest.mark.parametrize("name", ["start", "step", "epoch", "stop"])
def test_the_former_interface_says_what_it_is_now(name: str) -> None:
    with pytest.raises(
        TypeError, match=rf"Old\.{name}: a Logger is a Callback.*write this method as (begin|write|close)"
    ):
        type("Old", (Logger,), {name: lambda self, report: None})


def test_a_subclass_need_not_call_the_constructor() -> None:
    class Short(Logger):
        def __init__(self) -> None:
            self.steps: list[float] = []

        def write(self, row: dict[str, float]) -> None:
            self.steps.append(row["step"])

    short = Short()
    learner().fit([short], epochs=2)
    assert short.steps == [4, 8]
    with pytest.raises(RunError, match="every_steps must be"):
        Rows(0)
    with pytest.raises(NotImplementedError, match="implement write"):
        learner().fit([Logger()])


# --- files

Make = Callable[..., FileLogger]
FILES = pytest.mark.parametrize("make", [JsonlLogger, CsvLogger])


SAVED = ["step 2", "step 3", "step 5", "validation 3", "validation 8", "epoch 4"]
"""Points at which a checkpoint may be made, each followed by a crash at a later step."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """As others read it."""
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    if path.suffix == ".jsonl":
        return [
            json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
            for line in text.splitlines()
        ]
    return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(text.splitlines())]


def pictures(path: Path) -> dict[str, bytes]:
    """The images beside a file."""
    return {one.name: one.read_bytes() for one in path.with_name(f"{path.stem}_images").iterdir()}


def path_of(make: Make, folder: Path) -> Path:
    return folder / ("metrics.jsonl" if make is JsonlLogger else "metrics.csv")


@FILES
def test_a_file_has_all_rows_at_any_moment(make: Make, tmp_path: Path) -> None:
    path, log = path_of(make, tmp_path / "run" / "a"), Rows(every_steps=2)
    seen: list[int] = []

    class Reads(Callback):
        def on_step_end(self, learner: Any) -> None:
            assert rows_of(path) == log.rows
            seen.append(len(log.rows))

        on_epoch_end = on_step_end

    learner().fit([make(path, every_steps=2), log, Reads()], epochs=2, validate_at=[1])
    assert rows_of(path) == log.rows and len(log.rows) == 5 and sorted(set(seen)) == [0, 1, 2, 3, 4, 5]


def test_no_number_in_json_and_in_csv(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf]
    one = FakeLearner(train=lambda step: {"loss": values[step - 1]})
    one.fit([JsonlLogger(tmp_path / "a.jsonl"), CsvLogger(tmp_path / "a.csv")], epochs=3, steps_per_epoch=1)
    assert [row["train/loss"] for row in rows_of(tmp_path / "a.jsonl")] == [None, None, None]
    text = (tmp_path / "a.csv").read_text()
    assert [row["train/loss"] for row in csv.DictReader(text.splitlines())] == ["nan", "inf", "-inf"]


def test_histograms_and_images_in_json_and_in_csv(tmp_path: Path) -> None:
    FakeLearner().fit([Adds(), JsonlLogger(tmp_path / "a.jsonl"), CsvLogger(tmp_path / "b.csv")], steps_per_epoch=2)
    [row], [line] = rows_of(tmp_path / "a.jsonl"), csv.DictReader((tmp_path / "b.csv").read_text().splitlines())
    short = {"mean": 0.5, "std": 0.5, "min": 0.0, "max": 1.0}
    assert row["weights"] == {**short, "range": [0.0, 1.0], "counts": [1, 1]} and row["shares/0"] == 2
    assert {name: float(line[f"weights/{name}"]) for name in short} == short
    for path, folder in ((row["a/../b"], "a_images"), (line["a/../b"], "b_images")):
        assert path == f"{folder}/a%2F..%2Fb-00000002.png"
        with PillowImage.open(tmp_path / path) as image:
            assert np.asarray(image).tolist() == [[2, 2]]
    one = FakeLearner()
    one.extra["x"] = Histogram([math.nan])
    one.fit([JsonlLogger(tmp_path / "c.jsonl")], steps_per_epoch=1)
    assert rows_of(tmp_path / "c.jsonl")[0]["x"]["mean"] is None  # which is JSON


def test_columns_appear_later(tmp_path: Path) -> None:
    class Adds(Callback):
        def on_epoch_end(self, learner: Any) -> None:
            if learner.epoch == 2:
                learner.extra["odd, name"] = 5.0

    FakeLearner().fit([Adds(), CsvLogger(tmp_path / "a.csv")], epochs=3, steps_per_epoch=1)
    header, *lines = csv.reader((tmp_path / "a.csv").read_text().splitlines())
    assert header == ["epoch", "step", "lr", "train/loss", "seconds", "rows_per_second", "odd, name"]
    assert [line[-1] for line in lines] == ["", "5.0", "5.0"] and [line[1] for line in lines] == ["1", "2", "3"]


@FILES
def test_a_file_that_exists(make: Make, tmp_path: Path) -> None:
    path = path_of(make, tmp_path)
    learner().fit([make(path)], epochs=2)
    before = path.read_bytes()
    with pytest.raises(RunError, match=rf"{make.__name__}: .*{path.name} exists; .*overwrite=True.*append=True"):
        learner().fit([make(path)], epochs=1)
    assert path.read_bytes() == before
    learner().fit([make(path, append=True)], epochs=1)
    assert [row["step"] for row in rows_of(path)] == [4, 8, 4] and path.read_bytes().startswith(before)
    learner().fit([make(path, overwrite=True)], epochs=1)
    assert [row["step"] for row in rows_of(path)] == [4]
    with pytest.raises(RunError, match="append= and overwrite= exclude each other"):
        make(path, append=True, overwrite=True)


def test_what_is_no_table_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RunError, match="is no file of this logger"):
        learner().fit([CsvLogger(tmp_path / "a.csv", append=True)])
    assert (tmp_path / "a.csv").read_bytes() == b"\xff\xfe\n"


@FILES
def test_another_fit_of_the_same_learner_goes_on(make: Make, tmp_path: Path) -> None:
    log, one = make(path_of(make, tmp_path), overwrite=make is CsvLogger), learner()
    one.fit([log], epochs=1).fit([log], epochs=2)
    assert [row["step"] for row in rows_of(log.path)] == [4, 8]


@FILES
def test_a_path_that_cannot_be_written(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written .*; give another path"):
        learner().fit([make(tmp_path / "file" / "metrics")])
    with pytest.raises(RunError, match="cannot be written"):
        learner().fit([make(tmp_path)])


@FILES
@pytest.mark.parametrize(
    ("saved", "crash"),
    [(saved, crash) for saved in SAVED for crash in (5, 6, 7, 9, 10, 12) if int(saved.split()[1]) < crash],
)
def test_resumed_it_ends_as_without_the_interruption(make: Make, crash: int, saved: str, tmp_path: Path) -> None:
    event = saved.split()[0]
    whole, broken = path_of(make, tmp_path / "whole"), path_of(make, tmp_path / "broken")
    options: dict[str, Any] = {"epochs": 3, "validate_at": [3, 6, 9]}
    learner().fit([Adds(), make(whole, every_steps=2)], **options)
    one, log = learner(), make(broken, every_steps=2)
    kept: dict[str, Any] = {}

    class Saves(Callback):
        def save(self, learner: Any, now: str) -> None:
            if f"{now} {learner.step}" == saved:
                names = ("epoch", "step", "rows", "seconds", "_seen", "history", "validation")
                kept.update({name: getattr(learner, name) for name in names}, state=log.state())
                extra = json.loads(json.dumps(kept_values(learner.extra)))
                kept["extra"] = {name: from_plain(value) for name, value in extra.items()}
                kept["_seen"], kept["history"] = list(kept["_seen"]), list(kept["history"])
                kept["state"] = json.loads(json.dumps(kept["state"]))

        def on_step_end(self, learner: Any) -> None:
            self.save(learner, "step")

        def on_validation_end(self, learner: Any) -> None:
            self.save(learner, "validation")

        def on_epoch_end(self, learner: Any) -> None:
            self.save(learner, "epoch")

    with pytest.raises(KeyboardInterrupt):
        one.fit([Adds(), log, Saves(), Ends(crash, KeyboardInterrupt())], **options)
    with broken.open("a") as file:
        file.write('{"epoch": 3, "st')  # of a process that was killed
    second, again = learner(), make(broken, every_steps=2)
    state = kept.pop("state")
    for name, value in kept.items():
        setattr(second, name, value)
    again.restore(state)
    second.go_on([Adds(), again], after=event, **options)
    assert broken.read_text() == whole.read_text().replace("whole", "broken")
    assert pictures(broken) == pictures(whole) and len(pictures(whole)) == 6


@FILES
def test_a_graceful_end_leaves_no_trace_in_a_resumed_file(make: Make, tmp_path: Path) -> None:
    whole, broken = path_of(make, tmp_path / "whole"), path_of(make, tmp_path / "broken")
    learner().fit([make(whole)], epochs=3)
    one, log = learner(), make(broken)
    state: dict[str, Any] = {}

    class Saves(Callback):
        def on_fit_end(self, learner: Any) -> None:
            state.update(log.state())

    one.fit([log, Ends(6), Saves()], epochs=3)
    assert [row["step"] for row in rows_of(broken)] == [4, 6]
    again = make(broken)
    again.restore(state)
    one.go_on([again], after="step", epochs=3)
    assert broken.read_text() == whole.read_text()


@FILES
@pytest.mark.parametrize("saved", ["by a checkpoint", "by hand"])
@pytest.mark.parametrize("steps", [4, 6])
def test_a_training_that_is_resumed_at_its_end_keeps_its_last_row(
    make: Make, saved: str, steps: int, tmp_path: Path
) -> None:
    """At the end of an epoch, and within one, whose end is told again."""
    path, data = path_of(make, tmp_path), Loader((np.ones((8, 1), np.float32), np.ones((8, 1), np.float32)), 2)

    def fit(resume: Any = False) -> Any:
        one = Learner(nn.Linear(1, 1).init(seed=0), optim.SgdConfig(), 0.1, nn.mse_loss)
        callbacks = [make(path), Checkpoints(tmp_path / "states")]
        one.fit(data, steps=steps, validation=data, callbacks=callbacks, resume=resume, progress=False)
        return one

    by_hand = fit().save(tmp_path / "by-hand")
    before = [{**row, "seconds": 0, "rows_per_second": 0} for row in rows_of(path)]
    assert [row["step"] for row in before] == [4, 6][: 1 + (steps == 6)]
    fit(resume=by_hand if saved == "by hand" else True)
    assert [{**row, "seconds": 0, "rows_per_second": 0} for row in rows_of(path)] == before


@FILES
def test_resumed_after_rows_of_another_training_it_keeps_those(make: Make, tmp_path: Path) -> None:
    path = path_of(make, tmp_path)
    learner().fit([make(path)], epochs=3)
    log, one = make(path, append=True), learner()
    one.fit([log], epochs=1)
    state = log.state()
    one.fit([log], epochs=2)
    two, again = learner(), make(path, append=True)
    two.epoch, two.step, two.seconds = 1, 4, 4.0
    again.restore(state)
    two.fit([again], epochs=2, resumed=True)
    assert [row["step"] for row in rows_of(path)] == [4, 8, 12, 4, 8]


@FILES
def test_resumed_without_a_state_a_file_from_elsewhere_stays(make: Make, tmp_path: Path) -> None:
    path = path_of(make, tmp_path)
    learner().fit([make(path)], epochs=3)
    two = learner()
    two.epoch, two.step = 1, 4
    with pytest.raises(RunError, match="exists"):
        two.fit([make(path)], epochs=2, resumed=True)
    two.folder = tmp_path  # the folder of the run: it is its own
    two.fit([make(path)], epochs=2, resumed=True)
    assert [row["step"] for row in rows_of(path)] == [4, 8]


@FILES
def test_a_folder_that_goes_away_and_comes_back(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    path = path_of(make, folder)

    class Removes(Callback):
        def on_epoch_start(self, learner: Any) -> None:
            if learner.epoch == 1:
                shutil.rmtree(folder)
            if learner.epoch == 3:
                folder.mkdir()

    one = learner().fit([Removes(), make(path)], epochs=4)
    assert one.step == 16 and len(one.events) == 1
    assert one.events[0][0] == 8 and "the training goes on" in one.events[0][1]
    assert [row["step"] for row in rows_of(path)] == [8, 12, 16]  # those that could not be written are


@FILES
def test_a_disk_that_is_full_leaves_whole_lines(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, log = path_of(make, tmp_path), make(path_of(make, tmp_path))
    real, full = Path.open, [2, 3]

    class Half:
        """A file on a disk that has room for half of it."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            return self.file.write(data[: len(data) // 2])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    one = learner()

    def opened(self: Path, *args: Any, **options: Any) -> Any:
        file = real(self, *args, **options)
        return Half(file) if "a" in (args or ("r",))[0] and one.epoch in full else file

    monkeypatch.setattr(loggers.Path, "open", opened)
    one.fit([log], epochs=5)
    assert [row["step"] for row in rows_of(path)] == [4, 8, 12, 16, 20]
    assert [text for _, text in one.events if "No space left" in text] == [one.events[0][1]]
    full[:] = [5]
    path.unlink()
    one = learner()
    one.fit([log], epochs=5)
    assert [row["step"] for row in rows_of(path)] == [4, 8, 12, 16]
