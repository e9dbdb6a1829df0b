"""The terms of tensors that the formulas of optimizers are made of; those of scalars are in `step/shared_scalars`."""

from __future__ import annotations

from typing import Any, Protocol

from phlox.backend.contract.update import Real
from phlox.module.gradients import norm_of
from phlox.tensor import Tensor, where

AnyTensor = Tensor[Any, Any, Any]


class Descent(Protocol):
    """A config that says which way to go, and whether weights decay."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def maximize(self) -> bool: ...


def descent(config: Descent, tensor: AnyTensor, grad: AnyTensor) -> AnyTensor:
    """The gradient, negated where the objective is to grow, and with `weight_decay` times the tensor added."""
    grad = -grad if config.maximize else grad
    return grad + tensor * config.weight_decay if config.weight_decay else grad


def decayed(tensor: AnyTensor, lr: Real, weight_decay: float) -> AnyTensor:
    """The tensor times 1 - lr weight_decay: decay that is decoupled from the gradient (Loshchilov, Hutter 2019)."""
    return tensor * (1.0 - lr * weight_decay) if weight_decay else tensor


def prepared(
    config: Descent, lr: Real, tensor: AnyTensor, grad: AnyTensor, *, decoupled: bool
) -> tuple[AnyTensor, AnyTensor]:
    """The tensor and the gradient to step with, where decay may act on the one or be added to the other."""
    if not decoupled:
        return tensor, descent(config, tensor, grad)
    return decayed(tensor, lr, config.weight_decay), -grad if config.maximize else grad


def average(old: AnyTensor, new: AnyTensor, beta: float) -> AnyTensor:
    """The exponential moving average: beta old + (1 - beta) new."""
    return old * beta + new * (1.0 - beta)


def norm(x: AnyTensor) -> AnyTensor:
    """The Euclidean norm, as a tensor of rank zero, whose squares do not overflow."""
    return norm_of([x]).from_full_precision(x)


def continued(master: AnyTensor, value: AnyTensor) -> AnyTensor:
    """What a value of half precision goes on from: its master, where that still rounds to it.

    Elements that do not have been changed from outside (loaded, mapped), and go on from what they were changed to.
    """
    same = (master.from_full_precision(value) == value).to_full_precision()
    return where(same, master, value.to_full_precision())


def root_mean_square(x: AnyTensor) -> AnyTensor:
    """The root of the mean of squares, as a tensor of rank zero."""
    return x.to_full_precision().square().mean().sqrt().from_full_precision(x)
