"""Rotary position encoding."""

from __future__ import annotations

from typing import Any

from phlox.backend import Float, Int
from phlox.config import config_of
from phlox.errors import ConfigError, ShapeError
from phlox.module import Module
from phlox.tensor import Tensor, concat, functional
from phlox.tensor.functional.operands import check_kind

__all__ = ["RotaryEncoding", "RotaryEncodingConfig"]


class RotaryEncoding(Module):
    """Rotate queries and keys by angles that grow with the position (Su et al. 2021).

    The dot product of a query and a key then depends only on their distance. There are no parameters: the angles are
    computed, at full precision on every backend.

    Args:
        d_head: the width of a head.
        base: pair i of the d_rotary / 2 pairs is rotated by position * base ** (-2 i / d_rotary) radians.
        interleaved: pair neighbouring elements (0 with 1, as in the paper). By default elements d_rotary / 2 apart are
            paired (0 with d_rotary / 2, as in Llama and GPT-NeoX). Weights trained with one do not work with the other.
        d_rotary: the number of leading elements that are rotated; the others are unchanged. By default all.

    Raises `ConfigError` if d_rotary is odd, less than 2, or more than d_head, or if `base` is not positive.

    >>> import phlox as px
    >>> RotaryEncoding(4)(px.ones((3, 4)))[0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self, d_head: int, *, base: float = 10000.0, interleaved: bool = False, d_rotary: int | None = None
    ) -> None:
        rotated = d_head if d_rotary is None else d_rotary
        if rotated % 2 or not 2 <= rotated <= d_head:
            sizes = f"d_head={d_head}" if d_rotary is None else f"d_rotary={d_rotary} of d_head={d_head}"
            raise ConfigError(f"RotaryEncoding: the rotated width must be even and at least 2, got {sizes}")
        if not base > 0.0:
            raise ConfigError(f"RotaryEncoding: base must be positive, got {base}")
        self.d_head, self.d_rotary = d_head, rotated
        self.base, self.interleaved = base, interleaved

    def __call__(self, x: Tensor, positions: Tensor[Any, Any, Int] | None = None) -> Tensor:
        """Rotate x [..., n, d_head]. `positions` (Int) broadcast to [..., n]; by default 0 to n - 1."""
        check_kind("RotaryEncoding", Float, x=x)
        check_kind("RotaryEncoding", Int, positions=positions)
        if x.ndim < 2 or x.shape[-1] != self.d_head:
            raise ShapeError(f"RotaryEncoding: x must be [..., n, {self.d_head}], got shape {x.shape}")
        rotated = (x if self.d_rotary == self.d_head else x[..., : self.d_rotary]).to_full_precision()
        if positions is not None:
            positions = positions.to_full_precision()
        rotated = functional.rotary_embedding(rotated, positions, base=self.base, interleaved=self.interleaved)
        rotated = rotated.from_full_precision(x)
        return rotated if self.d_rotary == self.d_head else concat([rotated, x[..., self.d_rotary :]], -1)


class RotaryEncodingConfig(config_of(RotaryEncoding)):
    """Hyper-parameters of `RotaryEncoding`."""
