"""`Loss`: a mean as its two sums, which add up over micro-batches and processes as means do not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from phlox.backend import Bool, Float
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that is a weighted mean: the sum of the weighted losses of all items, and the sum of their weights.

    A step of `phlox.train.Learner` may return it in place of a scalar. Whatever means over batches (accumulation,
    processes, an uneven last batch, validation, reports) adds up totals and weights, so that gradients and numbers do
    not depend on how rows are cut into batches. A step that returns the mean which a loss of `phlox.nn` has computed
    need not make one: the learner knows its total and weight. It is for other means, such as of several losses, or with
    weights of your own.

    Args:
        total: the sum of the weighted losses, a Float scalar.
        weight: the sum of the weights: a number, or a scalar tensor, such as of the tokens that are not padding.
        separable: whether the loss of a row depends on that row alone. It does not in contrastive losses, which compare
            the rows of a batch with each other: their losses of two halves do not add up to that of the whole, and a
            learner refuses one that says so together with accumulation or rows in several processes.

    Raises `KindError` and `ShapeError` if they are no scalars, and `RangeError` for a number that is negative or not
    finite.

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
        for what, value in (("total", self.total), ("weight", self.weight)):
            given: Any = value
            if not isinstance(given, Tensor):
                if what == "total" or isinstance(given, bool) or not _is_number(given):
                    wanted = "a Float scalar" if what == "total" else "a number or a scalar tensor"
                    raise KindError(f"Loss: {what} must be {wanted}, got {type(given).__name__}")
                if not 0.0 <= given < math.inf:
                    raise RangeError(f"Loss: the weight must be finite and not negative, got {given!r}")
                continue
            one = cast("AnyTensor", given)
            if one.shape != ():
                raise ShapeError(
                    f"Loss: {what} must be a scalar, got shape {one.shape}; Loss.of(losses, weights) adds up"
                )
            if one.kind is Bool or (what == "total" and one.kind is not Float):
                raise KindError(f"Loss: {what} must be a Float scalar, got {one.kind.__name__}")

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
                f"Loss.of: weights of shape {weights.shape} do not fit losses of shape {losses.shape}; there is one "
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
        """The mean, total / weight, at full precision; NaN where nothing counts."""
        total, weight = self.total.to_full_precision(), _number(self.weight)
        return total * math.nan if isinstance(weight, float) and not weight else total / weight

    def part_of(self, weight: AnyTensor | float) -> Tensor:
        """The part of this loss in a mean over more, which weighs `weight` as a whole: total / weight.

        It is zero, and so are its gradients, where the whole weighs nothing.

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
    """A weight at full precision: half of it does not count beyond 2,048."""
    return weight.to_full_precision().float() if isinstance(weight, Tensor) else float(weight)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())
