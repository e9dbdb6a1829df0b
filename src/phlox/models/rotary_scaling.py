"""Rotary encoding beyond the context of the original training: rotation frequencies are scaled down."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from phlox.backend import Float, Int
from phlox.config import Config
from phlox.errors import ShapeError
from phlox.nn import RotaryEncoding
from phlox.tensor import Tensor, arange, concat, tensor
from phlox.tensor.functional.operands import check_kind

__all__ = ["LinearScaling", "Llama3Scaling"]


class LinearScaling(Config):
    """Divides all frequencies by `factor`, which interpolates positions into the trained range (Chen et al. 2023).

    >>> LinearScaling(factor=4.0).scaled(1.0)
    0.25
    """

    factor: float

    def validate(self) -> None:
        if not self.factor >= 1.0:
            raise ValueError(f"factor must be at least one, got {self.factor}")

    def scaled(self, turn: float) -> float:
        """The scaled rotation of a pair from one position to the next, from the unscaled `turn`, in radians."""
        return turn / self.factor


class Llama3Scaling(Config):
    """Divides low frequencies by `factor`, keeps high ones, and interpolates between them (Llama 3.1, 2024).

    A frequency is high if its pair makes `high` full rotations or more within the original context, and low if it
    makes at most `low`.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    context: int = 8192
    """The context of the original training."""

    def validate(self) -> None:
        if not self.factor >= 1.0:
            raise ValueError(f"factor must be at least one, got {self.factor}")
        if not 0.0 < self.low < self.high:
            raise ValueError(f"low and high must be positive and low below high, got {self.low} and {self.high}")
        if self.context < 1:
            raise ValueError(f"context must be at least one, got {self.context}")

    def scaled(self, turn: float) -> float:
        """The scaled rotation of a pair from one position to the next, from the unscaled `turn`, in radians."""
        rounds = self.context * turn / (2 * math.pi)
        share_kept = min(1.0, max(0.0, (rounds - self.low) / (self.high - self.low)))
        return turn * (share_kept + (1.0 - share_kept) / self.factor)


RotaryScaling: TypeAlias = LinearScaling | Llama3Scaling


class ScaledRotaryEncoding(RotaryEncoding):
    """A `RotaryEncoding` with scaled frequencies. Its pairs are d_head / 2 apart, and it computes at full precision.

    >>> import phlox as px
    >>> plain, slower = RotaryEncoding(4), ScaledRotaryEncoding(4, scaling=LinearScaling(2.0))
    >>> x, at = px.ones((1, 4)), px.tensor([6])
    >>> slower(x, at).tolist() == plain(x, at // 2).tolist()
    True
    """

    def __init__(self, d_head: int, *, scaling: RotaryScaling, base: float = 10000.0) -> None:
        super().__init__(d_head, base=base)
        self.scaling = scaling

    def __call__(self, x: Tensor, positions: Tensor[Any, Any, Int] | None = None) -> Tensor:
        """x [..., n, d_head] rotated; `positions`, Int, broadcast to [..., n], and are 0 to n - 1 by default."""
        name, half = "ScaledRotaryEncoding", self.d_head // 2
        check_kind(name, Float, x=x)
        check_kind(name, Int, positions=positions)
        if x.ndim < 2 or x.shape[-1] != self.d_head:
            raise ShapeError(f"{name}: x must be [..., n, {self.d_head}], got shape {x.shape}")
        full = x.to_full_precision()
        if positions is None:
            positions = arange(x.shape[-2], device=full.device)
        steps = [self.scaling.scaled(self.base ** (-2.0 * i / self.d_head)) for i in range(half)]
        angles = positions.to_full_precision().float().expand_dims(-1) * tensor(steps, device=full.device)
        cos, sin = angles.cos(), angles.sin()
        a, b = full[..., :half], full[..., half:]
        return concat([a * cos - b * sin, a * sin + b * cos], -1).from_full_precision(x)
