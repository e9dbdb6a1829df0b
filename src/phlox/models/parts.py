"""Parts that the transformers share: dense layers with their initialization, masks, and checks of sizes."""

from __future__ import annotations

from typing import Any, TypeAlias

from phlox.backend import Bool, DeviceLike, Float, Int
from phlox.backend.tracing.symbolic import less
from phlox.config import Config
from phlox.errors import KindError, ShapeError
from phlox.nn import Linear, Normal, Zeros
from phlox.tensor import Tensor, arange, concat, where
from phlox.tensor.functional.operands import check_kind

Tokens: TypeAlias = Tensor[Any, Any, Int]
Mask: TypeAlias = Tensor[Any, Any, Any]
"""Bool or Int [batch, n]: true, or not zero, for tokens; false, or zero, for padding."""


def dense(d_input: int, d_output: int, std: float, *, bias: bool, device: DeviceLike | None) -> Linear:
    """A `Linear`; its weights start normally distributed with this standard deviation, its bias at zero."""
    return Linear(d_input, d_output, bias=bias, initializer=Normal(std=std), bias_initializer=Zeros(), device=device)


class TransformerConfig(Config):
    """The base of the configs of transformers: it checks the fields that several of them have, by their names."""

    def validate(self) -> None:
        fields = vars(self)
        sizes = ("vocabulary", "context", "source_context", "segments", "window", "channels")
        check_counts(**{name: x for name, x in fields.items() if name.startswith(("n_", "d_")) or name in sizes})
        check_rates(**{name: x for name, x in fields.items() if name.endswith("dropout")})
        check_positive(**{name: fields[name] for name in ("epsilon", "init_std", "rotary_base") if name in fields})

    @property
    def hidden_width(self) -> int:
        """The width of the hidden layer of the MLP."""
        size: Any = self
        return 4 * size.d_model if size.d_hidden is None else size.d_hidden


def check_heads(d_model: int, **heads: int) -> None:
    """Raise ValueError unless d_model divides into so many heads."""
    for name, count in heads.items():
        if d_model % count:
            raise ValueError(f"d_model={d_model} does not divide into {name}={count} heads")


def check_tokens(name: str, limit: int, tokens: Tensor[Any, Any, Any]) -> None:
    """Raise `KindError` or `ShapeError` unless tokens are Int [batch, n], n at most the limit; `name` is a model's."""
    check_kind(name, Int, tokens=tokens)
    if tokens.ndim != 2 or less(limit, tokens.shape[1]):
        raise ShapeError(
            f"{name}: tokens must be [batch, n] with n at most the context of {limit}, got shape {tokens.shape}"
        )


def check_mask(name: str, mask: Mask | None) -> None:
    """Raise `KindError` unless the mask is None, Bool or Int."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.kind is Float):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = "Float" if isinstance(mask, Tensor) else type(mask).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{name}: mask must be a Bool or Int tensor, not zero where there is a token, got {kind}")


def true_at_tokens(mask: Mask) -> Tensor[Any, Any, Bool]:
    """The mask as Bool."""
    return mask if mask.kind is Bool else mask != 0


def attention_mask(mask: Mask | None) -> Tensor[Any, Any, Bool] | None:
    """The mask [batch, n] as one of attention: [batch, 1, 1, n]."""
    return None if mask is None else true_at_tokens(mask).expand_dims(1).expand_dims(1)


def texts_in_rows(name: str, tokens: Tokens, segments: Tokens) -> tuple[Tensor[Any, Any, Bool], Tokens]:
    """Whether two tokens are of one text, [batch, 1, n, n], and the position of each in its text, [batch, n].

    A text is a run of equal numbers in `segments` [batch, n]; `name` is a model's.
    """
    check_kind(name, Int, segments=segments)
    if segments.shape != tokens.shape:
        raise ShapeError(f"{name}: segments must have the shape of the tokens, {tokens.shape}, got {segments.shape}")
    columns = arange(tokens.shape[1], device=segments.device)
    is_first = concat([segments[:, :1] == segments[:, :1], segments[:, 1:] != segments[:, :-1]], 1)
    starts = where(is_first, columns, 0).cummax(1)
    same = starts.expand_dims(-1) == starts.expand_dims(-2)
    return same.expand_dims(1), columns - starts


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
