"""Operands of functions: checks of kinds and shapes, and promotion to one backend."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from phlox.backend import Bool, Float, Int, Kind
from phlox.backend.tracing.dimension import broadcast_sizes
from phlox.errors import KindError, RangeError, ShapeError
from phlox.other_names import with_article
from phlox.tensor.backend_promotion import common_backend, promote
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure
from phlox.tensor.functional.loss_weight import Loss
from phlox.tensor.functions import where
from phlox.tensor.noted_means import means
from phlox.tensor.tensor import Tensor, wrap

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""How losses are reduced."""

_CONVERSIONS: dict[type[Kind], str] = {Float: ".float()", Int: ".int()", Bool: ".bool()"}


def check_kind(name: str, kind: type[Kind], **operands: Tensor[Any, Any, Any] | None) -> None:
    """Raise `KindError` unless each operand is a tensor of this kind, or None."""
    for operand, x in operands.items():
        if x is None:
            continue
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            param = getattr(type(x), "_phlox_holds_tensor", False)
            remedy = "give the tensor that it holds, param.val()" if param else "make one with phlox.tensor(...)"
            raise KindError(
                f"{name}: {operand} must be {with_article(kind.__name__)} tensor, got {type(x).__name__}; {remedy}"
            )
        if x._ops.kind is not kind:  # pyright: ignore[reportPrivateUsage]
            raise KindError(
                f"{name}: {operand} must be {with_article(kind.__name__)} tensor, got {x.kind.__name__}; "
                f"convert with {_CONVERSIONS[kind]} first"
            )


def promote_operands(name: str, *operands: Tensor[Any, Any, Any] | None) -> list[Any]:
    """Promote the operands to one backend; None stays None."""
    promoted = iter(promote(name, [x for x in operands if x is not None]))
    return [None if x is None else next(promoted) for x in operands]


def compute(name: str, *arguments: Any, operation: str | None = None) -> Any:
    """Call a composite operation on tensors of any kinds and on options; its one or more results are Float.

    `operation` is its name in the contract, by default `name`.
    """
    ops: Any = None
    alike = True
    natives: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            natives.append(x.primitive)
            x_ops = x._ops  # pyright: ignore[reportPrivateUsage]
            if x_ops is not ops:
                alike = ops is None and x_ops.kind is Float
                ops = x_ops
        else:
            natives.append(x)
    if ops is None or not alike:
        tensors: list[Tensor[Any, Any, Any]] = [x for x in arguments if isinstance(x, Tensor)]
        # An untracked value of a decorated backend is an array of the inner one, so promotion leaves arrays unchanged.
        ops = ops_of(common_backend(name, tensors), Float)
    try:
        result = ops[operation or name](*natives)
    except Exception as error:
        raise failure(name, ops, tuple(natives), error) from error
    if isinstance(result, tuple):
        return tuple(wrap(ops, part) for part in cast("tuple[Any, ...]", result))
    return wrap(ops, result)


def check_pair(name: str, prediction: Tensor, target: Tensor) -> None:
    """Check the operands of most losses: two Float tensors of one shape."""
    check_kind(name, Float, prediction=prediction, target=target)
    if prediction.shape != target.shape:
        check_same_shape(name, prediction=prediction, target=target)


def reduce_losses(name: str, losses: Tensor, reduction: Reduction) -> Tensor:
    """The mean, the sum or the unreduced losses; `RangeError` for another `reduction`.

    The weight of the mean is the number of losses.
    """
    if reduction == "mean":
        mean = losses.mean()
        if (recorder := means()) is not None:
            recorder.note(mean, float(losses.size), lambda: Loss.of(losses), weighted=False)
        return mean
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise RangeError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def check_broadcast(name: str, operand: str, x: Tensor[Any, Any, Any] | None, shape: tuple[int, ...]) -> None:
    """Raise `ShapeError` unless x is None, or broadcasts to exactly `shape`."""
    if x is None:
        return
    fits = x.ndim <= len(shape) and all(
        size in (1, target) for size, target in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(f"{name}: {operand} of shape {x.shape} does not broadcast to the shape of the losses, {shape}")


def check_same_shape(name: str, **operands: Tensor[Any, Any, Any]) -> None:
    """Raise `ShapeError` unless all shapes are equal, so that no operand broadcasts unnoticed."""
    shapes = {operand: x.shape for operand, x in operands.items()}
    first, *others = shapes.values()
    if any(shape != first for shape in others):
        listed = ", ".join(f"{operand} of shape {shape}" for operand, shape in shapes.items())
        narrow = next((operand for operand, shape in shapes.items() if (*shape, 1) in shapes.values()), None)
        hint = "" if narrow is None else f": {narrow}.expand_dims(-1)"
        raise ShapeError(f"{name}: {listed}; the shapes must be equal{hint}")


def check_largest_shape(name: str, **operands: Tensor[Any, Any, Any]) -> None:
    """Raise `ShapeError` unless all broadcast to the shape of one of them: [n, 1] and [n] must not give [n, n]."""
    shapes = [x.shape for x in operands.values()]
    try:
        covered = broadcast_sizes(shapes) in shapes
    except ValueError:
        covered = False
    if not covered:
        listed = ", ".join(f"{operand} of shape {x.shape}" for operand, x in operands.items())
        raise ShapeError(f"{name}: {listed}; the shapes must be equal, or broadcast to the largest of them")


def from_the_start(
    name: str, indices: Tensor[Any, Any, Int], size: int, ignored: int | None = None
) -> Tensor[Any, Any, Int]:
    """Check indices that must not count from the end: below zero is out of range, as is `size` or more.

    Raises `IndexRangeError` for such an index. Where a trace does not know the values, an index below zero is replaced
    by one that is too large. The index `ignored` is kept.
    """
    backend, flat = indices.backend, indices.primitive
    if ignored is not None:
        flat = backend.where(backend.int_equal(flat, ignored), 0, flat)
    try:
        unknown = backend.check_indices(flat, size, from_end=False)
    except Exception as error:
        raise failure(name, indices._ops, (flat,), error) from error  # pyright: ignore[reportPrivateUsage]
    if not unknown:
        return indices
    below = indices < 0 if ignored is None else (indices < 0) & (indices != ignored)
    return where(below, size + (ignored == size), indices)


def weighted_or_zero(share: Tensor, x: Tensor) -> Tensor:
    """share * x, but zero where the share is zero and x is infinite: 0 log 0 = 0."""
    void = (share == 0.0) & x.isinf()
    return where(void, 0.0, share * where(void, 0.0, x))
