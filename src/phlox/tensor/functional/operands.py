"""The operands of functions: of the right kinds, brought to one backend."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

import numpy as np

from phlox.backend import Bool, Float, Int, Kind
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.backend_promotion import common, together
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor, wrap

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""What becomes of losses."""

_CONVERSIONS: dict[type[Kind], str] = {Float: ".float()", Int: ".int()", Bool: ".bool()"}


def expect(name: str, kind: type[Kind], **operands: Tensor[Any, Any, Any] | None) -> None:
    """`KindError` unless each operand is a tensor of this kind, or absent."""
    for what, x in operands.items():
        if x is None:
            continue
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(
                f"{name}: {what} must be a {kind.__name__} tensor, got {type(x).__name__}; "
                f"make one with phlox.tensor(...)"
            )
        if x._ops.kind is not kind:  # pyright: ignore[reportPrivateUsage]
            raise KindError(
                f"{name}: {what} must be a {kind.__name__} tensor, got {x.kind.__name__}; "
                f"convert with {_CONVERSIONS[kind]} first"
            )


def meet(name: str, *operands: Tensor[Any, Any, Any] | None) -> list[Any]:
    """The operands on one backend, those that are absent left out as they are."""
    met = iter(together(name, [x for x in operands if x is not None]))
    return [None if x is None else next(met) for x in operands]


def compute(name: str, *arguments: Any, operation: str | None = None) -> Any:
    """Call a composite of floats on tensors of any kinds and on options; its results, one or several, are Float.

    `operation` is what the contract calls it, where that is not `name`.
    """
    ops: Any = None
    alike = True
    natives: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            natives.append(x.primitive)
            mine = x._ops  # pyright: ignore[reportPrivateUsage]
            if mine is not ops:
                alike = ops is None and mine.kind is Float
                ops = mine
        else:
            natives.append(x)
    if ops is None or not alike:
        tensors: list[Tensor[Any, Any, Any]] = [x for x in arguments if isinstance(x, Tensor)]
        # An untracked value of a decorated backend is the inner one's own, so what is brought there stays as it is.
        ops = ops_of(common(name, tensors), Float)
    try:
        found = ops[operation or name](*natives)
    except Exception as error:
        raise failure(name, ops, tuple(natives), error) from error
    if isinstance(found, tuple):
        return tuple(wrap(ops, one) for one in cast("tuple[Any, ...]", found))
    return wrap(ops, found)


def expect_pair(name: str, prediction: Tensor, target: Tensor) -> None:
    """What most losses compare: two Float tensors of one shape."""
    expect(name, Float, prediction=prediction, target=target)
    if prediction.shape != target.shape:
        expect_alike(name, prediction=prediction, target=target)


def reduced(name: str, losses: Tensor, reduction: Reduction) -> Tensor:
    """The mean or the sum of losses, or the losses themselves; `RangeError` for another word."""
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise RangeError(f"{name}: reduction is 'mean', 'sum' or 'none', got {reduction!r}")


def expect_broadcast(name: str, what: str, x: Tensor[Any, Any, Any] | None, shape: tuple[int, ...]) -> None:
    """`ShapeError` unless x, or None, broadcasts to `shape` without making it any larger."""
    if x is None:
        return
    fits = x.ndim <= len(shape) and all(
        mine in (1, theirs) for mine, theirs in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(f"{name}: {what} of shape {x.shape} does not broadcast to the shape of the losses, {shape}")


def expect_alike(name: str, **operands: Tensor[Any, Any, Any]) -> None:
    """`ShapeError` unless all are of one shape: that of one may not grow by another's, unnoticed."""
    shapes = {what: x.shape for what, x in operands.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{what} of shape {shape}" for what, shape in shapes.items())
        raise ShapeError(f"{name}: {listed}; they must be the same")


def expect_one_covers(name: str, **operands: Tensor[Any, Any, Any]) -> None:
    """`ShapeError` unless all broadcast to the shape of one of them: [n, 1] and [n] would make [n, n] unnoticed."""
    shapes = [x.shape for x in operands.values()]
    try:
        covered = np.broadcast_shapes(*shapes) in shapes
    except ValueError:
        covered = False
    if not covered:
        listed = ", ".join(f"{what} of shape {x.shape}" for what, x in operands.items())
        raise ShapeError(f"{name}: {listed}; they must be the same, or broadcast to the largest of them")


def share_of(share: Tensor, x: Tensor) -> Tensor:
    """share x, zero where the share is zero and x is infinite: 0 log 0 = 0."""
    void = (share == 0.0) & x.isinf()
    return where(void, 0.0, share * where(void, 0.0, x))
