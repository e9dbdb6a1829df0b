"""Metrics of counts by class, beside scikit-learn and torchmetrics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
from sklearn import metrics as sklearn_metrics

from phlox import metrics
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, on, traced_only  # noqa: F401

sk: Any = sklearn_metrics  # of loose types
RNG = np.random.default_rng(0)
N, C = 30, 5
SCORES = RNG.normal(size=(N, C)).astype(np.float32)
SCORES[:, 3] -= 9.0  # never predicted
LABELS = RNG.integers(0, 4, N).astype(np.int32)  # of class 4 there are none
GUESS = SCORES.argmax(-1).astype(np.int32)
W = RNG.uniform(0.0, 3.0, N).astype(np.float32)
MANY = RNG.uniform(size=(N, 3)).astype(np.float32)
TRUTHS = (RNG.uniform(size=(N, 3)) > 0.6).astype(np.int32)
AVERAGES = ("micro", "macro", "weighted")
ZERO = {"zero_division": 0.0}

PRF: list[tuple[Any, Any]] = [
    (metrics.Precision, lambda t, p, **o: sk.precision_score(t, p, **o, **ZERO)),
    (metrics.Recall, lambda t, p, **o: sk.recall_score(t, p, **o, **ZERO)),
    (metrics.F1, lambda t, p, **o: sk.f1_score(t, p, **o, **ZERO)),
    (metrics.Dice, lambda t, p, **o: sk.f1_score(t, p, **o, **ZERO)),
    (lambda **o: metrics.FBeta(beta=2.0, **o), lambda t, p, **o: sk.fbeta_score(t, p, beta=2.0, **o, **ZERO)),
    (metrics.IoU, lambda t, p, **o: sk.jaccard_score(t, p, **o, **ZERO)),
]


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
@pytest.mark.parametrize("metric, reference", PRF)
def test_quotients_of_classes(metric: Any, reference: Any, weights: Any) -> None:
    for average in AVERAGES:
        want = reference(LABELS, GUESS, average=average, sample_weight=weights)
        agrees(metric(num_classes=C, average=average), (SCORES, LABELS), want, weights=weights)
    want = reference(LABELS, GUESS, average=None, sample_weight=weights)
    got = metric(num_classes=C, average=None)(GUESS, LABELS, weights=weights)
    np.testing.assert_allclose(np.nan_to_num(got)[: len(want)], want, rtol=1e-6)
    for average in AVERAGES:
        want = reference(TRUTHS, MANY > 0.4, average=average, sample_weight=weights)
        one = metric(task="multilabel", num_labels=3, threshold=0.4, average=average)
        agrees(one, (MANY, TRUTHS), want, weights=weights)
    want = reference(TRUTHS[:, 0], MANY[:, 0] > 0.5, sample_weight=weights)
    agrees(metric(task="binary"), (MANY[:, 0], TRUTHS[:, 0]), want, weights=weights)


@pytest.mark.parametrize("average", AVERAGES)
def test_specificity(average: Any) -> None:
    want = tm.multiclass_specificity(torch.tensor(GUESS), torch.tensor(LABELS), C, average)
    agrees(metrics.Specificity(num_classes=C, average=average), (GUESS, LABELS), want.item())
    want = tm.binary_specificity(torch.tensor(MANY[:, 0]), torch.tensor(TRUTHS[:, 0]))
    agrees(metrics.Specificity(task="binary"), (MANY[:, 0], TRUTHS[:, 0]), want.item())


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_accuracy(weights: Any) -> None:
    o = {"sample_weight": weights}
    right = sk.accuracy_score(LABELS, GUESS, **o)
    binary = (MANY[:, 0], TRUTHS[:, 0])
    balanced = sk.recall_score(LABELS, GUESS, labels=range(4), average="macro", zero_division=0.0, **o)

    def top(k: int) -> Any:
        return sk.top_k_accuracy_score(LABELS, SCORES, k=k, labels=range(C), **o)

    for metric, args, want in [
        (metrics.Accuracy(), (SCORES, LABELS), right),
        (metrics.Accuracy(num_classes=C), (GUESS, LABELS), right),
        (metrics.Accuracy(num_classes=C, average="macro"), (SCORES, LABELS), balanced),
        (metrics.Accuracy(top_k=2), (SCORES, LABELS), top(2)),
        (metrics.Accuracy(num_classes=C, top_k=3), (SCORES, LABELS), top(3)),
        (metrics.Accuracy(task="binary"), binary, sk.accuracy_score(binary[1], binary[0] > 0.5, **o)),
        (
            metrics.Accuracy(task="binary", average="macro"),
            binary,
            sk.balanced_accuracy_score(binary[1], binary[0] > 0.5, **o),
        ),
        (
            metrics.Accuracy(task="multilabel"),
            (MANY, TRUTHS),
            np.average(((MANY > 0.5) == TRUTHS).mean(1), weights=weights),
        ),
        (metrics.ExactMatch(num_labels=3), (MANY, TRUTHS), sk.accuracy_score(TRUTHS, MANY > 0.5, **o)),
        (metrics.Hamming(num_classes=C), (SCORES, LABELS), sk.hamming_loss(LABELS, GUESS, **o)),
        (metrics.Hamming(task="multilabel", num_labels=3), (MANY, TRUTHS), sk.hamming_loss(TRUTHS, MANY > 0.5, **o)),
        (metrics.MatthewsCorrelation(num_classes=C), (SCORES, LABELS), sk.matthews_corrcoef(LABELS, GUESS, **o)),
        (metrics.MatthewsCorrelation(task="binary"), binary, sk.matthews_corrcoef(binary[1], binary[0] > 0.5, **o)),
        (metrics.CohenKappa(num_classes=C), (SCORES, LABELS), sk.cohen_kappa_score(LABELS, GUESS, **o)),
        (metrics.CohenKappa(task="binary"), binary, sk.cohen_kappa_score(binary[1], binary[0] > 0.5, **o)),
        *(
            (
                metrics.CohenKappa(num_classes=C, weighting=how),
                (SCORES, LABELS),
                sk.cohen_kappa_score(LABELS, GUESS, weights=how, labels=range(C), **o),
            )
            for how in ("linear", "quadratic")
        ),
    ]:  # fmt: skip
        agrees(metric, args, want, weights=weights)


@pytest.mark.filterwarnings("ignore:.*NaN values found in confusion matrix")
def test_confusion_matrix() -> None:
    for normalize in (None, "true", "pred", "all"):
        got = metrics.ConfusionMatrix(num_classes=C, normalize=normalize)
        want = tm.multiclass_confusion_matrix(torch.tensor(GUESS), torch.tensor(LABELS), C, normalize).numpy()
        whole = got(SCORES, LABELS)
        np.testing.assert_allclose(np.nan_to_num(whole), want, rtol=1e-6)
    agrees(
        metrics.ConfusionMatrix(num_classes=C), (SCORES, LABELS), sk.confusion_matrix(LABELS, GUESS, labels=range(C))
    )
    weighted = sk.confusion_matrix(LABELS, GUESS, labels=range(C), sample_weight=W)
    agrees(metrics.ConfusionMatrix(num_classes=C), (SCORES, LABELS), weighted, weights=W)
    several = metrics.ConfusionMatrix(task="multilabel", num_labels=3)
    agrees(several, (MANY, TRUTHS), sk.multilabel_confusion_matrix(TRUTHS, MANY > 0.5))
    binary = metrics.ConfusionMatrix(task="binary")
    agrees(binary, (MANY[:, 1], TRUTHS[:, 1]), sk.confusion_matrix(TRUTHS[:, 1], MANY[:, 1] > 0.5))


def test_logits_one_hot_axes_and_ignored_targets() -> None:
    want = sk.f1_score(LABELS, GUESS, average="macro")
    assert metrics.F1(num_classes=C)(SCORES, np.eye(C)[LABELS]) == pytest.approx(want)
    assert metrics.F1(num_classes=C)(SCORES, np.eye(C, dtype=np.int32)[LABELS]) == pytest.approx(want)
    image = SCORES.reshape(2, 3, 5, C).transpose(0, 3, 1, 2)
    by_axis = metrics.F1(num_classes=C, axis=1)
    assert by_axis(image, LABELS.reshape(2, 3, 5)) == pytest.approx(want)
    hidden = np.where(np.arange(N) % 3 == 0, -100, LABELS)
    kept = hidden != -100
    spoilt = np.where(kept[:, None], SCORES, np.nan).astype(np.float32)
    for weights in (None, W):
        w = None if weights is None else weights[kept]
        for metric in (metrics.F1(num_classes=C, ignore_index=-100), metrics.Accuracy(ignore_index=-100)):
            plain = type(metric)(num_classes=metric.num_classes)
            agrees(metric, (spoilt, hidden), plain(SCORES[kept], LABELS[kept], weights=w), weights=weights)
    mask = metrics.Accuracy()(SCORES, LABELS, weights=kept)
    assert mask == metrics.Accuracy()(SCORES[kept], LABELS[kept])
    some = np.where(np.arange(N * 3).reshape(N, 3) % 4 == 0, -1, TRUTHS)
    want = tm.multilabel_f1_score(torch.tensor(MANY), torch.tensor(some), 3, ignore_index=-1).item()
    agrees(metrics.F1(task="multilabel", num_labels=3, ignore_index=-1), (MANY, some), want)
    logits = np.log(MANY / (1 - MANY))
    one = {"task": "multilabel", "num_labels": 3, "threshold": 0.3}
    assert metrics.F1(**one, from_logits=True)(logits, TRUTHS) == pytest.approx(metrics.F1(**one)(MANY, TRUTHS))
    tokens = metrics.Accuracy()(SCORES.reshape(5, 6, C), LABELS.reshape(5, 6), weights=np.arange(5))
    assert tokens == pytest.approx(np.average((GUESS == LABELS).reshape(5, 6).mean(1), weights=np.arange(5)))


EMPTY = (np.zeros((0, C), np.float32), np.zeros(0, np.int32))
ONE_CLASS = (np.array([0, 0, 0]), np.array([0, 0, 0]))


@pytest.mark.parametrize(
    "metric, one_class",
    [
        (metrics.Accuracy(), 1.0),
        (metrics.Accuracy(num_classes=C, average="macro"), 1.0),
        (metrics.F1(num_classes=C), 1.0),
        (metrics.F1(num_classes=C, average="micro"), 1.0),
        (metrics.Precision(num_classes=C, average="weighted"), 1.0),
        (metrics.Specificity(num_classes=C), 0.0),
        (metrics.MatthewsCorrelation(num_classes=C), 0.0),
        (metrics.CohenKappa(num_classes=C), np.nan),
        (metrics.CohenKappa(num_classes=C, weighting="linear"), np.nan),
        (metrics.Hamming(num_classes=C), 0.0),
        (metrics.IoU(num_classes=C), 1.0),
    ],
    ids=repr,
)
def test_nothing_and_one_class(metric: Any, one_class: float) -> None:
    assert np.isnan(metric.compute(metric.init()))
    assert np.isnan(metric.compute(metric.init("numpy")))
    assert np.isnan(metric(*EMPTY))
    np.testing.assert_allclose(metric(*ONE_CLASS), one_class)


def test_binary_without_positives() -> None:
    nothing = (np.array([0, 0, 0]), np.array([0, 0, 0]))
    assert np.isnan(metrics.F1(task="binary")(*nothing)) and np.isnan(metrics.Precision(task="binary")(*nothing))
    assert metrics.Specificity(task="binary")(*nothing) == 1.0
    assert metrics.Accuracy(task="binary", average="macro")(*nothing) == 1.0
    assert metrics.Precision(task="binary")([0, 0], [1, 0]) == 0.0
    assert metrics.Precision(task="binary", zero_division=1.0)([0, 0], [1, 0]) == 1.0
    assert (metrics.ConfusionMatrix(num_classes=3)(*EMPTY_LABELS) == np.zeros((3, 3))).all()


EMPTY_LABELS = (np.zeros(0, np.int32), np.zeros(0, np.int32))

LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.F1(), RangeError, "F1: give the number of classes: num_classes"),
    (lambda: LOOSE.F1(task="multilabel"), RangeError, "num_labels"),
    (lambda: LOOSE.F1(num_classes=0), RangeError, "F1: num_classes must be a positive integer, got 0"),
    (
        lambda: LOOSE.F1(num_classes=3, average="mean"),
        RangeError,
        "F1: average is 'micro', 'macro', 'weighted' or None",
    ),
    (lambda: LOOSE.F1(num_classes=3, task="binary"), RangeError, "num_classes is for task='multiclass'"),
    (lambda: LOOSE.F1(task="ternary"), RangeError, "task is 'binary', 'multiclass' or 'multilabel', got 'ternary'"),
    (lambda: LOOSE.F1(task="binary", threshold=1.5), RangeError, "threshold is a probability"),
    (lambda: LOOSE.FBeta(task="binary", beta=0.0), RangeError, "FBeta: beta must be positive"),
    (lambda: LOOSE.Accuracy(top_k=0), RangeError, "top_k must be a positive integer"),
    (lambda: LOOSE.Accuracy(task="binary", top_k=2), RangeError, "top_k=2 is for task='multiclass'"),
    (lambda: LOOSE.MatthewsCorrelation(task="multilabel", num_labels=2), RangeError, "MatthewsCorrelation: task is"),
    (lambda: LOOSE.CohenKappa(num_classes=2, weighting="cubic"), RangeError, "CohenKappa: weighting is 'linear'"),
    (lambda: LOOSE.ConfusionMatrix(num_classes=2, normalize="rows"), RangeError, "normalize is 'true', 'pred'"),
    (
        lambda: LOOSE.F1(num_classes=3)([0, 1], [0, 3]),
        IndexRangeError,
        "targets hold 3, which is not from 0 to 2; leave",
    ),
    (
        lambda: LOOSE.F1(num_classes=3)([0, 7], [0, 1]),
        IndexRangeError,
        "predictions hold 7, which is not from 0 to 2",
    ),
    (lambda: LOOSE.F1(num_classes=3)([0, 1], [0, -100]), IndexRangeError, "ignore_index"),
    (lambda: LOOSE.F1(task="binary")([0, 1], [0, 2]), IndexRangeError, "targets hold 2"),
    (lambda: LOOSE.F1(num_classes=3)(SCORES, LABELS), ShapeError, "5 classes along axis -1, and num_classes is 3"),
    (lambda: LOOSE.F1(num_classes=C)(SCORES, LABELS[:4]), ShapeError, "class numbers (Int) are of shape (30,)"),
    (lambda: LOOSE.F1(num_classes=C)(MANY > 0.5, LABELS), KindError, "a class or none is task='binary'"),
    (lambda: LOOSE.Accuracy()([0.2, 0.9], [0, 1]), ShapeError, "scores of a class or none are task='binary'"),
    (
        lambda: LOOSE.Accuracy()(MANY, TRUTHS),
        RangeError,
        "must be one-hot: one nonzero entry in each row; several",
    ),
    (lambda: LOOSE.F1(num_classes=C)(SCORES, SCORES), RangeError, "must be one-hot"),
    (lambda: LOOSE.F1(task="binary")(MANY, LABELS), ShapeError, "(30, 3)"),
    (lambda: LOOSE.F1(task="multilabel", num_labels=2)(MANY, TRUTHS), ShapeError, "must have 2 labels"),
    (lambda: LOOSE.Accuracy(top_k=2)(GUESS, LABELS), ShapeError, "top_k=2 needs scores"),
    (lambda: LOOSE.Accuracy()(GUESS, LABELS, weights=W[:3]), ShapeError, "weights of shape (3,) do not fit rows of"),
    (lambda: LOOSE.Accuracy()(GUESS, LABELS, weights=-W), RangeError, "weights must be finite and not negative"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@pytest.mark.every(4)
@each_compiler
@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_compiled(backend: Any, weights: Any) -> None:
    several = metrics.Collection(
        {
            "accuracy": metrics.Accuracy(),
            "f1": metrics.F1(num_classes=C),
            "kappa": metrics.CohenKappa(num_classes=C, weighting="linear"),
        }
    )
    collection_agrees(backend, several, (SCORES, LABELS), weights)
    if weights is None:
        compiled_agrees(backend, metrics.F1(task="multilabel", num_labels=3), (MANY, TRUTHS))


def collection_agrees(backend: Any, several: metrics.Collection, arrays: Any, weights: Any) -> None:
    class AsArray(metrics.Collection):
        def compute(self, state: Any) -> Any:
            return np.array(list(super().compute(state).values()))

    compiled_agrees(backend, AsArray(several.metrics), arrays, weights)


@pytest.mark.usefixtures("traced_only")
def test_a_label_out_of_range_counts_for_nothing_where_it_cannot_be_seen() -> None:
    import phlox as px

    metric = metrics.F1(num_classes=3, average="micro")
    update = px.compile(lambda p, t: metric.measure(p, t))
    args = (px.tensor([0, 1, 2, 9], device="jax"), px.tensor([0, 2, 7, 1], device="jax"))
    assert metric.compute(update(*args)) == metric([0, 1], [0, 2])


QUOTIENTS: list[Any] = [metrics.F1, metrics.FBeta, metrics.Dice, metrics.Precision, metrics.Recall, metrics.IoU]


@pytest.mark.parametrize("average", [*AVERAGES, None])
@pytest.mark.parametrize("kind", QUOTIENTS)
def test_without_positives_all_averages_are_undefined_alike(kind: Any, average: Any) -> None:
    metric = kind(task="multilabel", num_labels=2, average=average, zero_division=0.25)
    none, one = np.zeros((3, 2), np.int64), np.array([[0, 0], [1, 1], [0, 0]])
    assert np.isnan(metric(none, none)).all() and np.isnan(metric.compute({})).all()
    # Where something is wrong the value is 0, and 0 / 0 has the value that was given for it.
    assert np.all(metric(none, one) == (0.25 if kind is metrics.Precision else 0.0))
    if average != "weighted":  # by the rows of each class, of which there are none
        assert np.all(metric(one, none) == (0.25 if kind is metrics.Recall else 0.0))


def test_counts_beyond_what_a_float_holds() -> None:
    metric, labels = metrics.ConfusionMatrix(num_classes=2), ([0, 1, 1], [0, 0, 1])
    for device in ("numpy", "torch"):
        state = metric.measure(*on(device, [np.array(x) for x in labels]))
        for _ in range(25):
            state = metric.merge(state, state)
        state = metric.update(state, *on(device, [np.array([0]), np.array([1])]))
        assert metric.compute(state).tolist() == [[2**25, 2**25], [1, 2**25]]
    # Nearly all rows are of one class: of differences of products in float64 eight digits would be left.
    right, wrong = 10**9 + 1, 7
    found = metrics.MatthewsCorrelation(num_classes=2).result(
        np.array([[right, wrong], [right + 2, wrong + 3], [right + 3, wrong + 2]], np.float64)
    )
    tn, tp, fn, fp = right, wrong, 3, 2
    want = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    np.testing.assert_allclose(found, want, rtol=1e-14)
