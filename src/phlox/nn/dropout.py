"""Dropout."""

from __future__ import annotations

from phlox import random
from phlox.backend import Float
from phlox.config import config_of
from phlox.errors import ConfigError, RangeError
from phlox.module import Module
from phlox.tensor import Tensor, where
from phlox.tensor.functional.operands import expect


def dropout(x: Tensor, rate: float) -> Tensor:
    """Each element is zero with probability `rate`, and the others grow so that the mean stays.

    The rate counts to the nearest 1/65536; the mask is drawn from the ambient stream. (Srivastava et al. 2014.)
    """
    expect("dropout", Float, x=x)
    if not 0.0 <= rate <= 1.0:
        raise RangeError(f"dropout: the rate lies between 0 and 1, got {rate}")
    keep = round((1.0 - rate) * 65536) / 65536
    if keep == 1.0:
        return x
    mask = random.bernoulli(x.shape, keep, device=x.device)
    return where(mask, x * (1.0 / keep) if keep else x, 0.0)


class Dropout(Module):
    """`dropout` in training, that is, where the tensor's backend records a tape; elsewhere nothing.

    `train` and `valid` of a module say otherwise where a tape and training do not go together.

    >>> import phlox as px
    >>> Dropout(0.5)(px.ones((3,))).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, rate: float = 0.5) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ConfigError(f"Dropout: the rate lies between 0 and 1, got {rate}")
        self.rate = rate

    def __call__(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.is_training(x) else x


class DropoutConfig(config_of(Dropout)):
    """Hyper-parameters of `Dropout`."""
