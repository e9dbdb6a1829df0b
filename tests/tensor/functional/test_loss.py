# pyright: reportArgumentType=false
"""What cannot be compared says what was tried, on what, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Autodiff(Torch())]


def ones(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def zeros(device: Any, *shape: int) -> Any:
    return px.zeros(shape, kind=px.Int, device=device)


def growing(name: str, *shapes: tuple[int, ...], **named: tuple[int, ...]) -> Any:
    """Operands that would broadcast to [3, 3], and no one would notice."""
    call: Callable[[Any], Any] = lambda d: getattr(f, name)(  # noqa: E731
        *(ones(d, *shape) for shape in shapes), **{what: ones(d, *shape) for what, shape in named.items()}
    )
    return call, ShapeError, (name, "(3,)", "(3, 1)")


_COLUMN, _ROW = (3, 1), (3,)

CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    **{
        f"{name} of a column and a row": growing(name, _COLUMN, _ROW)
        for name in (
            "mse_loss",
            "l1_loss",
            "huber_loss",
            "smooth_l1_loss",
            "kl_div",
            "poisson_nll_loss",
            "hinge_embedding_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
        )
    },
    "gaussian_nll_loss, target": growing("gaussian_nll_loss", _COLUMN, _ROW, _COLUMN),
    "gaussian_nll_loss, variance": growing("gaussian_nll_loss", _ROW, _ROW, _COLUMN),
    "margin_ranking_loss, operands": growing("margin_ranking_loss", _COLUMN, _ROW, _ROW),
    "margin_ranking_loss, target": growing("margin_ranking_loss", _ROW, _ROW, _COLUMN),
    "margin_ranking_loss, target of a row": growing("margin_ranking_loss", _COLUMN, _COLUMN, _ROW),
    "triplet_margin_loss, positive": growing("triplet_margin_loss", _ROW, _COLUMN, _ROW),
    "triplet_margin_loss, batches": (
        lambda d: f.triplet_margin_loss(ones(d, 3, 4), ones(d, 3, 1, 4), ones(d, 3, 4)),
        ShapeError,
        ("triplet_margin_loss", "positive of shape (3, 1, 4)", "anchor of shape (3, 4)"),
    ),
    "binary_cross_entropy, weight": growing("binary_cross_entropy", _ROW, _ROW, weight=_COLUMN),
    "binary_cross_entropy_with_logits, weight": growing("binary_cross_entropy_with_logits", _ROW, _ROW, weight=_COLUMN),
    "binary_cross_entropy_with_logits, pos_weight": growing(
        "binary_cross_entropy_with_logits", _ROW, _ROW, pos_weight=_COLUMN
    ),
    "cross_entropy shapes": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 3)),
        ShapeError,
        ("cross_entropy", "(3,)", "(2, 3)", "(2,)"),
    ),
    "cross_entropy soft shapes": (
        lambda d: f.cross_entropy(ones(d, 2, 3), ones(d, 2)),
        ShapeError,
        ("cross_entropy", "(2,)", "(2, 3)"),
    ),
    "cross_entropy bools": (
        lambda d: f.cross_entropy(ones(d, 2, 3), ones(d, 2).bool()),
        KindError,
        ("cross_entropy", "Bool", ".int()"),
    ),
    "cross_entropy logits": (
        lambda d: f.cross_entropy(zeros(d, 2, 3), zeros(d, 2)),
        KindError,
        ("cross_entropy", "logits", "Int", ".float()"),
    ),
    "cross_entropy range": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2) + 3),
        IndexRangeError,
        ("cross_entropy", "3", "less than 3"),
    ),
    "cross_entropy ignored": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2) - 1, ignore_index=-100),
        IndexRangeError,
        ("cross_entropy", "-1", "at least 0"),
    ),
    "cross_entropy weight": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2), weight=ones(d, 2)),
        ShapeError,
        ("cross_entropy", "weight", "(2,)", "3"),
    ),
    "cross_entropy smoothing": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2), label_smoothing=1.5),
        RangeError,
        ("cross_entropy", "label_smoothing", "1.5"),
    ),
    "cross_entropy soft ignored": (
        lambda d: f.cross_entropy(ones(d, 2, 3), ones(d, 2, 3), ignore_index=0),
        KindError,
        ("cross_entropy", "ignore_index", "Float"),
    ),
    "cross_entropy axis": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2), axis=2),
        ShapeError,
        ("cross_entropy", "2", "(2, 3)"),
    ),
    "reduction": (
        lambda d: f.cross_entropy(ones(d, 2, 3), zeros(d, 2), reduction="average"),
        RangeError,
        ("cross_entropy", "average", "mean"),
    ),
    "nll_loss shapes": (lambda d: f.nll_loss(ones(d, 2, 3), zeros(d, 3)), ShapeError, ("nll_loss", "(3,)", "(2, 3)")),
    "nll_loss range": (
        lambda d: f.nll_loss(ones(d, 2, 3), zeros(d, 2) + 5),
        IndexRangeError,
        ("nll_loss", "5", "less than 3"),
    ),
    "nll_loss floats": (lambda d: f.nll_loss(ones(d, 2, 3), ones(d, 2)), KindError, ("nll_loss", "Float", ".int()")),
    "mse_loss": (lambda d: f.mse_loss(ones(d, 2), ones(d, 2, 1)), ShapeError, ("mse_loss", "(2,)", "(2, 1)")),
    "l1_loss": (lambda d: f.l1_loss(ones(d, 2), zeros(d, 2)), KindError, ("l1_loss", "target", "Int", ".float()")),
    "huber_loss": (
        lambda d: f.huber_loss(ones(d, 2), ones(d, 2), delta=0.0),
        RangeError,
        ("huber_loss", "delta", "0.0"),
    ),
    "smooth_l1_loss": (
        lambda d: f.smooth_l1_loss(ones(d, 2), ones(d, 2), beta=-1.0),
        RangeError,
        ("smooth_l1_loss", "beta", "-1.0"),
    ),
    "binary_cross_entropy": (
        lambda d: f.binary_cross_entropy(ones(d, 2), ones(d, 3)),
        ShapeError,
        ("binary_cross_entropy", "(2,)", "(3,)"),
    ),
    "kl_div": (lambda d: f.kl_div(ones(d, 2), ones(d, 2), reduction="batchmean"), RangeError, ("kl_div", "batchmean")),
    "cosine_similarity": (lambda d: f.cosine_similarity(ones(d), ones(d)), ShapeError, ("cosine_similarity", "()")),
    "ctc_loss shape": (
        lambda d: f.ctc_loss(ones(d, 2, 3), zeros(d, 1, 1), zeros(d, 1), zeros(d, 1)),
        ShapeError,
        ("ctc_loss", "(2, 3)", "[time, n, classes]"),
    ),
    "ctc_loss targets": (
        lambda d: f.ctc_loss(ones(d, 2, 1, 3), zeros(d, 2, 1), zeros(d, 1), zeros(d, 1)),
        ShapeError,
        ("ctc_loss", "(2, 1)", "(2, 1, 3)"),
    ),
    "ctc_loss lengths": (
        lambda d: f.ctc_loss(ones(d, 2, 1, 3), zeros(d, 1, 1), zeros(d, 1) + 3, zeros(d, 1)),
        RangeError,
        ("ctc_loss", "input_lengths", "0 and 2", "3"),
    ),
    "ctc_loss target lengths": (
        lambda d: f.ctc_loss(ones(d, 2, 1, 3), zeros(d, 1, 1), zeros(d, 1), zeros(d, 1) - 1),
        RangeError,
        ("ctc_loss", "target_lengths", "0 and 1", "-1"),
    ),
    "ctc_loss class": (
        lambda d: f.ctc_loss(ones(d, 2, 1, 3), zeros(d, 1, 1) + 7, zeros(d, 1) + 2, zeros(d, 1) + 1),
        IndexRangeError,
        ("ctc_loss", "7", "less than 3"),
    ),
    "ctc_loss blank": (
        lambda d: f.ctc_loss(ones(d, 2, 1, 3), zeros(d, 1, 1), zeros(d, 1), zeros(d, 1), blank=3),
        RangeError,
        ("ctc_loss", "blank", "3"),
    ),
    "linear": (lambda d: f.linear(ones(d, 2, 3), ones(d, 2, 3)), ShapeError, ("linear", "(2, 3)")),
    "linear bias": (
        lambda d: f.linear(ones(d, 2, 3), ones(d, 3, 4), ones(d, 3)),
        ShapeError,
        ("linear", "bias", "(3,)", "(3, 4)"),
    ),
    "bilinear": (
        lambda d: f.bilinear(ones(d, 2, 3), ones(d, 2, 4), ones(d, 5, 4, 3)),
        ShapeError,
        ("bilinear", "(2, 3)", "(2, 4)", "(5, 4, 3)"),
    ),
    "embedding floats": (
        lambda d: f.embedding(ones(d, 2, 3), ones(d, 2)),
        KindError,
        ("embedding", "indices", "Float", ".int()"),
    ),
    "embedding range": (
        lambda d: f.embedding(ones(d, 2, 3), zeros(d, 2) + 2),
        IndexRangeError,
        ("embedding", "2", "size 2"),
    ),
    "embedding padding": (
        lambda d: f.embedding(ones(d, 2, 3), zeros(d, 2), padding_index=2),
        RangeError,
        ("embedding", "padding_index", "2"),
    ),
    "embedding weight": (
        lambda d: f.embedding(ones(d, 2), zeros(d, 2)),
        ShapeError,
        ("embedding", "[entries, width]", "(2,)"),
    ),
    "rotary_embedding": (
        lambda d: f.rotary_embedding(ones(d, 2, 3)),
        ShapeError,
        ("rotary_embedding", "even", "(2, 3)"),
    ),
    "pixel_shuffle": (lambda d: f.pixel_shuffle(ones(d, 3, 2, 2), 2), ShapeError, ("pixel_shuffle", "3", "2")),
    "pixel_unshuffle": (
        lambda d: f.pixel_unshuffle(ones(d, 3, 3, 2), 2),
        ShapeError,
        ("pixel_unshuffle", "(3, 3, 2)", "2"),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_errors(case: str, backend: Any) -> None:
    call, error, words = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
