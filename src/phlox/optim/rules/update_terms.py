"""Terms of tensors in the formulas of optimizers; terms of scalars are in `step/shared_scalars`."""

from __future__ import annotations

from typing import Protocol

from phlox.backend.contract.update import Real
from phlox.module.gradients import norm_of
from phlox.optim.simple import AnyTensor
from phlox.tensor import where


class Descent(Protocol):
    """A config with a direction (`maximize`) and a weight decay."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def maximize(self) -> bool: ...


def descent(config: Descent, tensor: AnyTensor, grad: AnyTensor) -> AnyTensor:
    """The gradient, negated if `maximize`, plus `weight_decay` times the tensor."""
    grad = -grad if config.maximize else grad
    return grad + tensor * config.weight_decay if config.weight_decay else grad


def decayed(tensor: AnyTensor, lr: Real, weight_decay: float) -> AnyTensor:
    """The tensor times 1 - lr weight_decay: decay that is decoupled from the gradient (Loshchilov, Hutter 2019)."""
    return tensor * (1.0 - lr * weight_decay) if weight_decay else tensor


def prepared(
    config: Descent, lr: Real, tensor: AnyTensor, grad: AnyTensor, *, decoupled: bool
) -> tuple[AnyTensor, AnyTensor]:
    """The tensor and the gradient after weight decay, which acts on the tensor if `decoupled`, else on the gradient."""
    if not decoupled:
        return tensor, descent(config, tensor, grad)
    return decayed(tensor, lr, config.weight_decay), -grad if config.maximize else grad


def average(old: AnyTensor, new: AnyTensor, beta: float) -> AnyTensor:
    """The exponential moving average: beta old + (1 - beta) new."""
    return old * beta + new * (1.0 - beta)


def norm(x: AnyTensor) -> AnyTensor:
    """The Euclidean norm, as a tensor of rank zero, without overflow of squares."""
    return norm_of([x]).from_full_precision(x)


def continued(master: AnyTensor, value: AnyTensor) -> AnyTensor:
    """The f32 value that a value of half precision continues from: its master, if that still rounds to it.

    Other elements were changed from outside (loaded, mapped), and continue from their new value.
    """
    same = (master.from_full_precision(value) == value).to_full_precision()
    return where(same, master, value.to_full_precision())


def root_mean_square(x: AnyTensor) -> AnyTensor:
    """The root of the mean of squares, as a tensor of rank zero."""
    return x.to_full_precision().square().mean().sqrt().from_full_precision(x)
