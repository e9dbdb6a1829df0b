"""Regression losses."""

from __future__ import annotations

from phlox.config import config_of
from phlox.nn.loss.base import Loss
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import Reduction


class MseLoss(Loss):
    """The mean squared error: (prediction - target)^2. The shapes must be equal.

    >>> import phlox as px
    >>> MseLoss()(px.tensor([1.0, 4.0]), px.tensor([1.0, 2.0])).item()
    2.0
    """

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(prediction, target, reduction=self.reduction)


class L1Loss(Loss):
    """The mean absolute error (MAE): |prediction - target|. The shapes must be equal.

    >>> import phlox as px
    >>> L1Loss(reduction="sum")(px.tensor([1.0, 4.0]), px.tensor([0.0, 2.0])).item()
    3.0
    """

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.l1_loss(prediction, target, reduction=self.reduction)


class HuberLoss(Loss):
    """With d = prediction - target: d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2) (Huber 1964).

    >>> import phlox as px
    >>> HuberLoss(reduction="none")(px.tensor([0.0, 0.0]), px.tensor([1.0, 3.0])).tolist()
    [0.5, 2.5]
    """

    def __init__(self, *, delta: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.huber_loss(prediction, target, delta=self.delta, reduction=self.reduction)


class SmoothL1Loss(Loss):
    """`HuberLoss` with delta = beta, divided by beta: |d|, smoothed near zero (Girshick 2015).

    >>> import phlox as px
    >>> SmoothL1Loss(beta=2.0, reduction="none")(px.tensor([0.0, 0.0]), px.tensor([1.0, 3.0])).tolist()
    [0.25, 2.0]
    """

    def __init__(self, *, beta: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.smooth_l1_loss(prediction, target, beta=self.beta, reduction=self.reduction)


class MseLossConfig(config_of(MseLoss)):
    """Hyper-parameters of `MseLoss`."""


class L1LossConfig(config_of(L1Loss)):
    """Hyper-parameters of `L1Loss`."""


class HuberLossConfig(config_of(HuberLoss)):
    """Hyper-parameters of `HuberLoss`."""


class SmoothL1LossConfig(config_of(SmoothL1Loss)):
    """Hyper-parameters of `SmoothL1Loss`."""
