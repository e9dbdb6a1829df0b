"""Classification losses."""

from __future__ import annotations

from typing import Any

from phlox.backend import Int
from phlox.config import config_of
from phlox.nn.loss.base import Loss, weights
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import Reduction


class CrossEntropyLoss(Loss):
    """The negative log-likelihood of targets under softmax(logits), with the classes along `axis`.

    Targets are class indices (Int, of the shape of the logits without the axis) or probabilities (Float, of the shape
    of the logits). `weight` has one factor per class for its losses, and the mean is then weighted. `label_smoothing`
    is the share of each target that is spread evenly over all classes (Szegedy et al. 2016). Rows whose target is
    `ignore_index` are ignored. Raises `IndexRangeError` if a class index is out of range.

    >>> import phlox as px
    >>> CrossEntropyLoss(label_smoothing=0.1)(px.zeros((2, 4)), px.tensor([0, 3])).item()
    1.386...
    """

    def __init__(
        self,
        *,
        axis: int = -1,
        weight: tuple[float, ...] | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.axis, self.weight = axis, None if weight is None else tuple(weight)
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index

    def __call__(self, logits: Tensor, targets: Tensor[Any, Any, Int] | Tensor) -> Tensor:
        return functional.cross_entropy(
            logits,
            targets,
            axis=self.axis,
            weight=weights(self.weight, logits),
            label_smoothing=self.label_smoothing,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class NllLoss(Loss):
    """-log_p of each target class, for log-probabilities along `axis`. Options as in `CrossEntropyLoss`.

    >>> import phlox as px
    >>> NllLoss()(px.tensor([[-1.0, -2.0]]), px.tensor([1])).item()
    2.0
    """

    def __init__(
        self,
        *,
        axis: int = -1,
        weight: tuple[float, ...] | None = None,
        ignore_index: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.axis, self.weight = axis, None if weight is None else tuple(weight)
        self.ignore_index = ignore_index

    def __call__(self, log_p: Tensor, targets: Tensor[Any, Any, Int]) -> Tensor:
        return functional.nll_loss(
            log_p,
            targets,
            axis=self.axis,
            weight=weights(self.weight, log_p),
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class BinaryCrossEntropyLoss(Loss):
    """-(target log p + (1 - target) log(1 - p)) for probabilities p; the logarithms are clamped to at least -100.

    For logits, `BinaryCrossEntropyWithLogitsLoss` is more accurate.

    >>> import phlox as px
    >>> BinaryCrossEntropyLoss()(px.tensor([0.5]), px.tensor([1.0])).item()
    0.693...
    """

    def __call__(self, p: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy(p, target, reduction=self.reduction)


class BinaryCrossEntropyWithLogitsLoss(Loss):
    """The binary cross-entropy of sigmoid(logits), without overflow or loss of precision.

    `pos_weight`, a scalar or one value per entry of the last axis, multiplies the term of the positive targets.

    >>> import phlox as px
    >>> BinaryCrossEntropyWithLogitsLoss(pos_weight=2.0)(px.tensor([0.0]), px.tensor([1.0])).item()
    1.386...
    """

    def __init__(self, *, pos_weight: float | tuple[float, ...] | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.pos_weight = pos_weight

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        pos_weight = self.pos_weight
        per_class = (pos_weight,) if isinstance(pos_weight, (int, float)) else pos_weight
        return functional.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weights(per_class, logits), reduction=self.reduction
        )


class CtcLoss(Loss):
    """Connectionist temporal classification (Graves et al. 2006): see `phlox.functional.ctc_loss`.

    It takes log-probabilities [time, n, classes], targets [n, length], and the lengths of both, [n]. `zero_infinity`
    gives zero, not infinity, for a target that no alignment can produce.

    >>> import phlox as px
    >>> one = px.tensor([1])
    >>> CtcLoss()(px.zeros((1, 1, 2)).log_softmax(), px.tensor([[1]]), one, one).item()
    0.693...
    """

    def __init__(self, *, blank: int = 0, zero_infinity: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def __call__(
        self,
        log_p: Tensor,
        targets: Tensor[Any, Any, Int],
        input_lengths: Tensor[Any, Any, Int],
        target_lengths: Tensor[Any, Any, Int],
    ) -> Tensor:
        return functional.ctc_loss(
            log_p,
            targets,
            input_lengths,
            target_lengths,
            blank=self.blank,
            zero_infinity=self.zero_infinity,
            reduction=self.reduction,
        )


class CrossEntropyLossConfig(config_of(CrossEntropyLoss)):
    """Hyper-parameters of `CrossEntropyLoss`."""


class NllLossConfig(config_of(NllLoss)):
    """Hyper-parameters of `NllLoss`."""


class BinaryCrossEntropyLossConfig(config_of(BinaryCrossEntropyLoss)):
    """Hyper-parameters of `BinaryCrossEntropyLoss`."""


class BinaryCrossEntropyWithLogitsLossConfig(config_of(BinaryCrossEntropyWithLogitsLoss)):
    """Hyper-parameters of `BinaryCrossEntropyWithLogitsLoss`."""


class CtcLossConfig(config_of(CtcLoss)):
    """Hyper-parameters of `CtcLoss`."""
