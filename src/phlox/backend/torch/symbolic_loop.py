"""A loop whose number of steps is a symbolic dimension, in a program that PyTorch exports.

The loop is one operation of the program (`torch.ops.higher_order.scan`), with the body as a graph inside. Tensors that
the body uses from outside become operands of that operation.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from phlox.backend.torch import compat

Arrays: TypeAlias = tuple[Any, ...]
Body: TypeAlias = Callable[[Arrays, Arrays], tuple[Sequence[Any], Sequence[Any]]]


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples, dicts and slices."""
    tensors: list[torch.Tensor] = []
    map_aggregate(value, lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None)
    return tensors


class OuterOperands(TorchFunctionMode):
    """Collects the operands that were not made within this scope."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.internal = {id(x): x for x in inputs}  # keeps them alive, so that no other object gets their ids
        self.outer: dict[int, Any] = {}

    def with_results(self, results: Sequence[Any]) -> list[Any]:
        """These operands, and those of these results that were not made within this scope."""
        self.outer.update({id(x): x for x in results if id(x) not in self.internal})
        return list(self.outer.values())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            if id(x) not in self.internal:
                self.outer.setdefault(id(x), x)
        result = func(*args, **(kwargs or {}))
        self.internal.update({id(x): x for x in _tensors(result)})
        return result


class Replacing(TorchFunctionMode):
    """Replaces operands of operations by others."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_aggregate((args, kwargs or {}), lambda x: self.others.get(id(x), x))
        return func(*args, **kwargs)


def scan(body: Body, carry: Arrays, xs: Arrays, reverse: bool) -> tuple[Arrays, Arrays]:
    """See `phlox.backend.contract.tracing`."""
    first = tuple([x[0] for x in xs])
    with OuterOperands([*carry, *first]) as noted:
        body(carry, first)
    outside = list(noted.outer.values())

    def step(*operands: Any) -> list[Any]:
        state, inputs = operands[: len(carry)], operands[len(carry) :]
        others = {id(x): other for x, other in zip(outside, inputs[len(xs) :], strict=True)}
        with Replacing(others):
            after, y = body(tuple(state), tuple(inputs[: len(xs)]))
            return [x.clone() for x in (*after, *y)]  # no result may be an operand, or another result

    along = [x.flip(0) if reverse else x for x in xs]
    # An operation makes weights, which are values, part of the trace.
    results = compat.scan_operation()(step, [x.clone() for x in carry], along, tuple([x.clone() for x in outside]))
    ys = results[len(carry) :]
    return tuple(results[: len(carry)]), tuple([y.flip(0) if reverse else y for y in ys])
