"""A resumed training says what is otherwise than it was, and which of the two is used; and uses that.

Serves: phlox/train/resume_notes.py, phlox/train/run.py
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.errors import DataError, RecordError, RunWarning
from phlox.record import SafetensorsRecorder
from phlox.train import Callback, Checkpoints, CsvLogger, EarlyStopping, Growing, Learner, ReduceOnPlateau, Unfreeze

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Grows(Callback):
    """Has a list, and nothing else."""

    def __init__(self) -> None:
        self.seen: Growing[int] = Growing()

    def on_epoch_end(self, learner: Any) -> None:
        self.seen.append(learner.step)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: Any, /) -> None:
        self.seen = Growing(state["seen"])


class Renamed(EarlyStopping):
    """The same callback by another name."""


def run(folder: Path | None, epochs: int, **options: Any) -> Learner[Any]:
    given: dict[str, Any] = {
        "seed": 0, "optimizer": optim.AdamWConfig(), "lr": 0.01, "batch_size": 5, "order": 0, "callbacks": list,
        "learner": {}, "fit": {}, **options,
    }  # fmt: skip
    px.random.seed(given["seed"])
    trained = Learner(
        nn.Linear(3, 2).init(seed=0), given["optimizer"], given["lr"], nn.cross_entropy_loss,
        metrics={"accuracy": metrics.Accuracy()}, **given["learner"],
    )  # fmt: skip
    data = Loader((X, Y), given["batch_size"], shuffle=True, seed=given["order"])
    limit = {} if "steps" in given["fit"] else {"epochs": epochs}
    trained.fit(
        data, **limit, validation=Loader((X, Y), 20), folder=folder, callbacks=given["callbacks"](), progress=False,
        **{"resume": True, **given["fit"]},
    )  # fmt: skip
    return trained


CASES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"lr": 0.01}, {"lr": 0.5}, ["another lr: it was 0.01, and is 0.5 here; 0.5 is used from here on"]),
    (
        {"optimizer": optim.AdamWConfig()}, {"optimizer": optim.AdamWConfig(weight_decay=0.5, beta_1=0.8)},
        ["another optimizer.beta_1: it was 0.9, and is 0.8 here",
         "another optimizer.weight_decay: it was 0.01, and is 0.5 here; 0.5 is used from here on"],
    ),
    (
        {"optimizer": optim.AdamWConfig()}, {"optimizer": optim.AdamConfig()},
        ["another optimizer: it was AdamWConfig(beta_1=0.9, beta_2=0.999, epsilon=1e-08, weight_decay=0.01, amsgrad="],
    ),
    (
        {"lr": optim.CosineAnnealingLr(0.1, num_iters=40)}, {"lr": optim.CosineAnnealingLr(0.1, num_iters=80)},
        ["another lr.num_iters: it was 40, and is 80 here; 80 is used"],
    ),
    (
        {"lr": optim.ReduceOnPlateauLr(0.1), "callbacks": lambda: [ReduceOnPlateau()]},
        {"lr": optim.ReduceOnPlateauLr(0.2)},
        ["another lr.initial_lr: it was 0.1, and is 0.2 here; the schedule continues from its former rate"],
    ),
    ({"seed": 3}, {"seed": 4}, ["another seed: it was 3, and is 4 here; the random numbers continue those of 3"]),
    ({"order": 1}, {"order": 2}, ["another data.seed: it was 1, and is 2 here; 2 is used from here on"]),
    ({"batch_size": 5}, {"batch_size": 4}, ["another data.batch_size: it was 5, and is 4 here; 4 is used"]),
    ({"learner": {"accumulate": 2}}, {"learner": {"accumulate": 4}}, ["another accumulate: it was 2, and is 4 here"]),
    ({"learner": {"ema": 0.5}}, {"learner": {"ema": 0.75}}, ["another ema: it was 0.5, and is 0.75 here; 0.75 is"]),
    (
        {}, {"learner": {"clip": optim.GradientClipping.norm(2.0)}},
        ["another clip: it was None, and is GradientClipping(kind='norm', limit=2.0) here"],
    ),
    (
        {"callbacks": lambda: [EarlyStopping(), Unfreeze("bias", 9), Grows()]}, {},
        ["without Grows, and the checkpoint has a state of it: that is dropped", "without Unfreeze, and",
         "without EarlyStopping, and"],
    ),
    (
        {"callbacks": lambda: [EarlyStopping()]}, {"callbacks": lambda: [Renamed()]},
        ["without EarlyStopping, and the checkpoint has a state of it: that is dropped; without a state here: Renamed"],
    ),
    ({}, {"callbacks": lambda: [EarlyStopping()]}, []),
    (
        {"callbacks": lambda: [EarlyStopping("validation/loss")]},
        {"callbacks": lambda: [EarlyStopping("validation/accuracy")]},
        ["with EarlyStopping of 'validation/accuracy', and the checkpoint has one of 'validation/loss': it begins"],
    ),
]  # fmt: skip
"""The run that was saved, the one that goes on, and what is said."""


@pytest.mark.parametrize(("before", "now", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_what_is_said(tmp_path: Path, before: dict[str, Any], now: dict[str, Any], expected: list[str]) -> None:
    run(tmp_path / "run", 2, **before)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = run(tmp_path / "run", 3, **{**before, "callbacks": list, **now})
    said = [str(one.message) for one in caught if one.category is RunWarning]
    assert len(said) == len(expected), said
    for text, start in zip(said, expected, strict=True):
        assert text.startswith(f"resumed {'' if start.startswith('with') else 'with '}{start}"), text
    events = [text for _, text in again.events]
    assert [text for text in events if text.startswith("resumed")] == said  # for the report, too
    assert all(Path(one.filename) == Path(__file__) for one in caught if one.category is RunWarning)


def test_what_is_said_to_be_used_is_used(tmp_path: Path) -> None:
    run(tmp_path / "run", 2)
    with pytest.warns(RunWarning):
        again = run(tmp_path / "run", 3, lr=0.5, batch_size=4)
    assert again.lr == 0.5 and again.step == 2 * 4 + 5
    run(tmp_path / "hand", 2)
    byhand = run(None, 3, fit={"resume": tmp_path / "hand"})
    byhand.lr = 0.125
    byhand.save(tmp_path / "by-hand")
    with pytest.warns(RunWarning, match=r"the rate that was set by hand, 0\.125, stays in use"):
        last = run(None, 4, lr=0.5, fit={"resume": tmp_path / "by-hand.safetensors"})
    assert last.lr == 0.125


def test_callbacks_of_every_run_are_not_missed_without_a_folder(tmp_path: Path) -> None:
    run(tmp_path / "run", 2, callbacks=lambda: [CsvLogger(tmp_path / "rows.csv"), Checkpoints()])
    with pytest.warns(RunWarning) as caught:
        run(None, 3, fit={"resume": tmp_path / "run"})
    assert [str(one.message) for one in caught] == [
        "resumed without CsvLogger, and the checkpoint has a state of it: that is dropped"
    ]


def test_another_value_that_is_best_is_said(tmp_path: Path) -> None:
    run(tmp_path / "run", 2, callbacks=lambda: [Checkpoints(best="validation/loss")])
    again = run(tmp_path / "run", 3, callbacks=lambda: [Checkpoints(best="validation/accuracy")])
    ((_, text),) = again.events
    assert text.startswith(str(tmp_path / "run" / "checkpoints" / "best.safetensors"))
    assert "has the weights of the best validation/loss, and now best='validation/accuracy': the first" in text


def test_what_does_not_fit_is_an_error_and_says_no_more(tmp_path: Path) -> None:
    """Warnings are errors here: one that came before would be raised."""
    run(tmp_path / "run", 2)
    with pytest.raises(RecordError, match="lr=|schedule"):
        run(tmp_path / "run", 3, lr=optim.LinearLr(0.1, 0.0, num_iters=9))
    run(tmp_path / "within", 9, fit={"steps": 6})
    with pytest.raises(DataError, match="had batch_size 5, this one has 4"):
        run(tmp_path / "within", 3, batch_size=4)


def test_a_record_of_a_former_version_has_no_settings(tmp_path: Path) -> None:
    record = run(None, 2, fit={"resume": False}).snapshot()
    progress = {name: value for name, value in record["progress"].items() if name != "settings"}
    path = SafetensorsRecorder().save(record.with_entries({"progress": progress}), tmp_path / "former")
    assert run(None, 3, lr=0.5, fit={"resume": path}).epoch == 3
