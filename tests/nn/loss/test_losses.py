"""Losses as modules and functions against PyTorch's: values and gradients, every option and reduction.

Serves: phlox/nn/loss/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, PhloxError, ShapeError

BACKENDS: list[Backend] = [NumPy(float="f64"), NumPy(), Jax(), Torch()]
RNG = np.random.default_rng(0)
LOGITS, CLASSES = RNG.normal(size=(6, 4)) * 3, np.array([0, 3, 1, 1, 2, 0])
SOFT = RNG.dirichlet(np.ones(4), size=6)
P, HARD = RNG.uniform(0.02, 0.98, size=(5, 3)), RNG.integers(0, 2, size=(5, 3)).astype(float)
A, B, C = (RNG.normal(size=(5, 3)) * 2 for _ in range(3))
SIGNS = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
COUNTS = RNG.poisson(3.0, size=(5, 3)).astype(float)
WEIGHT = (0.5, 1.0, 2.0, 3.0)
PAIRS_OF_FIVE = RNG.normal(size=(5, 5)) * 3
STEPS, WORDS, LONG, SHORT = RNG.normal(size=(7, 2, 4)), np.array([[1, 2, 2], [3, 1, 0]]), [7, 6], [3, 2]

Row = tuple[str, dict[str, Any], Callable[..., Any], tuple[Any, ...]]


def moved(loss: Any) -> Any:
    """PyTorch has the classes on axis 1."""
    return lambda x, *rest, **options: loss(x.movedim(-1, 1), *rest, **options)


def ctc(log_p: Any, targets: Any, long: Any, short: Any, **options: Any) -> Any:
    # PyTorch takes tuples of integers, too, which its stubs do not say.
    lengths: Any = [tuple(long.tolist()), tuple(short.tolist())]
    return F.ctc_loss(log_p, targets, *lengths, **options)


def kl_div(x: Any, y: Any, *, reduction: str, log_target: bool = False) -> Any:
    """With the mean over all elements, of which PyTorch warns."""
    losses = F.kl_div(x, y, reduction="none", log_target=log_target)
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


def contrastive(x: Any, *, reduction: str) -> Any:
    """As in CLIPModel of transformers."""
    labels = torch.arange(len(x))
    losses = (F.cross_entropy(x, labels, reduction="none") + F.cross_entropy(x.T, labels, reduction="none")) / 2.0
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


def sigmoid_contrastive(x: Any, *, reduction: str) -> Any:
    """As in SiglipModel of transformers."""
    losses = -F.logsigmoid((2.0 * torch.eye(len(x)) - 1.0) * x).sum(-1)
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


def weighted(**options: Any) -> Any:
    def loss(x: Any, y: Any, **reduction: Any) -> Any:
        return F.cross_entropy(x, y, torch.tensor(WEIGHT, dtype=x.dtype), **options, **reduction)

    return loss


def positive(x: Any, y: Any, **reduction: Any) -> Any:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(x, y, pos_weight=weight, **reduction)


ROWS: list[Row] = [
    ("CrossEntropyLoss", {}, F.cross_entropy, (LOGITS, CLASSES)),
    ("CrossEntropyLoss", {"weight": WEIGHT}, weighted(), (LOGITS, CLASSES)),
    (
        "CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.2, "ignore_index": 1},
        weighted(label_smoothing=0.2, ignore_index=1), (LOGITS, CLASSES),
    ),
    ("CrossEntropyLoss", {"axis": 1}, F.cross_entropy, (LOGITS.reshape(2, 3, 4).swapaxes(1, 2), CLASSES.reshape(2, 3))),
    ("CrossEntropyLoss", {}, moved(F.cross_entropy), (LOGITS.reshape(2, 3, 4), CLASSES.reshape(2, 3))),
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, lambda *a, **o: F.cross_entropy(*a, label_smoothing=0.1, **o),
     (LOGITS, SOFT)),
    ("NllLoss", {"ignore_index": 3}, lambda *a, **o: F.nll_loss(*a, ignore_index=3, **o), (LOGITS, CLASSES)),
    ("BinaryCrossEntropyLoss", {}, F.binary_cross_entropy, (P, HARD)),
    ("BinaryCrossEntropyWithLogitsLoss", {}, F.binary_cross_entropy_with_logits, (A, HARD)),
    ("BinaryCrossEntropyWithLogitsLoss", {"pos_weight": (1.0, 2.0, 3.0)}, positive, (A, HARD)),
    ("MseLoss", {}, F.mse_loss, (A, B)),
    ("L1Loss", {}, F.l1_loss, (A, B)),
    ("HuberLoss", {"delta": 0.7}, lambda *a, **o: F.huber_loss(*a, delta=0.7, **o), (A, B)),
    ("SmoothL1Loss", {"beta": 0.5}, lambda *a, **o: F.smooth_l1_loss(*a, beta=0.5, **o), (A, B)),
    ("KlDivLoss", {}, kl_div, (LOGITS, SOFT)),
    ("KlDivLoss", {"log_target": True}, lambda *a, **o: kl_div(*a, log_target=True, **o), (LOGITS, np.log(SOFT))),
    ("PoissonNllLoss", {"full": True}, lambda *a, **o: F.poisson_nll_loss(*a, full=True, **o), (A, COUNTS)),
    (
        "PoissonNllLoss", {"log_input": False, "epsilon": 0.1},
        lambda *a, **o: F.poisson_nll_loss(*a, log_input=False, eps=0.1, **o), (P, COUNTS),
    ),
    ("GaussianNllLoss", {"full": True}, lambda *a, **o: F.gaussian_nll_loss(*a, full=True, **o), (A, B, P)),
    ("HingeEmbeddingLoss", {"margin": 2.0}, lambda *a, **o: F.hinge_embedding_loss(*a, margin=2.0, **o),
     (A[:, 0], SIGNS)),
    ("MarginRankingLoss", {"margin": 0.3}, lambda *a, **o: F.margin_ranking_loss(*a, margin=0.3, **o),
     (A[:, 0], B[:, 0], SIGNS)),
    ("TripletMarginLoss", {"margin": 2.0}, lambda *a, **o: F.triplet_margin_loss(*a, margin=2.0, **o), (A, B, C)),
    ("ContrastiveLoss", {}, contrastive, (PAIRS_OF_FIVE,)),
    ("SigmoidContrastiveLoss", {}, sigmoid_contrastive, (PAIRS_OF_FIVE,)),
    ("CtcLoss", {}, ctc, (STEPS, WORDS, np.array(LONG), np.array(SHORT))),
]  # fmt: skip


# JAX's kernels take long to compile: there the first case of each loss is enough.
FIRST = {name: options for name, options, *_ in reversed(ROWS)}
PAIRS = [(*row, backend) for row in ROWS for backend in BACKENDS if backend != Jax() or FIRST[row[0]] is row[1]]


def name_of(part: Any) -> str:
    return repr(part) if isinstance(part, (str, Backend)) else ""


@pytest.mark.parametrize(("name", "options", "reference", "inputs", "backend"), PAIRS, ids=name_of)
def test_losses(name: str, options: dict[str, Any], reference: Any, inputs: Any, backend: Backend) -> None:
    device = Autodiff(backend).device()
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11} if "f64" in repr(backend) else {"rtol": 3e-4, "atol": 3e-5}
    reductions = ("mean", "sum", "none") if "f64" in repr(backend) else ("mean",)
    for reduction in reductions:
        config = getattr(nn, f"{name}Config")(**options, reduction=reduction)
        assert type(config).from_json(config.to_json()) == config
        module = config.init()
        assert type(module) is getattr(nn, name) and module.params() == []
        kind = [px.Int if values.dtype.kind == "i" else px.Float for values in inputs]
        own = [px.tensor(values, device=device, kind=k) for values, k in zip(inputs, kind, strict=True)]
        own[0] = x = own[0].require_grad()
        other: list[Any] = [torch.tensor(values) for values in inputs]
        loss = (module(own[0].log_softmax(-1), *own[1:])) if name == "CtcLoss" else module(*own)
        other[0].requires_grad_()
        first = other[0].log_softmax(-1) if name == "CtcLoss" else other[0]
        expected = reference(first, *other[1:], reduction=reduction)
        assert loss.shape == tuple(expected.shape)
        np.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), **close)
        gradient = x.grad(loss.sum().backward())
        expected.sum().backward()
        assert gradient is not None
        np.testing.assert_allclose(gradient.numpy(), other[0].grad.numpy(), **close)


def test_every_loss_is_in_the_table() -> None:
    losses = {
        name
        for name, value in ((name, getattr(nn, name)) for name in nn.__all__)
        if isinstance(value, type) and issubclass(value, px.Module) and value.__module__.startswith("phlox.nn.loss")
    }
    assert losses == {name for name, *_ in ROWS} | {"CosineSimilarity"}
    # Their tests are those of their files.
    others = {"balance_loss", "distillation_loss", "dpo_loss", "linear_cross_entropy_loss"}
    functions = {name for name in nn.__all__ if name.endswith("_loss")} - others
    assert len(functions) == len(losses) - 1
    for loss in functions:
        assert callable(getattr(nn, loss))


def test_cosine_similarity() -> None:
    found = nn.CosineSimilarityConfig(0).init()(px.tensor(A, kind=px.Float), px.tensor(B, kind=px.Float))
    np.testing.assert_allclose(
        found.numpy(), F.cosine_similarity(torch.tensor(A), torch.tensor(B), dim=0).numpy(), rtol=1e-5
    )


INTEGERS: Any = px.arange(2)  # as a target of Float, which no type checker lets through

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nn.MseLoss(reduction="avg"), ConfigError, "MseLoss: reduction must be 'mean', 'sum' or 'none', got 'avg'"),  # type: ignore[arg-type]
    (lambda: nn.HuberLossConfig(reduction="avg"), ConfigError, "reduction"),  # type: ignore[arg-type]
    (lambda: nn.mse_loss(px.ones((2,)), px.ones((2, 1))), ShapeError, r"mse_loss: .*\(2,\).*\(2, 1\)"),
    (lambda: nn.MseLoss()(px.ones((2,)), INTEGERS), KindError, r"mse_loss: .*\.float\(\)"),
    (lambda: nn.CrossEntropyLoss()(px.ones((3, 2)), px.arange(2)), ShapeError, r"cross_entropy: .*\(2,\).*\(3, 2\)"),
    (lambda: nn.CrossEntropyLoss(weight=(1.0,))(px.ones((3, 2)), px.arange(3)), ShapeError, "weight of shape"),
    (lambda: nn.CrossEntropyLoss()(px.ones((3, 2)), px.arange(3)), PhloxError, "2"),
    (lambda: nn.ContrastiveLoss()(px.ones((3, 2))), ShapeError, r"contrastive_loss: .*\[n, n\], got shape \(3, 2\)"),
    (lambda: nn.HuberLoss(delta=0.0)(px.ones((2,)), px.ones((2,))), PhloxError, "delta must be positive"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_use(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
