"""What the means of losses weigh: totals and weights of any parts are those of the whole, against PyTorch in float64.

Serves: phlox/tensor/noted_means.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.functional.loss_weight import Loss
from phlox.tensor.noted_means import noting_means
from tests.metrics.support import traced_only as traced_only

Arrays = list[np.ndarray[Any, Any]]
ROWS, CLASSES = 12, 4
CUTS = [(12,), (4, 4, 4), (1, 6, 2, 3), (5, 7)]
rng = np.random.default_rng(0)
LOGITS, OTHER, FAR = (rng.normal(size=(ROWS, CLASSES)) for _ in range(3))
CLASS = rng.integers(0, CLASSES, ROWS)
MASKED = np.where(np.arange(ROWS) % 3 == 0, CLASS, -100)
MASKED[4:8] = -100  # a part in which nothing counts
PROBABILITIES = np.exp(OTHER) / np.exp(OTHER).sum(1, keepdims=True)
TRUTH = (FAR > 0).astype(np.float64)
SIGN = np.where(FAR > 0, 1.0, -1.0)
BY_CLASS, BY_LABEL = (0.5, 2.0, 0.0, 1.5), (0.5, 2.0, 1.0, 1.5)
F = torch.nn.functional
REFERENCE: Any = F


def ce(weight: tuple[float, ...] | None = None, **options: Any) -> tuple[Any, Any]:
    """Cross-entropy here and there."""

    def ours(o: px.Tensor, t: Any) -> px.Tensor:
        factors = None if weight is None else px.tensor(weight, device=o.device)
        return nn.cross_entropy_loss(o, t, weight=factors, **options)

    def theirs(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        factors = None if weight is None else torch.tensor(weight, dtype=torch.float64)
        return F.cross_entropy(o, t, weight=factors, **options)

    return ours, theirs


def both(ours: Callable[..., Any], name: str, **options: Any) -> tuple[Any, Any]:
    return ours, lambda *args: getattr(REFERENCE, name)(*args, **options)


LOSSES: dict[str, tuple[tuple[Any, Any], Arrays]] = {
    "cross entropy": (ce(), [LOGITS, CLASS]),
    "cross entropy, ignored": (ce(ignore_index=-100), [LOGITS, MASKED]),
    "cross entropy, class weights": (ce(weight=BY_CLASS), [LOGITS, CLASS]),
    "cross entropy, all": (ce(weight=BY_CLASS, ignore_index=-100, label_smoothing=0.1), [LOGITS, MASKED]),
    "cross entropy, probabilities": (ce(weight=BY_LABEL, label_smoothing=0.1), [LOGITS, PROBABILITIES]),
    "nll": (
        both(lambda o, t: nn.nll_loss(o, t, weight=px.tensor(BY_CLASS, device=o.device), ignore_index=-100),
             "nll_loss", weight=torch.tensor(BY_CLASS, dtype=torch.float64), ignore_index=-100),
        [LOGITS, MASKED],
    ),
    "binary": (
        both(lambda o, t: nn.binary_cross_entropy_loss(o, t, weight=px.tensor(BY_LABEL, device=o.device)),
             "binary_cross_entropy", weight=torch.tensor(BY_LABEL, dtype=torch.float64)),
        [PROBABILITIES, TRUTH],
    ),
    "binary of logits": (
        both(
            lambda o, t: nn.binary_cross_entropy_with_logits_loss(
                o, t, pos_weight=px.tensor(BY_LABEL, device=o.device)
            ),
            "binary_cross_entropy_with_logits", pos_weight=torch.tensor(BY_LABEL, dtype=torch.float64)),
        [LOGITS, TRUTH],
    ),
    "mse": (both(nn.mse_loss, "mse_loss"), [LOGITS, OTHER]),
    "l1": (both(nn.l1_loss, "l1_loss"), [LOGITS, OTHER]),
    "huber": (both(nn.huber_loss, "huber_loss"), [LOGITS, OTHER]),
    "smooth l1": (both(nn.smooth_l1_loss, "smooth_l1_loss"), [LOGITS, OTHER]),
    "smooth l1 as l1": (both(lambda o, t: nn.smooth_l1_loss(o, t, beta=0.0), "l1_loss"), [LOGITS, OTHER]),
    "kl": ((nn.kl_div_loss, lambda o, t: F.kl_div(o, t, reduction="none").mean()), [LOGITS, PROBABILITIES]),
    "poisson": (both(nn.poisson_nll_loss, "poisson_nll_loss"), [LOGITS, TRUTH]),
    "gaussian": (both(nn.gaussian_nll_loss, "gaussian_nll_loss"), [LOGITS, OTHER, PROBABILITIES]),
    "hinge": (both(nn.hinge_embedding_loss, "hinge_embedding_loss"), [LOGITS, SIGN]),
    "ranking": (both(lambda x, y, t: nn.margin_ranking_loss(x, y, t, margin=0.3), "margin_ranking_loss", margin=0.3),
                [LOGITS, OTHER, SIGN]),
    "triplet": (both(nn.triplet_margin_loss, "triplet_margin_loss"), [LOGITS, OTHER, FAR]),
    "ctc": (
        (lambda x, t, n: nn.ctc_loss(x.reshape((len(x), 2, 2)).moveaxis(0, 1).log_softmax(), t, n, n),
         lambda x, t, n: (F.ctc_loss(x.reshape(len(x), 2, 2).movedim(0, 1).log_softmax(-1), t, n, n, reduction="none")
                          / n.clamp(min=1)).mean()),
        [LOGITS, np.ones((ROWS, 1), np.int64), np.arange(ROWS) % 2],
    ),
}  # fmt: skip


def whole(name: str) -> tuple[float, np.ndarray[Any, Any]]:
    """PyTorch's mean of all rows, and its gradient."""
    (_, theirs), arrays = LOSSES[name]
    first, *rest = [torch.tensor(x) for x in arrays]
    first.requires_grad_()
    mean = theirs(first, *rest)
    mean.backward()
    assert first.grad is not None
    return mean.item(), first.grad.numpy()


def measured(name: str, arrays: list[Any]) -> tuple[Any, Any, Any]:
    """The total, the weight and the gradient of the total, of some rows."""
    ours, first = LOSSES[name][0][0], arrays[0]
    with noting_means() as means:
        mean = ours(*arrays)
    noted, sums = means.of(mean)
    assert sums is not None
    loss = sums()
    assert noted is loss.weight or noted == loss.weight
    weight = loss.weight if isinstance(loss.weight, px.Tensor) else px.tensor(loss.weight, device=loss.total.device)
    return loss.total.detach(), weight.detach(), first.grad(loss.total.backward())


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64")], ids=repr)
@pytest.mark.parametrize("name", LOSSES)
def test_any_cut_into_parts_has_the_mean_and_the_gradient_of_the_whole(name: str, backend: Backend) -> None:
    want, gradient = whole(name)
    device = Autodiff(backend).device()
    for sizes in CUTS:
        stops = np.cumsum(sizes)
        found: list[tuple[float, float, Any]] = []
        for start, stop in zip(stops - sizes, stops, strict=True):
            arrays = [px.tensor(x[start:stop], device=device) for x in LOSSES[name][1]]
            total, weight, grad = measured(name, [arrays[0].require_grad(), *arrays[1:]])
            found.append((total.item(), weight.item(), grad.numpy()))
        weight = sum(one[1] for one in found)
        np.testing.assert_allclose(sum(one[0] for one in found) / weight, want, rtol=1e-12)
        got = np.concatenate([one[2] for one in found]) / weight
        np.testing.assert_allclose(got, gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    "backend", [Jax(), Torch(), NumPy(float="f16"), Torch(float="bf16"), Jax(float="f16")], ids=repr
)
@pytest.mark.parametrize("name", ["cross entropy, all", "mse"])
def test_a_compiled_step_and_half_precision(name: str, backend: Backend, traced_only: None) -> None:
    want, gradient = whole(name)
    device, half = Autodiff(backend).device(), backend.float_element in ("f16", "bf16")
    step = px.compile(lambda first, *rest: measured(name, [first.require_grad(), *rest]))
    found = []
    for start in range(0, ROWS, 4):
        arrays = [px.tensor(x[start : start + 4], device=device, kind=px.Float if x.dtype == np.float64 else px.Int)
                  for x in LOSSES[name][1]]  # fmt: skip
        found.append(step(*arrays))
    assert step.traces == int(backend.compiles)
    assert all(total.numpy().dtype == weight.numpy().dtype == np.float32 for total, weight, _ in found)
    weight = sum(one[1].item() for one in found)
    np.testing.assert_allclose(sum(one[0].item() for one in found) / weight, want, rtol=1e-2 if half else 1e-6)
    got = np.concatenate([np.asarray(one[2].numpy(), np.float64) for one in found]) / weight
    np.testing.assert_allclose(got, gradient, rtol=3e-2 if half else 1e-5, atol=2e-3 if half else 1e-7)


def test_what_is_noted() -> None:
    logits, targets = px.tensor(LOGITS), px.tensor(MASKED)

    def masked() -> px.Tensor:
        return nn.CrossEntropyLoss(ignore_index=-100)(logits, targets)

    unknown = (None, None)
    with noting_means() as outer:
        plain = nn.mse_loss(logits, logits)
        assert not outer.weighted
        with noting_means() as inner:
            mean = masked()
        thread = Thread(target=masked)
        thread.start()
        thread.join()
        assert not outer.weighted and inner.weighted and outer.of(mean) == unknown
        (_, found), (weight, of_plain) = inner.of(mean), outer.of(plain)
        assert found is not None and of_plain is not None and of_plain().weight == weight == LOGITS.size
        assert inner.of(mean + 0.0) == unknown and inner.of(0.5) == unknown
        np.testing.assert_allclose(found().mean.item(), mean.item(), rtol=1e-6)
        nn.cross_entropy_loss(logits, targets, ignore_index=-100, reduction="sum")
        assert not outer.weighted
        # Within a transformation the sums are of another trace, and known only to be unequal.
        means = px.vmap(lambda o, t: nn.cross_entropy_loss(o, t, ignore_index=-100))(
            logits.reshape((3, 4, CLASSES)), targets.reshape((3, 4))
        )
        assert outer.weighted and outer.of(means) == unknown and outer.of(means[0]) == unknown
    after = masked()
    assert outer.of(after) == unknown and inner.of(after) == unknown


@pytest.mark.parametrize("device", ["numpy", "torch", "jax"])
def test_losses_with_weights_of_ones_own(device: str) -> None:
    x = px.tensor([[1.0, 2.0], [math.nan, 4.0], [5.0, 6.0]], device=device)
    for weights, want in (
        (np.array([1.0, 0.0, 0.5]), (1.0 + 2.0 + 0.5 * 11.0, 3.0)),
        (np.array([True, False, True]), (14.0, 4.0)),
        (np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), (7.0, 3.0)),
        (np.zeros(3), (0.0, 0.0)),
    ):
        loss = Loss.of(x, px.tensor(weights, device=device))
        assert isinstance(loss.weight, px.Tensor) and (loss.total.item(), loss.weight.item()) == want
        np.testing.assert_allclose(loss.mean.item(), want[0] / want[1] if want[1] else math.nan, rtol=1e-6)
        np.testing.assert_allclose(loss.part_of(loss.weight).item(), want[0] / want[1] if want[1] else 0.0, rtol=1e-6)
        assert loss.part_of(np.float64(8.0)).item() == want[0] / 8.0
    nothing = Loss(px.tensor(0.0, device=device), 0)
    assert math.isnan(nothing.mean.item()) and nothing.part_of(0).item() == 0.0
    assert (Loss.of(x[:1]).total.item(), Loss.of(x[:1]).weight) == (3.0, 2.0)
    half = px.tensor(np.ones(4096), device=Autodiff(NumPy(float="f16")))
    counted = Loss.of(half, half > 0.0)
    assert isinstance(counted.weight, px.Tensor) and counted.weight.item() == 4096.0
    assert Loss(half[0], (half > 0.0).int().sum()).mean.numpy().dtype == np.float32


def test_what_is_no_loss() -> None:
    x, one = px.tensor([1.0, 2.0]), px.tensor(1.0)
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (1.0, 1.0, KindError, "total must be a Float scalar, got float"),
        (x, 1.0, ShapeError, r"total must be a scalar, got shape \(2,\)"),
        (px.tensor(1), 1.0, KindError, "total must be a Float scalar, got Int"),
        (one, x, ShapeError, "weight must be a scalar"),
        (one, one > 0.0, KindError, "weight must be a Float scalar, got Bool"),
        (one, True, KindError, "got bool"),
        (one, None, KindError, "weight must be a number or a scalar tensor, got NoneType"),
        (one, -1.0, RangeError, "not negative"),
        (one, math.nan, RangeError, "finite"),
    ]
    for total, weight, error, message in wrong:
        with pytest.raises(error, match=message):
            Loss(total, weight)
    with pytest.raises(ShapeError, match="do not fit losses"):
        Loss.of(x, px.ones((3,)))
