"""Layout of updated weights: they lie in memory in the order of axes that the kernels want.

The kernel of an LSTM takes its weights transposed, that of a convolution takes filters channels-last. A weight that a
program takes and returns, and with it its moments, may stay in that order from call to call; then nothing is transposed
in every step, neither weights nor gradients.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import arguments_of, is_elementwise, written_to

Order: TypeAlias = tuple[int, ...]
"""The axes of an array, the one of the largest stride first."""

_aten: Any = torch.ops.aten
_CHANNELS_LAST = (0, 2, 3, 1)
_BY_STRIDES = {_aten.as_strided.default, _aten.new_empty_strided.default, _aten.empty_strided.default}
"""What would mean something else if its argument lay elsewhere."""


def lies(x: torch.Tensor, order: Order) -> bool:
    """Is the array dense, with its axes in this order? Of tracers, too, whose program has been traced."""
    shape, strides, expected = x.shape, x.stride(), 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= shape[axis]
    return True


def laid(x: torch.Tensor, order: Order) -> torch.Tensor:
    """The array, dense, with its axes in this order.

    >>> laid(torch.zeros(2, 3), (1, 0)).stride()
    (1, 2)
    """
    return x.permute(order).contiguous().permute(inverse(order))


def inverse(order: Order) -> Order:
    """The order that undoes another one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class ArgumentLayout:
    """The orders of those arguments of a program that do not lie row by row."""

    def __init__(self, orders: Mapping[int, Order] | None = None, weights: Sequence[int] = ()) -> None:
        self.orders: Mapping[int, Order] = orders or {}
        self._weights = frozenset(weights)
        self._brought: dict[int, tuple[weakref.ref[torch.Tensor], list[int], torch.Tensor]] = {}

    def of(self, flat: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The arguments as the program takes them."""
        orders = self.orders
        return [
            x if (lies(x, orders[at]) if at in orders else x.is_contiguous()) else self._bring(at, x)
            for at, x in enumerate(flat)
        ]

    def _bring(self, at: int, x: torch.Tensor) -> torch.Tensor:
        """An argument in its order; a weight only when it was not there in the last call, unless it was written to."""
        versions = compat.versions_of([x]) if at in self._weights else None
        known = None if versions is None else self._brought.get(at)
        if known is not None and known[0]() is x and known[1] == versions:
            return known[2]
        there = laid(x, self.orders.get(at, tuple(range(x.ndim))))
        if versions is not None:
            self._brought[at] = weakref.ref(x, lambda _: self._brought.pop(at, None)), versions, there
        return there


def assign_orders(graph: Any) -> dict[int, Order]:
    """Orders for arguments by position, none for those that lie row by row; the graph is changed to take them so.

    What elementwise operations connect lies in one order, if there is an argument among it, a result, and something
    that is brought into that order. Other results are as they were.
    """
    nodes = list(graph.graph.nodes)
    if any(node.target in _BY_STRIDES for node in nodes):
        return {}
    groups = _Groups(nodes)
    results = {groups.of(node) for node in nodes[-1].all_input_nodes if node.op == "call_function"}
    taken = arguments_of(nodes)
    arguments = {groups.of(node) for node in taken}
    roots = written_to(nodes)
    written = {groups.of(root) for root in roots}
    wanted: dict[Any, set[Order]] = {}
    copies: dict[Any, list[Any]] = {}
    for node in nodes:
        source, order = _want(node)
        if source is None or node in roots:
            continue
        group = groups.of(source)
        if group in results and group in arguments and group not in written:
            if lies(source.meta["val"], order):
                order = tuple(range(len(order)))
            wanted.setdefault(group, set()).add(order)
            copies.setdefault(group, []).append(node)
    orders = {group: found.pop() for group, found in wanted.items() if len(found) == 1}
    orders = {group: order for group, order in orders.items() if order != tuple(range(len(order)))}
    if orders:
        _loosen(nodes, {copy for group in orders for copy in copies[group]})
        _give_back(graph.graph, nodes[-1], lambda node: orders.get(groups.of(node)))
        graph.recompile()
    found = ((at, orders.get(groups.of(node))) for at, node in enumerate(taken))
    return {at: order for at, order in found if order is not None}


class _Groups:
    """Nodes that elementwise operations connect, and that are of one shape."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self._above: dict[Any, Any] = {}
        for node in nodes:
            if is_elementwise(node):
                for part in node.all_input_nodes:
                    one, other = self.of(part), self.of(node)
                    if one is not other and _shape(part) is not None and _shape(part) == _shape(node):
                        self._above[one] = other

    def of(self, node: Any) -> Any:
        """One of the group, which stands for it."""
        while node in self._above:
            node = self._above[node]
        return node


def _shape(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) and value.ndim > 1 else None


def _permuted(node: Any) -> tuple[Any, Order]:
    """Of which array this one is a view with its axes in another order, and in which."""
    order = tuple(range(node.meta["val"].ndim)) if isinstance(node.meta.get("val"), torch.Tensor) else ()
    while order:
        if node.target is _aten.t.default and len(order) == 2:
            step = (1, 0)
        elif node.target is _aten.permute.default:
            step = tuple(axis % len(order) for axis in node.args[1])
        elif node.target is _aten.transpose.int:
            axes = list(range(len(order)))
            one, other = node.args[1:]
            axes[one], axes[other] = axes[other], axes[one]
            step = tuple(axes)
        else:
            break
        order = tuple(step[axis] for axis in order)
        node = node.args[0]
    return node, order


def _want(node: Any) -> tuple[Any | None, Order]:
    """Which array is wanted in which order by this operation, if it wants one; what is only given back wants none."""
    if all(user.op == "output" for user in node.users):
        return None, ()
    if node.target is _aten.clone.default and node.kwargs.get("memory_format") is not None:
        source, order = _permuted(node.args[0])
        if node.kwargs["memory_format"] is torch.channels_last:
            return source, tuple(order[axis] for axis in _CHANNELS_LAST)
        return (source, order) if node.kwargs["memory_format"] is torch.contiguous_format else (None, ())
    if node.target is _aten.convolution.default:
        x = node.args[0].meta["val"]
        if x.ndim == 4 and x.device.type == "cpu" and lies(x, _CHANNELS_LAST):
            source, order = _permuted(node.args[1])
            return source, tuple(order[axis] for axis in _CHANNELS_LAST)
    return None, ()


def _loosen(nodes: Sequence[Any], copies: set[Any]) -> None:
    """Replace what holds only for arrays that lie row by row."""
    for node in nodes:
        if node in copies and node.target is _aten.clone.default:
            node.target = _aten.contiguous.default
        elif node.target is _aten.view.default or compat.is_unsafe_view(node.target):
            node.target = _aten.reshape.default


def _give_back(graph: Any, output: Any, order_of: Callable[[Any], Order | None]) -> None:
    """Results in the order of their groups, whatever the kernels gave."""
    found: list[Any] = []
    with graph.inserting_before(output):
        for node in output.args[0]:
            order = order_of(node) if isinstance(node, fx.Node) and node.op == "call_function" else None
            if order is not None:
                turned = graph.call_function(_aten.permute.default, (node, list(order)))
                turned = graph.call_function(_aten.contiguous.default, (turned,))
                node = graph.call_function(_aten.permute.default, (turned, list(inverse(order))))
            found.append(node)
    output.args = (found,)
