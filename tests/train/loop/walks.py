"""Random walks through the states of a run: whatever disturbs a training, it ends as the undisturbed one.

`python -m tests.train.loop.walks 10000` takes so many; the suite takes some.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.train import Callback, Checkpoints, CsvLogger, EarlyStopping, JsonlLogger, Learner, ReduceOnPlateau

X = np.random.default_rng(0).normal(size=(14, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
EPOCHS, BATCH = 3, 4  # of four batches, the last one smaller
STEPS = EPOCHS * -(-len(X) // BATCH)
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "accumulate": ({"accumulate": 3}, {"validate_every_steps": 3}),
    "averaged": ({"ema": 0.5, "clip": optim.GradientClipping.norm(0.3)}, {"validate_every": 2}),
    "within": ({}, {"validate_every_steps": 2}),
    "carried": ({"step": lambda m, b, c: ((nn.cross_entropy_loss(m(b[0]) + c, b[1]), (m(b[0]), b[1])), c * 0.5 + 0.1),
                 "loss": None, "carry": np.zeros(2, np.float32)}, {}),
}  # fmt: skip
"""The options of the learner, and of its fit."""


class Disturbed(Exception):
    """What a callback raises."""


def learner(setting: str) -> Learner[Any]:
    px.random.seed(1)
    model = nn.Sequential([nn.Linear(3, 4), nn.Dropout(0.3), nn.BatchNorm(4), nn.Linear(4, 2)]).init(1)
    rate = optim.ReduceOnPlateauLr(0.05, patience=1) if setting == "within" else optim.ExponentialLr(0.05, gamma=0.97)
    options = {"loss": nn.cross_entropy_loss, "metrics": {"accuracy": metrics.Accuracy()}, **SETTINGS[setting][0]}
    return Learner(model, optim.AdamWConfig(), rate, **options)


class Rows:
    """A source that cannot be read, once its time has come."""

    fails = signals = False

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, rows: Any) -> Any:
        if self.signals:
            self.signals, self.fails = False, True
            os.kill(os.getpid(), signal.SIGINT)
        if self.fails:
            raise OSError(errno.EIO, "unreadable")
        return X[rows], Y[rows]


class At(Callback):
    """Does something after a step, or at another event."""

    def __init__(self, event: str, step: int, act: Callable[[Any], None]) -> None:
        self.step, self.act = step, act
        setattr(self, event, self._look)

    def _look(self, learner: Any, *_: Any) -> None:
        if learner.step >= self.step:
            self.step = sys.maxsize
            self.act(learner)


def _raise(learner: Any) -> None:
    raise Disturbed


def _interrupt(learner: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def full_disk() -> Iterator[None]:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phlox.train.observers.checkpoints.checkpoints.save", full)
        yield


class Walk:
    """One training in a folder of its own, disturbed again and again."""

    def __init__(self, setting: str, folder: Path) -> None:
        self.setting, self.folder, self.source = setting, folder, Rows()
        self.learner: Learner[Any] | None = None

    def fit(self, *callbacks: Callback, workers: int = 0, **limits: Any) -> Learner[Any]:
        own = self.learner = learner(self.setting)
        data = Loader(self.source, BATCH, shuffle=True, seed=2, workers=workers)
        watching = [ReduceOnPlateau()] if self.setting == "within" else []
        own.fit(
            data, **(limits or {"epochs": EPOCHS}), validation=Loader((X, Y), 7), resume=True,
            progress=False, **SETTINGS[self.setting][1],
            callbacks=[
                EarlyStopping(patience=50), *watching, JsonlLogger(self.folder / "rows.jsonl", every_steps=3),
                CsvLogger(self.folder / "rows.csv"), *callbacks,
                Checkpoints(self.folder / "states", every_steps=2, every_epochs=1, keep=3, background=False),
            ],
        )  # fmt: skip
        return own

    # --- what disturbs it

    def limit(self, at: int, rng: random.Random) -> None:
        self.fit(steps=at)

    def callback(self, at: int, rng: random.Random) -> None:
        event = rng.choice(
            ["on_step_end", "on_epoch_start", "on_validation_start", "on_validation_end", "on_epoch_end"]
        )
        _expect(Disturbed, lambda: self.fit(At(event, at, _raise)))

    def signal(self, at: int, rng: random.Random) -> None:
        event = rng.choice(
            ["on_step_end", "on_epoch_start", "on_validation_start", "on_validation_end", "on_epoch_end"]
        )
        _expect(KeyboardInterrupt, lambda: self.fit(At(event, at, _interrupt)))

    def data(self, at: int, rng: random.Random) -> None:
        def spoil(learner: Any) -> None:
            self.source.fails = True

        _expect(Exception, lambda: self.fit(At("on_step_end", at, spoil)))
        self.source.fails = False

    def group(self, at: int, rng: random.Random) -> None:
        """A signal to the process group, which ends what reads the data too."""

        def spoil(learner: Any) -> None:
            self.source.signals = True

        _expect(KeyboardInterrupt, lambda: self.fit(At("on_step_end", at, spoil)))
        self.source.signals = self.source.fails = False

    def kill(self, at: int, rng: random.Random) -> None:
        """As SIGKILL leaves it: what is on the disk at that moment is all that stays."""
        event = rng.choice(["on_step_end", "on_validation_end", "on_epoch_end", "on_epoch_start"])
        kept = self.folder.with_name(f"{self.folder.name}-kept")

        def keep(learner: Any) -> None:
            shutil.copytree(self.folder, kept)
            raise Disturbed

        _expect(Disturbed, lambda: self.fit(At(event, at, keep)))
        if kept.exists():
            shutil.rmtree(self.folder)
            kept.rename(self.folder)

    def disk(self, at: int, rng: random.Random) -> None:
        with full_disk():
            _expect(Disturbed, lambda: self.fit(At("on_step_end", at, _raise)))

    def threads(self, at: int, rng: random.Random) -> None:
        self.fit(steps=at, workers=2)

    def stop(self, at: int, rng: random.Random) -> None:
        self.fit(At("on_step_end", at, lambda learner: learner.stop("enough")))

    def again(self, at: int, rng: random.Random) -> None:
        """A finished training that is started again."""
        self.fit()

    def measured(self, at: int, rng: random.Random) -> None:
        self.fit(At("on_step_end", at, lambda learner: learner.evaluate(Loader((X, Y), 5))))


OPERATIONS = ("limit", "callback", "signal", "group", "data", "kill", "disk", "threads", "stop", "again", "measured")


def _expect(kind: type[BaseException], run: Callable[[], Any]) -> None:
    try:
        run()
    except kind:
        pass


def result(walk: Walk) -> dict[str, Any]:
    """How a training has ended: weights, reports, values, and the rows of its files."""
    trained = walk.learner
    assert trained is not None
    rows = [json.loads(line) for line in (walk.folder / "rows.jsonl").read_text().splitlines()]
    cells = [line.split(",") for line in (walk.folder / "rows.csv").read_text().splitlines()]
    table = [dict(zip(cells[0], line, strict=True)) for line in cells[1:]]
    return {
        "weights": {path: param.val().numpy().tobytes() for path, param in trained.model.named_params()},
        "average": {path: param.val().numpy().tobytes() for path, param in trained.average.named_params()},
        "reports": [_timeless(report.to_plain()) for report in trained.history],
        "counters": (trained.epoch, trained.step, trained.updates, trained.lr),
        "values": trained.values(),
        "rows": [_timeless(row) for row in rows],
        "table": [_timeless(row) for row in table],
    }


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in ("seconds", "rows_per_second")}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()}


def undisturbed(setting: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(setting, Path(folder) / "run")
        walk.fit()
        return result(walk)


def take(seed: int, expected: dict[str, dict[str, Any]]) -> None:
    """One walk; `AssertionError`, with what was done, if its training does not end as the undisturbed one."""
    rng = random.Random(seed)
    setting = rng.choice(list(SETTINGS))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walk = Walk(setting, Path(folder) / "run")
        done = [(rng.choice(OPERATIONS), rng.randint(1, STEPS)) for _ in range(rng.randint(1, 4))]
        try:
            for operation, at in done:
                getattr(walk, operation)(at, rng)
            walk.fit()
        except Exception as error:
            raise AssertionError(f"walk {seed}, {setting}, {done}: {type(error).__name__}: {error}") from error
        found = result(walk)
    for what, value in expected[setting].items():
        assert found[what] == value, f"walk {seed}, {setting}, {done}: {what}: {found[what]} != {value}"


if __name__ == "__main__":
    references = {setting: undisturbed(setting) for setting in SETTINGS}
    first, count = int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1])
    failed = 0
    for number in range(first, first + count):
        try:
            take(number, references)
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"{str(error)[:600]}\n")
    sys.stdout.write(f"{count} walks, {failed} failed\n")
