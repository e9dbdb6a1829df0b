"""Counts by class, beside loops."""

from __future__ import annotations

import numpy as np

from phlox.metrics.counts import ClassCounts, Confusion, Counts, Hits, marginals, mean_of
from phlox.metrics.inputs import Classes
from phlox.metrics.sums import on_host

RNG = np.random.default_rng(7)
P, T = RNG.integers(0, 3, (2, 50))
YES, TRUE = RNG.integers(0, 2, (2, 20, 4))


def test_of_classes() -> None:
    counts = on_host(ClassCounts(Classes(num_classes=3)).measure(P, T)["counts"])
    c = Counts.of(counts)
    for k in range(3):
        assert c.tp[k] == ((k == P) & (k == T)).sum() and c.fp[k] == ((k == P) & (k != T)).sum()
        assert c.fn[k] == ((k != P) & (k == T)).sum() and c.tn[k] == ((k != P) & (k != T)).sum()
    matrix = on_host(Confusion(Classes(num_classes=3)).measure(P, T)["confusion"])
    assert (matrix == [[((i == T) & (j == P)).sum() for j in range(3)] for i in range(3)]).all()
    assert on_host(Hits(Classes()).measure(P, T)["hits"]).tolist() == [(P == T).sum(), 50]
    assert marginals(counts)[0] == (P == T).sum() and marginals(counts)[3] == 50


def test_of_labels() -> None:
    several = Classes(task="multilabel", num_labels=4)
    c = Counts.of(on_host(ClassCounts(several).measure(YES, TRUE)["counts"]))
    assert (c.tp == (YES & TRUE).sum(0)).all() and (c.tn == ((1 - YES) & (1 - TRUE)).sum(0)).all()
    assert on_host(Hits(several).measure(YES, TRUE)["hits"]).tolist() == [(YES == TRUE).all(1).sum(), 20]
    assert on_host(Hits(several, by_label=True).measure(YES, TRUE)["hits"]).tolist() == [(YES == TRUE).sum(), 80]
    one = on_host(ClassCounts(Classes(task="binary")).measure(YES[:, 0], TRUE[:, 0])["counts"])
    right, actual, predicted, rows = marginals(one)
    assert right == (YES == TRUE)[:, 0].sum() and rows == 20
    assert actual.tolist() == [(TRUE[:, 0] == 0).sum(), TRUE[:, 0].sum()] and predicted[1] == YES[:, 0].sum()


def test_the_mean_of_what_is_defined() -> None:
    assert mean_of(np.array([1.0, np.nan, 3.0])) == 2.0
    assert mean_of(np.array([1.0, np.nan, 3.0]), np.array([3.0, 5.0, 1.0])) == 1.5
    with np.errstate(all="ignore"):
        assert np.isnan(mean_of(np.array([np.nan])))
