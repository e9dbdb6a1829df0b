"""The terms that the formulas of optimizers are made of.

Numbers (learning rates, counts and what follows from them) may be an engine's stand-ins for numbers: what is here does
arithmetic on them alone, so that it means the same eagerly and in a compiled function.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.module.gradients import norm_of
from phlox.optim.step.shared_scalars import shared
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


def counted(time: Any, backend: Backend, *betas: float) -> tuple[Any, ...]:
    """The count after one more step, and 1 - beta ** count for every beta: once for all parameters of a step."""
    return shared(_counted, time, backend, *betas)


def _counted(time: Any, backend: Backend, *betas: float) -> tuple[Any, ...]:
    time = time + 1
    count = real(time, backend)
    return time, *[-backend.scalar_expm1(count * math.log(beta)) if beta else 1.0 for beta in betas]


def real(count: Any, backend: Backend) -> Real:
    """A count, or a comparison, as a real number.

    An engine itself may turn its stand-in for it into a number of 32 bits, whatever the backend's are.
    """
    return count * (backend.as_device_scalar(1.0) if backend.is_traced_scalar(count) else 1.0)


def chosen(condition: Any, if_true: Real, if_false: Real, backend: Backend) -> Real:
    """One of two finite numbers, by a comparison of numbers."""
    first = real(condition, backend)
    return first * if_true + (1.0 - first) * if_false


def least(a: Real, b: Real, backend: Backend) -> Real:
    """The smaller one of two numbers."""
    return chosen(a < b, a, b, backend)


def greatest(a: Real, b: Real, backend: Backend) -> Real:
    """The greater one of two numbers."""
    return chosen(a > b, a, b, backend)


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
