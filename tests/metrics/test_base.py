"""What all metrics share: states, merging, collections, metrics of one's own."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, ShapeError, UnsupportedError
from tests.metrics.support import traced_only  # noqa: F401

ALL: list[Any] = [
    metrics.Accuracy(), metrics.Accuracy(num_classes=3), metrics.ExactMatch(num_labels=2),
    metrics.Precision(num_classes=3), metrics.Recall(num_classes=3), metrics.FBeta(num_classes=3, beta=2.0),
    metrics.F1(num_classes=3), metrics.Specificity(num_classes=3), metrics.ConfusionMatrix(num_classes=3),
    metrics.Auroc(num_classes=3), metrics.Auroc(num_classes=3, bins=4), metrics.AveragePrecision(num_classes=3),
    metrics.AveragePrecision(num_classes=3, bins=4), metrics.LogLoss(), metrics.CalibrationError(),
    metrics.CalibrationError(adaptive=True), metrics.MatthewsCorrelation(num_classes=3),
    metrics.CohenKappa(num_classes=3), metrics.Hamming(num_classes=3), metrics.IoU(num_classes=3),
    metrics.Dice(num_classes=3), metrics.MeanAbsoluteError(), metrics.MeanSquaredError(),
    metrics.RootMeanSquaredError(), metrics.MeanAbsolutePercentageError(), metrics.R2(), metrics.ExplainedVariance(),
    metrics.Pearson(), metrics.Spearman(), metrics.CosineSimilarity(), metrics.Perplexity(), metrics.Bleu(),
    metrics.RougeL(), metrics.WordErrorRate(), metrics.CharacterErrorRate(), metrics.Psnr(), metrics.Ssim(),
    metrics.Quantile(), metrics.Quantile(q=[0.1, 0.9], bins=8, range=(0.0, 1.0)), metrics.Mean(),
    metrics.StandardDeviation(), metrics.Throughput(),
]  # fmt: skip


def test_the_list_is_complete() -> None:
    public = {getattr(metrics, name) for name in metrics.__all__}
    kinds = {kind for kind in public if isinstance(kind, type) and issubclass(kind, metrics.Metric)}
    assert kinds - {metrics.Metric, metrics.Collection} == {type(metric) for metric in ALL}


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: repr(metric).partition(" at 0x")[0])
def test_nothing_is_nan_and_metrics_are_values(metric: Any) -> None:
    for state in (metric.init(), metric.init("numpy"), metric.merge({}, metric.init("numpy"))):
        value = metric.compute(state)
        if isinstance(metric, metrics.ConfusionMatrix):
            assert (value == 0.0).all()
        else:
            assert np.isnan(value).all()
        assert isinstance(value, (float, np.ndarray))
    assert metric == dataclasses.replace(metric) and hash(metric) == hash(dataclasses.replace(metric))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(metric, "average", None)  # noqa: B010
    with pytest.raises(ShapeError, match="another metric's"):
        metric.compute({"something": metrics.total(px.ones((2,)))})
    assert ">>>" in (type(metric).__doc__ or "")


def test_merging_what_does_not_fit() -> None:
    three, four = metrics.F1(num_classes=3), metrics.F1(num_classes=4)
    with pytest.raises(ShapeError, match=r"F1: sums of shape \(3, 3\) and \(3, 4\) do not add up"):
        three.merge(three.measure([0, 1], [0, 2]), four.measure([0, 1], [0, 2]))
    with pytest.raises(ShapeError, match="F1: states of counts and of moments are of different metrics"):
        three.merge(three.measure([0, 1], [0, 2]), metrics.Mean().measure(1.0))


def test_a_metric_keeps_no_state() -> None:
    metric: Any = metrics.ConfusionMatrix(num_classes=3)
    with pytest.raises(KindError, match=r"ConfusionMatrix.update takes a state first, and got list; .*metric.init\(\)"):
        metric.update([0, 1], [0, 2])


def test_a_state_lives_where_the_first_batch_did() -> None:
    mean = metrics.Mean()
    device = Autodiff(Torch(float="bf16")).device()
    state = mean.update(mean.init(), px.tensor([1.0, 2.0], device=device).require_grad() * 2.0)
    assert state["moments"].value.backend == Torch()
    state = mean.update(state, px.tensor([5.0], device="jax"))
    assert state["moments"].value.backend == Torch() and mean.compute(state) == pytest.approx(11 / 3)
    assert mean.init(device)["moments"].value.backend == Torch()
    assert mean.measure(np.ones(2))["moments"].value.backend == NumPy(float="f64")
    assert mean.measure(np.ones(2, np.float32))["moments"].value.backend == NumPy()
    logits = px.tensor([[1.0, 2.0], [3.0, 1.0]], device=device)
    assert metrics.Accuracy()(logits, np.array([1, 1])) == 0.5


def test_operands_on_two_engines() -> None:
    with pytest.raises(px.errors.BackendError, match=r"predictions on numpy:cpu, targets on jax:cpu; move them to one"):
        metrics.MeanSquaredError()(px.ones((2,)), px.ones((2,), device="jax"))


@pytest.mark.usefixtures("traced_only")
def test_a_state_without_a_device_costs_one_more_trace() -> None:
    metric = metrics.F1(num_classes=3)
    update = px.compile(metric.update)
    args = px.tensor([0, 1, 2], device="jax"), px.tensor([0, 2, 2], device="jax")
    state = metric.init()
    for _ in range(3):
        state = update(state, *args)
    assert update.traces == 2
    assert metric.compute(state) == pytest.approx(metric([0, 1, 2], [0, 2, 2]))


@pytest.mark.usefixtures("traced_only")
def test_rows_are_not_gathered_inside_of_a_program() -> None:
    metric = metrics.Spearman()
    update = px.compile(lambda state, p, t: metric.update(state, p, t))
    x = px.tensor([1.0, 2.0], device="jax")
    with pytest.raises(UnsupportedError, match="Spearman keeps all rows, .* call measure there"):
        update({}, x, x)


def test_a_collection_measures_what_is_shared_once() -> None:
    of: dict[str, Any] = {"num_classes": 3}
    several = metrics.Collection(
        {
            "accuracy": metrics.Accuracy(**of),
            "precision": metrics.Precision(**of),
            "recall": metrics.Recall(**of, average=None),
            "kappa": metrics.CohenKappa(**of),
            "iou": metrics.IoU(**of),
            "confusion": metrics.ConfusionMatrix(**of),
            "top": metrics.Accuracy(num_classes=3, ignore_index=0),
        }
    )
    args = np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])
    state = several.update(several.init(), *args)
    assert list(state) == ["accuracy", "confusion", "top"]
    state = several.merge(several.init("numpy"), state)
    values = several.compute(state)
    for name, metric in several.metrics.items():
        np.testing.assert_allclose(values[name], metric(*args))
    losses = metrics.Collection({"loss": metrics.LogLoss(from_logits=True), "perplexity": metrics.Perplexity()})
    state = losses.measure(np.zeros((2, 4), np.float32), np.array([0, 1]))
    assert list(state) == ["loss"] and losses.compute(state)["perplexity"] == pytest.approx(4.0)
    assert losses.compute({}).keys() == {"loss", "perplexity"}
    nested = metrics.Collection({"all": several, "mean": metrics.Accuracy()})
    assert nested(*args)["all"]["accuracy"] == 0.75
    with pytest.raises(KindError, match="Collection: 'f1' must be a metric, got str"):
        metrics.Collection({"f1": "f1"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="Collection: a state of loss is not of these metrics"):
        several.compute({"loss": {}})


@dataclasses.dataclass(frozen=True)
class Within(metrics.Metric):
    """The proportion of predictions within a tolerance."""

    tolerance: float = 0.1

    def shapes(self) -> metrics.Shapes:
        return {"near": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> metrics.State:
        p, t, weights = metrics.meet("Within", predictions=predictions, targets=targets, weights=weights)
        near = (p - t).abs() <= self.tolerance
        weights = metrics.row_weights("Within", weights, near.shape)
        return {"near": metrics.totals(near.flatten(), px.ones_like(near).flatten(), weights=weights)}

    def result(self, near: Any) -> Any:
        return near[0] / near[1]


def test_a_metric_of_ones_own() -> None:
    metric = Within(0.2)
    several = metrics.Collection({"near": metric, "mae": metrics.MeanAbsoluteError(), "same": Within(0.2)})
    state = several.measure([1.0, 2.0, 3.0], [1.1, 2.5, 3.0])
    assert list(state) == ["near", "mae"]
    assert several.compute(state) == {"near": 2 / 3, "mae": pytest.approx(0.2), "same": 2 / 3}
    assert math.isnan(metric.compute({}))


@pytest.mark.usefixtures("traced_only")
def test_metrics_in_a_training_step() -> None:
    """On a tape, inside of a compiled step that is donated its model."""
    from phlox import nn, optim

    device = Autodiff(Jax()).device()
    px.random.seed(0)
    model, optimizer = nn.Linear(4, 3, device=device), optim.SgdConfig().init()
    several = metrics.Collection({"accuracy": metrics.Accuracy(), "auroc": metrics.Auroc(num_classes=3)})

    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        logits = model(x)
        loss = px.functional.cross_entropy(logits, y)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(0.1, model, grads), several.measure(logits, y)

    step = px.compile(train, donate=("model", "optimizer"))
    x, y = px.random.normal((6, 4), device=device), px.tensor([0, 1, 2, 0, 1, 2], device=device)
    state = several.init()
    for _ in range(3):
        model, measured = step(model, optimizer, x, y)
        state = several.merge(state, measured)
    assert step.traces == 1 and 0.0 <= several.compute(state)["accuracy"] <= 1.0
