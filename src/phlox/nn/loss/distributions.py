"""Losses between distributions."""

from __future__ import annotations

from phlox.config import config_of
from phlox.nn.loss.base import Loss
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import Reduction


class KlDivLoss(Loss):
    """target (log target - log_p), elementwise. Its sum is the divergence KL(target || p) (Kullback, Leibler 1951).

    The target holds probabilities, or their logarithms if `log_target`. The "mean" is over elements. For the mean
    divergence of a batch, use "sum" and divide by the batch size.

    >>> import phlox as px
    >>> p = px.tensor([0.25, 0.75])
    >>> KlDivLoss(reduction="sum")(p.log(), p).item()
    0.0
    """

    def __init__(self, *, log_target: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target

    def __call__(self, log_p: Tensor, target: Tensor) -> Tensor:
        return functional.kl_div(log_p, target, log_target=self.log_target, reduction=self.reduction)


class PoissonNllLoss(Loss):
    """The negative log-likelihood of counts under Poisson distributions, without the constant log(target!).

    By default the prediction is the log of the rate. With `log_input=False` it is the rate, to which `epsilon` is
    added. `full` adds Stirling's formula where the target is above 1.

    >>> import phlox as px
    >>> PoissonNllLoss()(px.tensor([0.0]), px.tensor([3.0])).item()
    1.0
    """

    def __init__(
        self, *, log_input: bool = True, full: bool = False, epsilon: float = 1e-8, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_input, self.full, self.epsilon = log_input, full, epsilon

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.poisson_nll_loss(
            prediction,
            target,
            log_input=self.log_input,
            full=self.full,
            epsilon=self.epsilon,
            reduction=self.reduction,
        )


class GaussianNllLoss(Loss):
    """The negative log-likelihood under normal distributions: (log variance + (prediction - target)^2 / variance) / 2.

    The variance broadcasts, and is at least `epsilon`. `full` adds the constant log(2 pi) / 2.

    >>> import phlox as px
    >>> GaussianNllLoss()(px.tensor([1.0]), px.tensor([3.0]), px.tensor([1.0])).item()
    2.0
    """

    def __init__(self, *, full: bool = False, epsilon: float = 1e-6, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.epsilon = full, epsilon

    def __call__(self, prediction: Tensor, target: Tensor, variance: Tensor) -> Tensor:
        return functional.gaussian_nll_loss(
            prediction, target, variance, full=self.full, epsilon=self.epsilon, reduction=self.reduction
        )


class KlDivLossConfig(config_of(KlDivLoss)):
    """Hyper-parameters of `KlDivLoss`."""


class PoissonNllLossConfig(config_of(PoissonNllLoss)):
    """Hyper-parameters of `PoissonNllLoss`."""


class GaussianNllLossConfig(config_of(GaussianNllLoss)):
    """Hyper-parameters of `GaussianNllLoss`."""
