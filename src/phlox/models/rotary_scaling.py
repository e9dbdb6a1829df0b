"""Rotary encoding beyond the context of the original training: rotation frequencies are scaled down."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from phlox.backend import Float, Int
from phlox.config import Config
from phlox.errors import ShapeError
from phlox.nn import RotaryEncoding
from phlox.tensor import Tensor, arange, concat, stack, tensor, where
from phlox.tensor.functional.operands import check_kind

__all__ = ["DynamicScaling", "LinearScaling", "Llama3Scaling", "LongScaling", "YarnScaling"]


class _Scaling(Config):
    """The base of the scalings."""

    @property
    def magnitude(self) -> float:
        """The factor of rotated queries and keys."""
        return 1.0

    @property
    def is_by_length(self) -> bool:
        """Whether frequencies depend on the length of the text."""
        return False

    def turns(self, base: float, d_rotary: int) -> list[float]:
        """The rotation of each pair from one position to the next, in radians."""
        return [self.scaled(base ** (-2.0 * i / d_rotary)) for i in range(d_rotary // 2)]

    def scaled(self, turn: float) -> float:
        """The scaled rotation of a pair, from the unscaled `turn`, in radians."""
        raise NotImplementedError

    def turns_for(self, base: float, d_rotary: int, length: Tensor[Any, Any, Float]) -> Tensor:
        """`turns` for texts of these lengths, a Float [..., 1, 1]: [half], or [..., 1, half] if they depend on it."""
        return tensor(self.turns(base, d_rotary), device=length.device)


def _check_factor(factor: float) -> None:
    if not factor >= 1.0:
        raise ValueError(f"factor must be at least one, got {factor}")


class LinearScaling(_Scaling):
    """Divides all frequencies by `factor`, which interpolates positions into the trained range (Chen et al. 2023).

    >>> LinearScaling(factor=4.0).scaled(1.0)
    0.25
    """

    factor: float

    def validate(self) -> None:
        _check_factor(self.factor)

    def scaled(self, turn: float) -> float:
        """See `_Scaling.scaled`."""
        return turn / self.factor


class Llama3Scaling(_Scaling):
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
        _check_factor(self.factor)
        if not 0.0 < self.low < self.high:
            raise ValueError(f"low and high must be positive and low below high, got {self.low} and {self.high}")
        if self.context < 1:
            raise ValueError(f"context must be at least one, got {self.context}")

    def scaled(self, turn: float) -> float:
        """See `_Scaling.scaled`."""
        rounds = self.context * turn / (2 * math.pi)
        share_kept = min(1.0, max(0.0, (rounds - self.low) / (self.high - self.low)))
        return turn * (share_kept + (1.0 - share_kept) / self.factor)


class YarnScaling(_Scaling):
    """Divides low frequencies, keeps high ones, ramps between them, and enlarges queries and keys (Peng et al. 2023).

    The ramp goes by the index of the pair, between those that make `fast` and `slow` full rotations within the context.
    """

    factor: float
    context: int
    """The context of the original training."""
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    """Whether the ends of the ramp are whole indices."""
    attention_factor: float | None = None
    """The factor of queries and keys; by default 0.1 ln(factor) + 1."""

    def validate(self) -> None:
        _check_factor(self.factor)
        if self.context < 1:
            raise ValueError(f"context must be at least one, got {self.context}")

    @property
    def magnitude(self) -> float:
        """See `_Scaling.magnitude`."""
        return self.grown(1.0) if self.attention_factor is None else self.attention_factor

    def grown(self, share: float) -> float:
        """How much scores grow with the factor, of which `share` counts."""
        return 1.0 if self.factor <= 1.0 else 0.1 * share * math.log(self.factor) + 1.0

    def turns(self, base: float, d_rotary: int) -> list[float]:
        """See `_Scaling.turns`."""

        def index(rounds: float) -> float:
            return d_rotary * math.log(self.context / (rounds * 2 * math.pi)) / (2 * math.log(base))

        low, high = index(self.fast), index(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d_rotary - 1)
        high = high + 0.001 if low == high else high
        turns = [base ** (-2.0 * i / d_rotary) for i in range(d_rotary // 2)]
        ramps = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(len(turns))]
        return [turn * (1.0 - ramp + ramp / self.factor) for turn, ramp in zip(turns, ramps, strict=True)]


class DynamicScaling(_Scaling):
    """Raises the base for texts beyond the context, by their length ("NTK-aware" scaling, 2023)."""

    factor: float
    context: int

    def validate(self) -> None:
        _check_factor(self.factor)
        if self.context < 1:
            raise ValueError(f"context must be at least one, got {self.context}")

    @property
    def is_by_length(self) -> bool:
        """See `_Scaling.is_by_length`."""
        return True

    def turns_for(self, base: float, d_rotary: int, length: Tensor[Any, Any, Float]) -> Tensor:
        """See `_Scaling.turns_for`."""
        length = length.maximum(float(self.context))
        grown = (length * (self.factor / self.context) - (self.factor - 1.0)) ** (d_rotary / (d_rotary - 2))
        exponents = tensor([-2.0 * i / d_rotary for i in range(d_rotary // 2)], device=length.device)
        return (exponents * (grown * base).log()).exp()


class LongScaling(_Scaling):
    """Divides each frequency by a factor of its own, of which there are two sets: within and beyond `context`.

    This is LongRoPE (Ding et al. 2024). `length` is the largest length; queries and keys are enlarged by it.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    context: int
    """The context of the original training."""
    factor: float = 1.0
    """The largest length over the context."""
    attention_factor: float | None = None
    """The factor of queries and keys; by default sqrt(1 + ln(factor) / ln(context))."""

    @property
    def magnitude(self) -> float:
        """See `_Scaling.magnitude`."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1.0 else math.sqrt(1.0 + math.log(self.factor) / math.log(self.context))

    @property
    def is_by_length(self) -> bool:
        """See `_Scaling.is_by_length`."""
        return True

    def turns_for(self, base: float, d_rotary: int, length: Tensor[Any, Any, Float]) -> Tensor:
        """See `_Scaling.turns_for`."""
        half = d_rotary // 2
        if len(self.short) != half or len(self.long) != half:
            raise ShapeError(f"LongScaling: {len(self.short)} and {len(self.long)} factors do not fit {half} pairs")
        turns = [base ** (-2.0 * i / d_rotary) for i in range(half)]
        sets = [
            tensor([turn / factor for turn, factor in zip(turns, factors, strict=True)], device=length.device)
            for factors in (self.short, self.long)
        ]
        return where(length > float(self.context), sets[1], sets[0])


RotaryScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongScaling


class ScaledRotaryEncoding(RotaryEncoding):
    """A `RotaryEncoding` with scaled frequencies, which computes at full precision.

    >>> import phlox as px
    >>> plain, slower = RotaryEncoding(4), ScaledRotaryEncoding(4, scaling=LinearScaling(2.0))
    >>> x, at = px.ones((1, 4)), px.tensor([6])
    >>> slower(x, at).tolist() == plain(x, at // 2).tolist()
    True
    """

    def __init__(
        self,
        d_head: int,
        *,
        scaling: RotaryScaling,
        base: float = 10000.0,
        interleaved: bool = False,
        d_rotary: int | None = None,
    ) -> None:
        super().__init__(d_head, base=base, interleaved=interleaved, d_rotary=d_rotary)
        self.scaling = scaling

    def __call__(self, x: Tensor, positions: Tensor[Any, Any, Int] | None = None) -> Tensor:
        """x [..., n, d_head] rotated; `positions`, Int, broadcast to [..., n], and are 0 to n - 1 by default."""
        name, size = "ScaledRotaryEncoding", self.d_rotary
        half = size // 2
        check_kind(name, Float, x=x)
        check_kind(name, Int, positions=positions)
        if x.ndim < 2 or x.shape[-1] != self.d_head:
            raise ShapeError(f"{name}: x must be [..., n, {self.d_head}], got shape {x.shape}")
        full = x.to_full_precision()
        if positions is None:
            positions = arange(x.shape[-2], device=full.device)
        at = positions.to_full_precision().float()
        # The length of each text, so that a text in a batch is encoded as alone.
        last = at
        if at.ndim:
            is_row = at.ndim == 1 or not self.scaling.is_by_length
            last = (at.max(-1, keepdims=True) if is_row else _last_positions(at)).expand_dims(-1)
        turns = self.scaling.turns_for(self.base, size, last + 1.0)
        angles = at.expand_dims(-1) * turns
        magnitude = self.scaling.magnitude
        cos, sin = angles.cos(), angles.sin()
        if magnitude != 1.0:
            cos, sin = cos * magnitude, sin * magnitude
        if self.interleaved:
            pairs = full[..., :size].reshape((*full.shape[:-1], half, 2))
            a, b = pairs[..., 0], pairs[..., 1]
            parts = [stack([a * cos - b * sin, a * sin + b * cos], -1).reshape((*full.shape[:-1], size))]
        else:
            a, b = full[..., :half], full[..., half:size]
            parts = [a * cos - b * sin, a * sin + b * cos]
        if size < self.d_head:
            parts.append(full[..., size:])
        return concat(parts, -1).from_full_precision(x)


def _last_positions(positions: Tensor) -> Tensor:
    """The last position of the text of each token, from positions [..., n] that grow by one within a text."""
    n = positions.shape[-1]
    columns = arange(n, device=positions.device).float()
    starts = columns - positions
    is_last = concat([starts[..., 1:] != starts[..., :-1], starts[..., :1] == starts[..., :1]], -1)
    return where(is_last, columns, float(n)).flip(-1).cummin(-1).flip(-1) - starts
