"""Compile an elementwise update that many parameters share only once.

An optimizer updates all parameters in the same way, so a traced step consists mostly of one short list of operations,
repeated for each parameter, and these repetitions take most of the compile time. The update is cut out of the graph,
compiled once for arrays of any length, and called for each parameter after the remaining graph has run.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from phlox.backend.torch import compat
from phlox.backend.torch.compiler.graph import arguments_of, is_elementwise, origin_of, shape_of
from phlox.backend.torch.compiler.passes.donation import MUCH, size_of
from phlox.backend.torch.compiler.passes.scalar_cse import plain

_MANY = 8
"""With at least so many updates of one kind, compiling the update separately takes less time."""

Trace: TypeAlias = Callable[[], tuple[Any, Sequence[Any]]]
Compile: TypeAlias = Callable[[str, Trace], Callable[..., Any]]
"""Compiles a graph, which a text describes, and which is traced if need be, with examples of its arguments."""


class _ParamUpdate(NamedTuple):
    """The update of one parameter and its state."""

    steps: list[Any]
    """The operations, all of one shape."""
    operands: list[Any]
    """Its operands: arrays of that shape, and scalars."""
    results: list[int]
    """The positions of its results among the program's results, in the order of the operations."""
    targets: tuple[int | None, ...]
    """For each result, the operand whose memory it may take, if any."""
    form: tuple[Any, ...]
    """A key, equal for updates of one kind."""


class _Part(NamedTuple):
    """One update at run time."""

    sources: list[tuple[bool, int]]
    """For each operand, (is it an argument of the program, or a result of the remaining graph?, its position)."""
    results: list[int]


class _Call(NamedTuple):
    """One call of a kernel: for one update in place, or for many small updates, whose arrays are joined in copies."""

    kernel: Callable[..., Any]
    parts: list[_Part]
    targets: list[int]
    in_place: bool


class SharedUpdateCalls:
    """The updates that were cut out of a program."""

    def __init__(self, calls: Sequence[_Call], remaining: Sequence[int], count: int) -> None:
        self._calls, self._remaining, self._count = calls, remaining, count

    def together(self, flat: Sequence[torch.Tensor], arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All results of the program, from its arguments `flat` and `arrays`, the results of the remaining graph."""
        results: list[Any] = [None] * self._count
        for position, x in zip(self._remaining, arrays, strict=False):
            results[position] = x
        for kernel, parts, targets, in_place in self._calls:
            operands = [[flat[i] if is_argument else arrays[i] for is_argument, i in part.sources] for part in parts]
            if in_place:
                kernel(*[x.reshape(-1) if x.ndim else x for x in operands[0]])
                for target, position in zip(targets, parts[0].results, strict=True):
                    results[position] = operands[0][target]
                continue
            columns = list(zip(*operands, strict=True))
            row = [_joined(column) if column[0].ndim else column[0] for column in columns]
            kernel(*row)
            for number, target in enumerate(targets):
                for x, part in zip(compat.UNFLATTEN.value(row[target], columns[target]), parts, strict=True):
                    results[part.results[number]] = x
        return results


def _joined(column: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of all elements, in one dimension; one call, since a program of many small arrays waits for calls."""
    return compat.FLATTEN.value(column) if len(column) > 1 else column[0].flatten().clone()


class SharedUpdates:
    """The updates that occur many times in a traced graph.

    `pairs` maps arguments to the results that may take their memory; `over` are the pairs that will.
    """

    def __init__(self, graph: Any, pairs: Mapping[int, int], over: Mapping[int, int]) -> None:
        nodes = list(graph.graph.nodes)
        self._positions = {node: index for index, node in enumerate(arguments_of(nodes))}
        self._over = over
        by_form: dict[Any, list[_ParamUpdate]] = {}
        for update in _updates(nodes, self._positions, pairs):
            if _stands_alone(update, self._positions, pairs):
                by_form.setdefault((update.form, update.targets), []).append(update)
        kinds = [same for same in by_form.values() if len(same) >= _MANY]
        copied = [update for kind in kinds for update in kind if not self._in_place(update)]
        few = sum(size_of(node) for update in copied for node in _targets(update)) < MUCH
        self._kinds = kinds if few else []

    def _in_place(self, update: _ParamUpdate) -> bool:
        return all(self._positions[node] in self._over for node in _targets(update))

    def cut_out(self, graph: Any, compiled: Compile) -> tuple[SharedUpdateCalls | None, dict[int, int]]:
        """Cut them out of the graph, which then returns its other results, and the operands of the updates.

        Returns the calls that compute the updates, if there are any, and maps old positions of results to new ones.
        """
        output = list(graph.graph.nodes)[-1]
        results = list(output.args[0])
        cut = {index for kind in self._kinds for update in kind for index in update.results}
        remaining = [index for index in range(len(results)) if index not in cut]
        calls: list[_Call] = []
        needed: dict[Any, int] = {}
        for kind in self._kinds:
            kernel = _kernel(kind, compiled)
            rows: dict[Any, _Call] = {}
            for update in kind:
                sources = [
                    (True, self._positions[node])
                    if node in self._positions
                    else (False, len(remaining) + needed.setdefault(node, len(needed)))
                    for node in update.operands
                ]
                in_place = self._in_place(update)
                numbers = tuple([node for node in update.operands if not shape_of(node)])
                targets = [index for index in update.targets if index is not None]
                key = update.results[0] if in_place else numbers
                call = rows.setdefault(key, _Call(kernel, [], targets, in_place))
                call.parts.append(_Part(sources, update.results))
            calls += rows.values()
        if calls:
            output.args = ([*(results[index] for index in remaining), *needed],)
            graph.graph.eliminate_dead_code()
            graph.recompile()
        return SharedUpdateCalls(calls, remaining, len(results)) if calls else None, {
            index: number for number, index in enumerate(remaining)
        }


def _targets(update: _ParamUpdate) -> list[Any]:
    return [update.operands[index] for index in update.targets if index is not None]


def _updates(nodes: Sequence[Any], positions: Mapping[Any, int], pairs: Mapping[int, int]) -> Iterable[_ParamUpdate]:
    """The operations of each group of results that share operations on arrays of their shape."""
    results = nodes[-1].args[0]
    result_index = {node: number for number, node in enumerate(results) if isinstance(node, fx.Node)}
    order = {node: number for number, node in enumerate(nodes)}
    group_of: dict[Any, set[Any]] = {}
    for node in result_index:
        group, stack = set[Any](), [node]
        while stack:
            step = stack.pop()
            if step not in group and _is_step(step):
                group.add(step)
                parts = [part for part in step.all_input_nodes if shape_of(part) == shape_of(node)]
                stack += parts
                # An operation that reads a moment belongs to the update that overwrites it: later it could not read it.
                stack += [results[pairs[positions[part]]] for part in parts if positions.get(part) in pairs]
        for step in list(group):
            group |= group_of.get(step, set())
        group_of.update(dict.fromkeys(group, group))
    for group in {id(group): group for group in group_of.values()}.values():
        yield _update(sorted(group, key=order.__getitem__), result_index, positions, pairs)


def _stands_alone(update: _ParamUpdate, positions: Mapping[Any, int], pairs: Mapping[int, int]) -> bool:
    """May it run after the remaining graph? Yes if that needs none of its results and overwrites no operand of it."""
    steps = {*update.steps}
    arguments = [positions[node] for node in update.operands if node in positions]
    return (
        None not in update.targets
        and all(node.op != "get_attr" for node in update.operands)
        and all(pairs[index] in update.results for index in arguments if index in pairs)
        and not any(positions.get(origin_of(node)) in pairs for node in update.operands if node not in positions)
        and all(user in steps or user.op == "output" for step in update.steps for user in step.users)
    )


def _is_step(node: Any) -> bool:
    """Is it an elementwise operation on arrays of one shape and scalars?"""
    return (
        is_elementwise(node)
        and bool(shape_of(node))
        and all(shape_of(part) in ((), shape_of(node)) for part in node.all_input_nodes)
    )


def _update(
    steps: list[Any], result_index: Mapping[Any, int], positions: Mapping[Any, int], pairs: Mapping[int, int]
) -> _ParamUpdate:
    inside = {node: number for number, node in enumerate(steps)}
    operands: dict[Any, int] = {}

    def part(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ("step", inside[value]) if value in inside else ("given", operands.setdefault(value, len(operands)))
        return tuple([part(step) for step in value]) if isinstance(value, (list, tuple)) else plain(value)

    lines = [(x.target, part(x.args), tuple(sorted((k, part(v)) for k, v in x.kwargs.items()))) for x in steps]
    outcomes = [node for node in steps if node in result_index]
    examples = [(bool(shape_of(node)), node.meta["val"].dtype, node.meta["val"].device) for node in operands]
    form = tuple(lines), tuple(examples), tuple([inside[node] for node in outcomes])
    results = [result_index[node] for node in outcomes]
    target_of = {pairs[positions[node]]: number for node, number in operands.items() if positions.get(node) in pairs}
    return _ParamUpdate(steps, list(operands), results, tuple([target_of.get(step) for step in results]), form)


def _kernel(kind: Sequence[_ParamUpdate], compiled: Compile) -> Callable[..., Any]:
    """The operations of a kind, for one-dimensional arrays of any length; the results overwrite some operands."""
    update = max(kind, key=lambda candidate: size_of(candidate.steps[0]))

    def body(*operands: torch.Tensor) -> list[torch.Tensor]:
        values = dict(zip(update.operands, operands, strict=True))
        for node in update.steps:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        for target, outcome in zip(update.targets, update.form[2], strict=True):
            assert target is not None
            operands[target].copy_(values[update.steps[outcome]])
        return []

    size = update.steps[0].meta["val"].numel()
    shapes = [(size if shape_of(node) else (), node.meta["val"]) for node in update.operands]

    def trace() -> tuple[Any, Sequence[Any]]:
        examples = [torch.zeros(shape, dtype=like.dtype, device=like.device) for shape, like in shapes]
        graph = compat.trace_any_length(body, examples)
        return graph, [node.meta["val"] for node in arguments_of(graph.graph.nodes)]

    return compiled(repr((update.form, update.targets, size)), trace)
