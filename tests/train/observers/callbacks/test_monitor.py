"""Which way a value gets better, by its name; what is watched when; the best, in a resumed training too."""

from __future__ import annotations

import math
from typing import Any

import pytest

from phlox.errors import RunError
from phlox.train.observers.callbacks.monitor import Monitor, Watch, better_mode
from tests.train.fakes import FakeLearner

LESS = """
    loss train/loss validation/loss validation/log_loss valLoss val_loss accuracy_loss cross_entropy perplexity
    error_rate MeanSquaredError mean_absolute_error mae rmse word_error_rate WER negative_log_likelihood nll
    false_positive_rate expected_calibration_error edit_distance bits_per_byte neg_accuracy validation/loss/2
    kl_divergence brier_score validation/mae/0
"""
MORE = """
    accuracy validation/accuracy validation/top_5_accuracy top5_acc f1 macro_f1 F1 AUROC roc_auc IoU mAP mAP50-95
    bleu BLEU4 rougeL recall@10 validation/recall/0 r2 R2 explained_variance cosine_similarity psnr ssim log_likelihood
    neg_mean_squared_error validation/loss/accuracy true_positive_rate average_precision CohenKappa validation/f1/3
"""


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "min") for name in LESS.split()), *((name, "max") for name in MORE.split())]
)
def test_the_name_says_which_way_is_better(name: str, mode: str) -> None:
    assert better_mode(name) == mode


@pytest.mark.parametrize("name", ["validation/temperature", "lr", "validation/glossary", "", "x/1", "score", "epoch"])
def test_an_unknown_name_asks_for_the_mode(name: str) -> None:
    with pytest.raises(RunError, match=r"mode=\"min\" or mode=\"max\""):
        better_mode(name)


class Seen(Monitor):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[tuple[int, float, bool]] = []

    def observe(self, learner: Any, value: float, improved: bool) -> None:
        self.seen.append((learner.step, value, improved))


def test_a_value_of_the_validation_is_looked_at_after_each() -> None:
    losses = {2: 3.0, 4: 2.0, 8: 2.5, 12: 1.0}
    watch = Seen("validation/loss")
    FakeLearner(validation=lambda step: {"loss": losses[step]}).fit([watch], epochs=3, validate_at=[2])
    assert watch.seen == [(2, 3.0, True), (4, 2.0, True), (8, 2.5, False), (12, 1.0, True)]
    assert (watch.best, watch.best_epoch, watch.best_step) == (1.0, 3, 12)


def test_another_value_is_looked_at_after_each_epoch() -> None:
    watch = Seen("train/accuracy")
    FakeLearner(
        train=lambda step: {"accuracy": 0.1 * step}, validation=lambda step: {"loss": 0.0}
    ).fit([watch], epochs=2, steps_per_epoch=2, validate_at=[1, 3])  # fmt: skip
    assert [(step, round(value, 9), improved) for step, value, improved in watch.seen] == [
        (2, 0.15, True), (4, 0.35, True)
    ]  # fmt: skip


def test_better_means_by_min_delta_and_never_nan() -> None:
    values = [math.inf, math.nan, 1.0, 0.95, 0.85, math.nan, -math.inf]
    watch = Seen("validation/loss", min_delta=0.1)
    FakeLearner(validation=lambda step: {"loss": values[step - 1]}).fit([watch], epochs=7, steps_per_epoch=1)
    assert [improved for _, _, improved in watch.seen] == [False, False, True, False, True, False, True]
    up = Seen("validation/x", mode="max")
    FakeLearner(validation=lambda step: {"x": [0.0, -1.0, 0.5][step - 1]}).fit([up], epochs=3, steps_per_epoch=1)
    assert [improved for _, _, improved in up.seen] == [True, False, True]


def test_the_best_goes_into_a_resumed_training() -> None:
    first = Seen("validation/loss")
    learner = FakeLearner(validation=lambda step: {"loss": 1.0 / step}).fit([first], epochs=2)
    second = Seen("validation/loss")
    second.restore(first.state())
    assert (second.best, second.best_epoch, second.best_step) == (1.0 / 8, 2, 8)
    learner.fit([second], epochs=3, resumed=True)
    assert second.seen == [(12, 1.0 / 12, True)]
    fresh = Seen("validation/loss")
    fresh.restore(Seen("validation/loss").state())
    assert fresh.best is None
    other = Seen("validation/mae")  # watches another value than it did
    other.restore(first.state())
    assert other.best is None


def test_wrong_arguments() -> None:
    with pytest.raises(RunError, match="Seen: mode must be"):
        Seen("validation/loss", mode="less")
    with pytest.raises(RunError, match="Seen: min_delta must be"):
        Seen("validation/loss", min_delta=-1.0)
    with pytest.raises(RunError, match="Seen: min_delta must be"):
        Seen("validation/loss", min_delta=math.nan)
    with pytest.raises(RunError, match="Seen: 'validation/heat': its name does not say"):
        Seen("validation/heat")
    with pytest.raises(RunError, match="monitor is the name of a value"):
        Seen(["validation/loss"])


def test_values_that_are_not_there() -> None:
    with pytest.raises(RunError, match=r"no validation data; give fit\(..., validation=...\)"):
        FakeLearner().fit([Seen("validation/loss")])
    with pytest.raises(RunError, match="there is no value 'validation/accuracy'; there are"):
        FakeLearner(validation=lambda step: {"loss": 0.0}).fit([Seen("validation/accuracy")])
    with pytest.raises(NotImplementedError, match="Monitor: implement observe"):
        FakeLearner().fit([Monitor("train/loss")])
    with pytest.raises(NotImplementedError, match="Watch: implement look"):
        FakeLearner().fit([Watch("train/loss")])


def test_a_new_training_begins_without_a_best_and_another_fit_goes_on_with_it() -> None:
    watch = Seen("validation/loss")
    learner = FakeLearner(validation=lambda step: {"loss": 1.0 / step}).fit([watch], epochs=1)
    learner.fit([watch], epochs=2)
    assert watch.seen == [(4, 0.25, True), (8, 0.125, True)]
    FakeLearner(validation=lambda step: {"loss": 5.0}).fit([watch], epochs=1)
    assert watch.seen[-1] == (4, 5.0, True)
