"""A loop of as many steps as a symbolic dimension says, in a program that PyTorch exports.

The program has one operation for it (`torch.ops.higher_order.scan`), with the body as a graph inside. Whatever the body
takes from outside of it becomes an operand of that operation.
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
    found: list[torch.Tensor] = []
    map_aggregate(value, lambda x: found.append(x) if isinstance(x, torch.Tensor) else None)
    return found


class _FromOutside(TorchFunctionMode):
    """Notes the operands that nothing within this scope has made."""

    def __init__(self, own: Sequence[Any]) -> None:
        super().__init__()
        self.known = {id(x): x for x in own}  # which keeps them, and so their ids, alive
        self.found: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            if id(x) not in self.known:
                self.found.setdefault(id(x), x)
        made = func(*args, **(kwargs or {}))
        self.known.update({id(x): x for x in _tensors(made)})
        return made


class _Instead(TorchFunctionMode):
    """Gives operations other operands."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_aggregate((args, kwargs or {}), lambda x: self.others.get(id(x), x))
        return func(*args, **kwargs)


def scan(body: Body, carry: Arrays, xs: Arrays, reverse: bool) -> tuple[Arrays, Arrays]:
    """See `phlox.backend.contract.tracing`."""
    first = tuple([x[0] for x in xs])
    with _FromOutside([*carry, *first]) as noted:
        body(carry, first)
    outside = list(noted.found.values())

    def step(*given: Any) -> list[Any]:
        state, rest = given[: len(carry)], given[len(carry) :]
        others = {id(x): other for x, other in zip(outside, rest[len(xs) :], strict=True)}
        with _Instead(others):
            after, found = body(tuple(state), tuple(rest[: len(xs)]))
            return [x.clone() for x in (*after, *found)]  # none may be an operand, or another one

    along = [x.flip(0) if reverse else x for x in xs]
    # Weights that are values become part of the trace by an operation.
    found = compat.scan_operation()(step, [x.clone() for x in carry], along, tuple([x.clone() for x in outside]))
    ys = found[len(carry) :]
    return tuple(found[: len(carry)]), tuple([y.flip(0) if reverse else y for y in ys])
