"""Dropout."""

from __future__ import annotations

from phlox import random
from phlox.backend import Float
from phlox.config import config_of
from phlox.errors import ConfigError, RangeError
from phlox.module import Module
from phlox.tensor import Tensor, where
from phlox.tensor.functional.operands import check_kind


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate`, and scale the others by 1 / (1 - rate) (Srivastava et al. 2014).

    The rate is rounded to a multiple of 1/65536. The mask is drawn from the ambient stream.

    >>> import phlox as px
    >>> px.random.seed(0)
    >>> sorted(set(dropout(px.ones((100,)), 0.5).tolist()))
    [0.0, 2.0]
    """
    check_kind("dropout", Float, x=x)
    if not 0.0 <= rate <= 1.0:
        raise RangeError(f"dropout: rate must be between 0 and 1, got {rate}")
    keep = round((1.0 - rate) * 65536) / 65536
    if keep == 1.0:
        return x
    mask = random.bernoulli(x.shape, keep, device=x.device)
    return where(mask, x * (1.0 / keep) if keep else x, 0.0)


class Dropout(Module):
    """`dropout` in training; otherwise the identity.

    By default it is in training if the backend of the input has a tape. `module.train()` and `module.valid()` choose
    between the two.

    >>> import phlox as px
    >>> Dropout(0.5)(px.ones((3,))).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float = 0.5) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ConfigError(f"Dropout: rate must be between 0 and 1, got {rate}")
        self.rate = rate

    def __call__(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.is_training(x) else x


class DropoutConfig(config_of(Dropout)):
    """Hyper-parameters of `Dropout`."""
