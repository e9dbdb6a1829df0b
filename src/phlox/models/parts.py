"""Parts that the transformers share: dense layers with their initialization, and activations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from phlox.backend import DeviceLike
from phlox.nn import Linear, Normal, Zeros
from phlox.tensor import Tensor, functional

ActivationName: TypeAlias = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"]
"""An activation that a config can name; `gelu_tanh` approximates `gelu` as the first GPTs did, `quick_gelu` as CLIP."""

ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * (x * 1.702).sigmoid(),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": lambda x: x.tanh(),
}


def dense(d_input: int, d_output: int, std: float, *, bias: bool, device: DeviceLike | None) -> Linear:
    """A `Linear`; its weights start normally distributed with this standard deviation, its bias at zero."""
    return Linear(d_input, d_output, bias=bias, initializer=Normal(std=std), bias_initializer=Zeros(), device=device)


def check_counts(**counts: int | None) -> None:
    """Raise ValueError unless each count is at least one, or None."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least one, got {count}")


def check_rates(**rates: float | None) -> None:
    """Raise ValueError unless each is a dropout rate below one, or None."""
    for name, rate in rates.items():
        if rate is not None and not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must lie in [0, 1), got {rate}")


def check_positive(**numbers: float) -> None:
    """Raise ValueError unless each number is above zero."""
    for name, number in numbers.items():
        if not number > 0.0:
            raise ValueError(f"{name} must be positive, got {number}")
