"""The arguments of metrics: kinds, weights, precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.metrics.inputs import Classes, masked, meet, row_weights


def test_operands_meet_where_the_tensors_are() -> None:
    device = Autodiff(Torch(float="bf16")).device()
    x, y, nothing = meet("m", x=px.ones((2,), device=device).require_grad(), y=[1, 2], weights=None)
    assert x.backend == y.backend == Torch() and y.kind is px.Int and nothing is None
    assert not x.is_require_grad()
    assert meet("m", x=np.ones(2, np.float32))[0].backend == NumPy()
    assert meet("m", x=np.ones(2, np.float32), y=[1.0])[0].backend == NumPy(float="f64")
    with pytest.raises(KindError, match="m: y: tensor: cannot make a tensor from"):
        meet("m", x=[1.0], y=[object()])
    with pytest.raises(ShapeError, match="m: x: tensor: the values do not form an array"):
        meet("m", y=px.ones((2,)), x=[[1.0], [1.0, 2.0]])


def test_row_weights() -> None:
    by_row = row_weights("m", px.tensor([1, 2]), (2, 3))
    assert by_row is not None and by_row.tolist() == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert row_weights("m", None, (2, 3)) is None
    with pytest.raises(ShapeError, match=r"m: weights of shape \(3,\) do not fit rows of shape \(2, 3\)"):
        row_weights("m", px.ones((3,)), (2, 3))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(RangeError, match="m: weights must be finite and not negative; leave a row out"):
            row_weights("m", px.tensor([1.0, bad]), (2,))
    mask = px.tensor([True, False])
    assert masked(None, mask) is mask and masked(None, None) is None
    for weights, want in ((px.tensor([2.0, 3.0]), [2.0, 0.0]), (px.tensor([True, True]), [True, False])):
        kept = masked(weights, mask)
        assert kept is not None and kept.tolist() == want


@pytest.mark.parametrize("backend", [Jax(float="bf16"), Torch(float="f16"), Autodiff(Torch(float="bf16"))], ids=repr)
def test_half_precision_is_measured_at_full(backend: object) -> None:
    """A mean of 3000 ones, which bf16 cannot count."""
    x = px.ones((3000,), device=backend)  # pyright: ignore[reportArgumentType]
    assert metrics.MeanSquaredError()(x, x * 0.0) == 1.0
    assert metrics.Mean()(x) == 1.0


def test_classes_are_equal_whatever_the_metric_is_called() -> None:
    assert Classes(name="a", num_classes=3) == Classes(name="b", num_classes=3) != Classes(name="a", num_classes=4)


C = 3
OF_SCORES: dict[str, metrics.Metric] = {
    **{f"{kind.__name__} multiclass {bins}": kind(num_classes=C, bins=bins)
       for kind in (metrics.Auroc, metrics.AveragePrecision) for bins in (None, 4)},
    **{f"{kind.__name__} multilabel {bins}": kind(task="multilabel", num_labels=C, bins=bins)
       for kind in (metrics.Auroc, metrics.AveragePrecision) for bins in (None, 4)},
    "Auroc binary": metrics.Auroc(task="binary", bins=4),
    "Auroc micro": metrics.Auroc(num_classes=C, bins=4, average="micro"),
    "Auroc weighted of logits": metrics.Auroc(num_classes=C, bins=4, average="weighted", from_logits=True),
    "CalibrationError": metrics.CalibrationError(),
    "CalibrationError max": metrics.CalibrationError(norm="max", bins=4),
    "CalibrationError adaptive": metrics.CalibrationError(adaptive=True, bins=4),
    "CalibrationError binary": metrics.CalibrationError(task="binary", bins=4),
    "LogLoss": metrics.LogLoss(), "Perplexity": metrics.Perplexity(),
    "Accuracy": metrics.Accuracy(), "Accuracy balanced": metrics.Accuracy(num_classes=C, average="macro"),
    "Accuracy top 2": metrics.Accuracy(top_k=2), "Accuracy binary": metrics.Accuracy(task="binary"),
    "Accuracy multilabel": metrics.Accuracy(task="multilabel"), "ExactMatch": metrics.ExactMatch(num_labels=C),
    "F1": metrics.F1(num_classes=C), "F1 micro": metrics.F1(num_classes=C, average="micro"),
    "F1 multilabel": metrics.F1(task="multilabel", num_labels=C), "Precision binary": metrics.Precision(task="binary"),
    "Recall weighted": metrics.Recall(num_classes=C, average="weighted"),
    "IoU": metrics.IoU(num_classes=C), "Hamming": metrics.Hamming(num_classes=C),
    "Matthews": metrics.MatthewsCorrelation(num_classes=C), "Kappa": metrics.CohenKappa(num_classes=C),
    "Kappa linear": metrics.CohenKappa(num_classes=C, weighting="linear"),
    "ConfusionMatrix": metrics.ConfusionMatrix(num_classes=C),
}  # fmt: skip


def scored(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(C), 12).astype(np.float32)
    if "binary" in name:
        return scores[:, 0], np.arange(12) % 2
    several = "multilabel" in name or name == "ExactMatch"
    return scores, (rng.integers(0, 2, (12, C)) if several else np.arange(12) % C)


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_that_are_nan_are_noticed_unless_they_count_for_nothing(name: str) -> None:
    metric, (scores, targets) = OF_SCORES[name], scored(name)
    spoilt, kept = scores.copy(), np.arange(12) != 5
    spoilt[5] = np.nan
    for backend in (NumPy(), Torch()):
        place = backend.device()
        batches = [[px.tensor(x[cut], device=place) for x in (spoilt, targets, kept)]
                   for cut in (slice(0, 8), slice(8, 12))]  # fmt: skip
        state = metric.init()
        for p, t, _ in batches:
            state = metric.update(state, p, t)
        assert np.isnan(metric.compute(state)).all()
        for mask in (lambda k: k, lambda k: k.float() * 2.0):
            state = metric.init()
            for p, t, k in batches:
                state = metric.update(state, p, t, weights=mask(k))
            want = metric(scores[kept], targets[kept])
            factor = 1.0 if mask(batches[0][2]).kind is px.Bool or name != "ConfusionMatrix" else 2.0
            np.testing.assert_allclose(metric.compute(state), want * factor, rtol=1e-5)


def test_scores_that_are_nan_are_noticed_in_a_program() -> None:
    names = ["Accuracy balanced", "Kappa linear", "F1", "Auroc micro", "Auroc multiclass 4"]
    collection = metrics.Collection({name: OF_SCORES[name] for name in names})
    scores, targets = scored("")
    update = px.compile(lambda state, p, t, w: collection.update(state, p, t, weights=w))
    spoilt, kept = scores.copy(), np.arange(12) != 5
    spoilt[5] = np.nan
    state = collection.init("jax")
    p, t, w = (px.tensor(x, device="jax") for x in (spoilt, targets, kept))
    masked, whole = update(state, p, t, w), update(state, p, t, w | ~w)
    assert update.traces == 1 and np.isnan([*collection.compute(whole).values()]).all()
    for name, value in collection(scores[kept], targets[kept]).items():
        np.testing.assert_allclose(collection.compute(masked)[name], value, rtol=1e-5)
