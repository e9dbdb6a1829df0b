"""`Loss`: a mean, given by its two sums. Unlike means, sums can be added up over micro-batches and processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from phlox.backend import Bool, Float
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.functions import where
from phlox.tensor.noted_means import means
from phlox.tensor.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that is a weighted mean: the sum of the weighted losses of all items, and the sum of their weights.

    A step of `phlox.train.Learner` may return it in place of a scalar. Everything that takes means over batches
    (accumulation, processes, an uneven last batch, validation, reports) then adds up totals and weights, so gradients
    and numbers do not depend on how rows are divided into batches. A step that returns the mean of a loss of `phlox.nn`
    does not need it: the learner knows the total and the weight of that mean. Use it for other means, such as a mean of
    several losses, or a mean with your own weights.

    Args:
        total: the sum of the weighted losses, a Float scalar.
        weight: the sum of the weights: a number, or a scalar tensor, such as the number of tokens without padding.
        separable: whether the loss of a row depends on that row alone. In contrastive losses it does not, because they
            compare the rows of a batch with each other: the losses of two halves of a batch do not add up to the loss
            of the whole. A learner refuses a loss with `separable=False` if it accumulates, or if several processes
            hold the rows.

    Raises `KindError` or `ShapeError` if total or weight is not a scalar, and `RangeError` if the weight is a number
    that is negative or not finite.

    >>> import phlox as px
    >>> from phlox import nn
    >>> logits, targets = px.zeros((4, 2)), px.tensor([0, 1, -100, -100])
    >>> total = nn.cross_entropy_loss(logits, targets, ignore_index=-100, reduction="sum")
    >>> loss = Loss(total, (targets != -100).int().sum())
    >>> round(loss.mean.item(), 4), loss.weight.item()
    (0.6931, 2)
    """

    total: Tensor
    weight: AnyTensor | float
    separable: bool = True

    def __post_init__(self) -> None:
        for name, value in (("total", self.total), ("weight", self.weight)):
            item: Any = value
            if not isinstance(item, Tensor):
                if name == "total" or isinstance(item, bool) or not _is_number(item):
                    expected = "a Float scalar" if name == "total" else "a number or a scalar tensor"
                    raise KindError(f"Loss: {name} must be {expected}, got {type(item).__name__}")
                if not 0.0 <= item < math.inf:
                    raise RangeError(f"Loss: the weight must be finite and not negative, got {item!r}")
                continue
            scalar = cast("AnyTensor", item)
            if scalar.shape != ():
                raise ShapeError(
                    f"Loss: {name} must be a scalar, got shape {scalar.shape}; Loss.of(losses, weights) adds up"
                )
            if scalar.kind is Bool or (name == "total" and scalar.kind is not Float):
                raise KindError(f"Loss: {name} must be a Float scalar, got {scalar.kind.__name__}")

    @staticmethod
    def of(losses: Tensor, weights: AnyTensor | None = None) -> Loss:
        """The weighted mean of losses [n, ...].

        Args:
            losses: unreduced losses, as with `reduction="none"`.
            weights: Float or Bool (a mask), of the shape of the losses or of their first axes; constant. A loss of
                weight zero may be infinite or NaN. Without them, each loss weighs 1.

        Raises `ShapeError` if the weights do not fit.

        >>> import phlox as px
        >>> Loss.of(px.tensor([1.0, 4.0]), px.tensor([3.0, 1.0])).mean.item()
        1.75
        """
        losses = losses.to_full_precision()
        if weights is None:
            return Loss(losses.sum(), float(losses.size))
        if weights.shape != losses.shape[: weights.ndim]:
            raise ShapeError(
                f"Loss.of: weights of shape {weights.shape} do not fit losses of shape {losses.shape}; give one "
                "for each loss, or for each entry of the first axes"
            )
        factor = (
            weights.detach()
            .to_full_precision()
            .float()
            .reshape((*weights.shape, *(1 for _ in losses.shape[weights.ndim :])))
        )
        factor = factor.broadcast_to(losses.shape)
        return Loss(where(factor == 0.0, 0.0, losses * factor).sum(), factor.sum())

    @property
    def mean(self) -> Tensor:
        """The mean, total / weight, at full precision; NaN if the weight is zero."""
        total, weight = self.total.to_full_precision(), _number(self.weight)
        return total * math.nan if isinstance(weight, float) and not weight else total / weight

    def part_of(self, weight: AnyTensor | float) -> Tensor:
        """The contribution of this loss to a mean over several losses whose weights add up to `weight`: total / weight.

        It is zero, and so are its gradients, if `weight` is zero.

        >>> import phlox as px
        >>> one, other = Loss(px.tensor(6.0), 3.0), Loss(px.tensor(0.0), 0.0)
        >>> whole = one.weight + other.weight
        >>> (one.part_of(whole) + other.part_of(whole)).item(), other.part_of(other.weight).item()
        (2.0, 0.0)
        """
        whole = _number(weight)
        safe = (whole or 1.0) if isinstance(whole, float) else where(whole == 0.0, 1.0, whole)
        return self.total.to_full_precision() / safe


def _number(weight: AnyTensor | float) -> Any:
    """A weight at full precision: at half precision, counts are not exact beyond 2,048."""
    return weight.to_full_precision().float() if isinstance(weight, Tensor) else float(weight)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())


def with_term(mean: Tensor, term: Tensor) -> Tensor:
    """mean + term, as a mean with the same weight, where the weights of means are noted."""
    total = mean + term
    if (recorder := means()) is not None and (sums := recorder.of(mean)[1]) is not None:
        part = term.to_full_precision()
        weight = recorder.of(mean)[0]
        recorder.note(total, weight, lambda: Loss(sums().total + part * weight, weight), weighted=False)
    return total
