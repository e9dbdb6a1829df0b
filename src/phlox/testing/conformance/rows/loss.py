# ruff: noqa: E501
# pyright: standard
# pyright: reportArgumentType=false
"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

import phlox as px
from phlox import functional as f
from phlox.testing.conformance.row import INF, Row, exact, ints, normal, other, positive, sp, tf, unit

# --- classes


def _targets(*shape: int) -> Any:
    return ints(*shape, low=0, high=4)


def _chosen(log_p: Any, targets: Any) -> Any:
    return -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return _chosen(sp.log_softmax(logits, -1), targets)


def _whole(
    logits: Any, targets: Any, weight: Any = None, smoothing: float = 0.0, ignored: int = -100
) -> tuple[Any, Any]:
    """The losses and the weights of their mean, for logits [n, classes] and class indices or probabilities."""
    log_p = sp.log_softmax(logits, -1)
    classes = logits.shape[-1]
    weight = np.ones(classes) if weight is None else weight
    if targets.dtype.kind == "f":
        share = targets * (1 - smoothing) + smoothing / classes
        return -(share * weight * log_p).sum(-1), np.ones(len(logits))
    kept = targets != ignored
    number = np.where(kept, targets, 0)
    share = np.eye(classes)[number] * weight[number][:, None] * (1 - smoothing) + smoothing / classes * weight
    return np.where(kept, -(share * log_p).sum(-1), 0.0), np.where(kept, weight[number], 0.0)


def _mean(losses: Any, weights: Any) -> Any:
    return losses.sum() / weights.sum()


_LOGITS = (
    (normal(3, 4), _targets(3)), (normal(2, 3, 4), _targets(2, 3)), (normal(4), _targets()), (normal(0, 4), _targets(0)),
    (exact([[1000.0, -1000.0]]), np.array([0], np.int32)),
)  # fmt: skip
_WEIGHT = positive(4)
_SOFT = exact(positive(3, 4) / positive(3, 4).sum(1, keepdims=True))

CLASSES = [
    Row("cross_entropy", lambda x, t: f.cross_entropy(x, t, reduction="none"), _cross_entropy, _LOGITS,
        torch=lambda x, t: tf.cross_entropy(x.reshape(-1, x.shape[-1]), t.long().reshape(-1), reduction="none").reshape(t.shape)),
    Row("cross_entropy hopeless", lambda x, t: f.cross_entropy(x, t, reduction="none"), _cross_entropy, (),
        ((exact([[0.0, -INF, 1.0]]), np.array([1], np.int32)),)),
    Row("cross_entropy mean", lambda x, t: f.cross_entropy(x, t), lambda x, t: _cross_entropy(x, t).mean(), _LOGITS[:2]),
    Row("cross_entropy sum", lambda x, t: f.cross_entropy(x, t, reduction="sum"), lambda x, t: _cross_entropy(x, t).sum(), _LOGITS[:1]),
    Row("cross_entropy axis", lambda x, t: f.cross_entropy(x, t, axis=1, reduction="none"),
        lambda x, t: _cross_entropy(np.moveaxis(x, 1, -1), t), ((normal(2, 4, 3), _targets(2, 3)), (normal(2, 4), _targets(2)))),
    *(
        Row(f"cross_entropy smoothing {s} ignored {i} weight {w is not None} {r}",
            lambda x, t, s=s, i=i, w=w, r=r: f.cross_entropy(
                x, t, label_smoothing=s, ignore_index=i, weight=None if w is None else _beside(w, x), reduction=r),
            lambda x, t, s=s, i=i, w=w, r=r: (_mean if r == "mean" else lambda losses, _: losses)(*_whole(x, t, w, s, i)),
            ((normal(3, 4), np.array([2, 0, 1], np.int32)),), factor=2)
        for s, i, w, r in product((0.0, 0.3), (0, 7), (None, _WEIGHT), ("mean", "none"))
    ),
    Row("cross_entropy ignored, out of range", lambda x, t: f.cross_entropy(x, t, ignore_index=-100, reduction="none"),
        lambda x, t: _whole(x, t)[0], ((normal(3, 4), np.array([2, -100, 1], np.int32)),)),
    *(
        Row(f"cross_entropy soft {s} weight {w is not None}",
            lambda x, t, s=s, w=w: f.cross_entropy(x, t, label_smoothing=s, weight=None if w is None else _beside(w, x)),
            lambda x, t, s=s, w=w: _mean(*_whole(x, t, w, s)), ((normal(3, 4), _SOFT),), factor=2)
        for s, w in product((0.0, 0.3), (None, _WEIGHT))
    ),
    Row("cross_entropy soft, axis", lambda x, t: f.cross_entropy(x, t, axis=0, reduction="none"),
        lambda x, t: _whole(x.T, t.T)[0], ((normal(4, 3), normal(3, 4).T),), factor=2),
    Row("nll_loss", lambda x, t: f.nll_loss(x, t, reduction="none"), _chosen, _LOGITS[:4]),
    Row("nll_loss mean", lambda x, t: f.nll_loss(x, t, weight=_beside(_WEIGHT, x), ignore_index=0),
        lambda x, t: _mean(np.where(t == 0, 0.0, _chosen(x, t) * _WEIGHT[t]), np.where(t == 0, 0.0, _WEIGHT[t])),
        ((normal(3, 4), np.array([2, 0, 1], np.int32)),)),
    Row("nll_loss axis", lambda x, t: f.nll_loss(x, t, axis=1), lambda x, t: _chosen(np.moveaxis(x, 1, -1), t).mean(),
        ((normal(2, 4, 3), _targets(2, 3)),)),
]  # fmt: skip


def _beside(values: Any, x: Any) -> Any:
    return px.tensor(values, device=x.device)


_P = exact(unit(3, 4) * 0.5 + 0.5)
_Q = exact(np.abs(unit(3, 4)))


def _binary(p: Any, t: Any) -> Any:
    return -(t * np.maximum(np.log(p), -100) + (1 - t) * np.maximum(np.log1p(-p), -100))


def _binary_logits(x: Any, t: Any, positive: Any = 1.0) -> Any:
    return np.logaddexp(0.0, x) * (1 - t) + positive * t * np.logaddexp(0.0, -x)


BINARY = [
    Row("binary_cross_entropy", lambda p, t: f.binary_cross_entropy(p, t, reduction="none"), _binary, ((_P, _Q), (normal(0), normal(0))),
        ((exact([0.0, 1.0, 0.0, 1.0]), exact([0.0, 1.0, 1.0, 0.0])),), factor=2),
    Row("binary_cross_entropy weight", lambda p, t, w: f.binary_cross_entropy(p, t, weight=w),
        lambda p, t, w: (_binary(p, t) * w).mean(), ((_P, _Q, positive(4)),), constant=(2,), factor=2),
    Row("binary_cross_entropy_with_logits", lambda x, t: f.binary_cross_entropy_with_logits(x, t, reduction="none"), _binary_logits,
        ((normal(3, 4), _Q), (exact([-1000.0, 1000.0, 0.0]), exact([0.5, 0.5, 1.0])), (normal(0), normal(0)))),
    Row("binary_cross_entropy_with_logits weights",
        lambda x, t, w, p: f.binary_cross_entropy_with_logits(x, t, weight=w, pos_weight=p, reduction="sum"),
        lambda x, t, w, p: (_binary_logits(x, t, p) * w).sum(), ((normal(3, 4), _Q, positive(3, 1), positive(4)),), constant=(2, 3),
        factor=2),
]  # fmt: skip


# --- regression, distributions, vectors


def _huber(x: Any, y: Any, delta: float) -> Any:
    d = np.abs(x - y)
    return np.where(d <= delta, 0.5 * d**2, delta * (d - 0.5 * delta))


_PAIRS = ((normal(3, 4), other(3, 4)), (normal(), other()), (normal(0, 4), normal(0, 4)))


def _losses(name: str, reference: Callable[..., Any], samples: Any = _PAIRS, **options: Any) -> list[Row]:
    """Rows for the reductions "none", "sum" and "mean"."""
    suffix = "".join(f" {k}={v}" for k, v in options.items())
    return [
        Row(f"{name}{suffix}", lambda *a: getattr(f, name)(*a, reduction="none", **options), reference, samples, factor=2),
        Row(f"{name}{suffix} sum", lambda *a: getattr(f, name)(*a, reduction="sum", **options), lambda *a: reference(*a).sum(), samples[:1], factor=4),
        Row(f"{name}{suffix} mean", lambda *a: getattr(f, name)(*a, **options), lambda *a: reference(*a).mean(), samples[:1], factor=2),
    ]  # fmt: skip


def _kl(log_p: Any, t: Any) -> Any:
    return sp.xlogy(t, t) - np.where(t == 0, 0.0, t * log_p)


def _poisson(x: Any, t: Any, log_input: bool = True, full: bool = False) -> Any:
    y = np.exp(x) - t * x if log_input else x - t * np.log(x + 1e-8)
    with np.errstate(all="ignore"):
        return y + np.where(t > 1, t * np.log(t) - t + 0.5 * np.log(2 * np.pi * t), 0.0) if full else y


def _contrastive(x: Any) -> Any:
    return 0.5 * (sp.logsumexp(x, 1) + sp.logsumexp(x, 0)) - np.diag(x)


def _gaussian(x: Any, t: Any, v: Any, full: bool = False) -> Any:
    v = np.maximum(v, 1e-6)
    return 0.5 * (np.log(v) + (x - t) ** 2 / v) + (0.5 * np.log(2 * np.pi) if full else 0.0)


def _triplet(a: Any, p: Any, n: Any, norm: float = 2.0) -> Any:
    near, far = (((np.abs(a - o + 1e-6)) ** norm).sum(-1) ** (1 / norm) for o in (p, n))
    return np.maximum(near - far + 1.0, 0.0)


def _cosine(x: Any, y: Any, axis: int = -1) -> Any:
    lengths = [np.maximum(np.sqrt((z**2).sum(axis)), 1e-8) for z in (x, y)]
    return (x * y).sum(axis) / (lengths[0] * lengths[1])


_SIGNS = exact(np.where(normal(3, 4) > 0, 1.0, -1.0))

NUMBERS = [
    *_losses("mse_loss", lambda x, y: (x - y) ** 2),
    *_losses("l1_loss", lambda x, y: np.abs(x - y)),
    *_losses("huber_loss", lambda x, y: _huber(x, y, 1.0)),
    *_losses("huber_loss", lambda x, y: _huber(x, y, 0.5), delta=0.5),
    *_losses("smooth_l1_loss", lambda x, y: _huber(x, y, 1.0)),
    *_losses("smooth_l1_loss", lambda x, y: _huber(x, y, 0.25) / 0.25, beta=0.25),
    *_losses("smooth_l1_loss", lambda x, y: np.abs(x - y), beta=0.0),
    *_losses("kl_div", _kl, ((normal(3, 4), positive(3, 4)), (normal(0), normal(0)))),
    *_losses("kl_div", lambda x, y: np.exp(y) * (y - x), log_target=True),
    Row("kl_div of zeros", lambda x, y: f.kl_div(x, y), lambda x, y: _kl(x, y).mean(), ((normal(3, 4), np.maximum(other(3, 4), 0.0)),),
        ((exact([-INF, -1.0]), exact([0.0, 1.0])),), constant=(1,)),
    *_losses("contrastive_loss", _contrastive, ((normal(5, 5),), (normal(1, 1),))),
    *_losses("sigmoid_contrastive_loss", lambda x: np.logaddexp(0.0, np.where(np.eye(len(x)) > 0, -x, x)).sum(1), ((normal(5, 5),),)),
    *_losses("poisson_nll_loss", _poisson, ((normal(3, 4), positive(3, 4)),)),
    *_losses("poisson_nll_loss", lambda x, y: _poisson(x, y, full=True), ((normal(3, 4), positive(3, 4)),), full=True),
    *_losses("poisson_nll_loss", lambda x, y: _poisson(x, y, log_input=False), ((positive(3, 4), positive(3, 4)),), log_input=False),
    *_losses("gaussian_nll_loss", _gaussian, ((normal(3, 4), other(3, 4), positive(3, 4)), (normal(3, 4), other(3, 4), positive(3, 1)))),
    *_losses("gaussian_nll_loss", lambda x, y, v: _gaussian(x, y, v, True), ((normal(3, 4), other(3, 4), positive(4)),), full=True),
    Row("gaussian_nll_loss, too small a variance", lambda x, y, v: f.gaussian_nll_loss(x, y, v, epsilon=0.5),
        lambda x, y, v: (0.5 * (np.log(np.maximum(v, 0.5)) + (x - y) ** 2 / np.maximum(v, 0.5))).mean(), ((normal(3), other(3), exact([0.1, 0.7, 2.0])),),
        torch=lambda x, y, v: tf.gaussian_nll_loss(x, y, v, eps=0.5), second=False),
    *_losses("hinge_embedding_loss", lambda x, y: np.where(y == 1, x, np.maximum(0.0, 1.0 - x)), ((normal(3, 4), _SIGNS),))[:1],
    Row("margin_ranking_loss", lambda x, y, t: f.margin_ranking_loss(x, y, t, margin=0.5),
        lambda x, y, t: np.maximum(0.5 - t * (x - y), 0.0).mean(), ((normal(3, 4), other(3, 4), _SIGNS),)),
    *_losses("triplet_margin_loss", _triplet, ((normal(3, 4), other(3, 4), normal(4)), (normal(4), other(4), positive(4)))),
    *_losses("triplet_margin_loss", lambda a, p, n: _triplet(a, p, n, 3.0), ((normal(3, 4), other(3, 4), normal(4)),), p=3.0)[:1],
    Row("cosine_similarity", lambda x, y: f.cosine_similarity(x, y), _cosine,
        ((normal(3, 4), other(3, 4)), (normal(3, 4), normal(4)), (normal(0, 4), normal(0, 4))), factor=4),
    Row("cosine_similarity axis", lambda x, y: f.cosine_similarity(x, y, axis=0), lambda x, y: _cosine(x, y, 0),
        ((normal(3, 4), other(3, 4)),), factor=4),
]  # fmt: skip


# --- connectionist temporal classification


def _spelled(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    merged = [label for n, label in enumerate(path) if n == 0 or label != path[n - 1]]
    return tuple(label for label in merged if label != blank)


def _ctc(log_p: Any, targets: Any, steps: Any, lengths: Any, blank: int = 0) -> Any:
    """By enumerating all paths."""
    losses = []
    for n in range(len(targets)):
        target = tuple(targets[n, : lengths[n]])
        paths = product(range(log_p.shape[2]), repeat=int(steps[n]))
        total = sum(
            np.exp(sum(log_p[t, n, k] for t, k in enumerate(path))) for path in paths if _spelled(path, blank) == target
        )
        losses.append(-np.log(total))
    return np.array(losses).reshape(len(targets))


def _int(*values: Any) -> Any:
    return np.array(values, np.int32)


_CTC = (
    (normal(4, 3, 3), _int([1, 2], [1, 1], [2, 0]), _int(4, 4, 3), _int(2, 2, 1)),
    (normal(3, 2, 3), _int([1, 2, 1], [2, 9, 9]), _int(3, 2), _int(3, 1)),
    (normal(3, 2, 3), _int([1], [2]), _int(3, 1), _int(0, 0)),
    (normal(2, 1, 2), np.zeros((1, 0), np.int32), _int(2), _int(0)),
    (normal(2, 0, 3), np.zeros((0, 2), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32)),
)
_IMPOSSIBLE = (normal(2, 3, 3), _int([1, 1], [1, 2], [1, 2]), _int(2, 1, 0), _int(2, 2, 0))

CTC = [
    Row("ctc_loss", lambda x, t, i, n: f.ctc_loss(x.log_softmax(-1), t, i, n, reduction="none"),
        lambda x, t, i, n: _ctc(sp.log_softmax(x, -1), t, i, n), _CTC, (_IMPOSSIBLE,), factor=4),
    Row("ctc_loss of anything", lambda x, t, i, n: f.ctc_loss(x, t, i, n, reduction="none"), _ctc, _CTC[:2], factor=4),
    Row("ctc_loss blank", lambda x, t, i, n: f.ctc_loss(x, t, i, n, blank=2, reduction="sum"),
        lambda x, t, i, n: _ctc(x, t, i, n, 2).sum(), ((normal(3, 2, 3), _int([1, 0], [0, 0]), _int(3, 3), _int(2, 2)),), factor=4),
    Row("ctc_loss mean", lambda x, t, i, n: f.ctc_loss(x, t, i, n), lambda x, t, i, n: (_ctc(x, t, i, n) / np.maximum(n, 1)).mean(),
        _CTC[:1], factor=4),
    Row("ctc_loss zero_infinity", lambda x, t, i, n: f.ctc_loss(x.log_softmax(-1), t, i, n, zero_infinity=True, reduction="none"),
        lambda x, t, i, n: np.where(np.isinf(y := _ctc(sp.log_softmax(x, -1), t, i, n)), 0.0, y), (_IMPOSSIBLE,), second=False,
        torch=lambda x, t, i, n: tf.ctc_loss(x.log_softmax(-1), t, i, n, zero_infinity=True, reduction="none"), factor=4),
    Row("ctc_loss, certain", lambda x, t, i, n: f.ctc_loss(x, t, i, n, reduction="none"), _ctc, (),
        ((exact([[[-INF, 0.0, -INF]], [[-INF, 0.0, -INF]]]), _int([1]), _int(2), _int(1)),)),
]  # fmt: skip

ROWS: list[Row] = [*CLASSES, *BINARY, *NUMBERS, *CTC]
