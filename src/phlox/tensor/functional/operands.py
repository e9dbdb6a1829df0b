"""The operands of functions: of the right kinds, brought to one backend."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from phlox.backend import Bool, Float, Int, Kind
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import failure
from phlox.tensor.meeting import common, together
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
        raise ShapeError(
            f"{name}: prediction of shape {prediction.shape}, target of shape {target.shape}; they must be the same"
        )


def reduced(name: str, losses: Tensor, reduction: Reduction) -> Tensor:
    """The mean or the sum of losses, or the losses themselves; `RangeError` for another word."""
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise RangeError(f"{name}: reduction is 'mean', 'sum' or 'none', got {reduction!r}")
