"""Trainings in notebooks: histories with tables and curves, learners, trials.

Serves: phlox/train/observers/views/{pages,epochs,plots}.py
"""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.train import EpochReport, History, Learner, LrCurve
from tests.markup import read

HOSTILE = "<script>\u202e"


def report(epoch: int, loss: float) -> EpochReport:
    return EpochReport(
        epoch, 10 * epoch, 0.01, {"loss": loss}, {"loss": loss / 2.0, "accuracy": 0.5}, seconds=1.5, rows=100
    )


def lines(text: str) -> list[str]:
    return re.findall(r'<path d="(M[^"]*)" class="c', text)


def test_a_history_is_a_list() -> None:
    history = History([report(1, 4.0), report(2, 2.0)])
    assert history == [report(1, 4.0), report(2, 2.0)] and repr(history) == repr(list(history))
    for twin in (copy.deepcopy(history), pickle.loads(pickle.dumps(history))):  # noqa: S301
        assert type(twin) is History and twin == history


def test_its_table_and_its_curves() -> None:
    history = History([report(epoch, 4.0 / epoch) for epoch in range(1, 6)])
    found = read(history)
    assert "5 epochs" in found.text and "50 steps" in found.text and "7.50 s" in found.text
    head = found.rows[0]
    place = head.index("validation/loss")
    assert [float(row[place]) for row in found.rows[1:]] == pytest.approx([2 / e for e in range(5, 0, -1)], rel=1e-4)
    assert found.tags.count("svg") == 2 and len(lines(history._repr_html_())) == 3
    assert "50%" in found.text, "accuracies in percent"
    assert len(lines(History([report(1, 1.0)])._repr_html_())) == 0, "one epoch is a point"


@pytest.mark.parametrize("values", [
    [], [math.nan], [math.nan, 1.0], [math.inf, 1.0, 2.0], [-1.0, 0.0], [0.0], [1e-30, 1e30],
], ids=range(7))  # fmt: skip
def test_any_values(values: list[float]) -> None:
    read(History([report(number + 1, value) for number, value in enumerate(values)]))


def test_names_of_strangers_values_of_classes_and_rates_of_groups() -> None:
    values = {HOSTILE: 0.5, "recall": [0.1, 0.2], "confusion": [[1, 2], [3, 4]], "nested": {"a": {"b": 1.0}}}
    history = History([EpochReport(n, n, {"body": 0.1, "*": 0.2}, dict(values), {}) for n in (1, 2)])
    found = read(history)
    assert "<script>\\u202e" in found.texts and "train/recall/0" in found.rows[0] and "nested/a/b" in found.text
    assert "train <script>\\u202e" not in read(history[0]).text and "0.5" in read(history[0]).text


def test_long_histories_are_bounded() -> None:
    history = History([report(epoch, 1.0 / epoch) for epoch in range(1, 20_001)])
    text = history._repr_html_()
    assert len(text) < 200_000 and len(read(history).rows) < 500
    many = History([EpochReport(1, 1, 0.1, {f"m{n}": 1.0 for n in range(100)})])
    assert read(many).tags.count("svg") == 8 and "and 92 more values in the table" in read(many).text


def test_an_epoch() -> None:
    found = read(EpochReport(3, 30, 0.01, {"loss": 1.0}, {"loss": 0.5, "accuracy": 0.75}, complete=False))
    assert found.texts[0] == "Epoch 3" and "not complete" in found.badges
    assert ["loss", "train 1.0000, validation 0.5000"] in found.rows and ["accuracy", "validation 75.0%"] in found.rows


def learner(**more: Any) -> Learner[Any]:
    px.random.seed(0)
    return Learner(nn.Linear(3, 2), optim.AdamWConfig(), 0.01, nn.cross_entropy_loss,
                   metrics={"accuracy": metrics.Accuracy(num_classes=2)}, **more)  # fmt: skip


def data() -> Loader:
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    return Loader((x, (x[:, 0] > 0).astype(np.int32)), batch_size=16)


def test_a_learner() -> None:
    trained = learner()
    found = read(trained)
    assert found.texts[0] == "Learner" and ["model", "Linear"] in found.rows and ["optimizer", "AdamW"] in found.rows
    assert type(trained.history) is History and "svg" not in found.tags
    history = trained.fit(data(), epochs=2, validation=data(), progress=False)
    assert history is trained.history and type(history) is History
    found = read(trained)
    assert (
        "epoch 2" in found.text and "svg" in found.tags and any(row[0] == "best validation/loss" for row in found.rows)
    )
    scores = trained.evaluate(data())
    assert scores == dict(scores) and ["accuracy", f"{scores['accuracy']:.5g}"] in read(scores).rows


def test_trials() -> None:
    found = read(learner().dry_run(data()))
    assert "all went well" in found.badges and any(row[0] == "a checkpoint" for row in found.rows)
    curve = LrCurve(
        [0.001 * 1.5**n for n in range(30)], [1.0 / (1 + n) if n < 20 else 0.05 * 2.0 ** (n - 20) for n in range(30)]
    )
    found = read(curve)
    assert "the loss falls fastest at" in found.text and found.tags.count("svg") == 1
    assert "the loss does not fall" in read(LrCurve([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])).text
