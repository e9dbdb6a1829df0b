"""Initializers independent of the layer: constants, and distributions with given parameters."""

from __future__ import annotations

from typing import Any

from phlox import random
from phlox.backend import Device
from phlox.errors import ConfigError
from phlox.module.deferred import is_of_jax
from phlox.nn.initializer.base import Initializer
from phlox.tensor import Tensor, full


class Constant(Initializer):
    """All values are equal to `value`.

    >>> import phlox as px
    >>> px.nn.Linear(2, 2, initializer=Constant(value=0.5)).weight.val().tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    value: float = 0.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return full(shape, self.value, device=device)


class Zeros(Constant):
    """All values are zero.

    >>> import phlox as px
    >>> px.nn.Linear(2, 2, initializer=Zeros()).weight.val().tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """


class Ones(Constant):
    """All values are one.

    >>> import phlox as px
    >>> px.nn.Linear(2, 2, initializer=Ones()).weight.val().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    value: float = 1.0


class Uniform(Initializer):
    """Uniformly distributed values in [low, high).

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=Uniform(low=-0.1, high=0.1)).weight.val().shape
    (3, 2)
    """

    low: float = -1.0
    high: float = 1.0

    def validate(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"low must not exceed high, got {self.low} and {self.high}")

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.uniform(shape, self.low, self.high, device=device)


class Normal(Initializer):
    """Normally distributed values with `mean` and standard deviation `std`.

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=Normal(std=0.02)).weight.val().shape
    (3, 2)
    """

    mean: float = 0.0
    std: float = 1.0

    def validate(self) -> None:
        _check_std(self.std)

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.normal(shape, self.mean, self.std, device=device)


class TruncatedNormal(Initializer):
    """Normally distributed values, truncated to [low, high] standard deviations around the mean.

    `std` is the standard deviation before truncation.

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=TruncatedNormal(std=0.02)).weight.val().shape
    (3, 2)
    """

    mean: float = 0.0
    std: float = 1.0
    low: float = -2.0
    high: float = 2.0

    def validate(self) -> None:
        _check_std(self.std)
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.truncated_normal(shape, self.mean, self.std, self.low, self.high, device=device)


def _check_std(std: float) -> None:
    if not std >= 0.0:
        raise ValueError(f"std must not be negative, got {std}")


def bias_initializer_of(initializer: Initializer, own: Initializer | None) -> Initializer:
    """The initializer of a bias: `own`, else the initializer of the weight if it works for a bias, else zeros."""
    for candidate in (initializer, own):
        if isinstance(candidate, type):
            name = candidate.__name__
            raise ConfigError(f"the initializer is the class {name}, not an instance; write {name}()")
    if own is not None:
        return own
    return Zeros() if getattr(initializer, "of_weights", False) or is_of_jax(initializer) else initializer
