"""Compile an elementwise update that many parameters share only once.

An optimizer does with every parameter what it does with the others, so that most of a traced step is one short list
of operations, again and again, and most of the time to compile it goes there. The update is cut out of the graph,
compiled once for arrays of any length, and called for one parameter after the other once the rest has run.
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
"""Updates of one kind from which compiling them by themselves takes less time."""

Compile: TypeAlias = Callable[[Any, Sequence[Any]], Callable[..., Any]]


class _ParamUpdate(NamedTuple):
    """The update of one parameter and its state."""

    steps: list[Any]
    """The operations, all of one shape."""
    given: list[Any]
    """Its operands: arrays of that shape, and scalars."""
    results: list[int]
    """The positions of what comes of them among the results, in the order of the operations."""
    targets: tuple[int | None, ...]
    """For each of them which of the given arrays it may take the place of, if any."""
    form: tuple[Any, ...]
    """The key that is the same for updates of one kind."""


class _Part(NamedTuple):
    """One update at run time."""

    sources: list[tuple[bool, int]]
    """Of what it is given: is it an argument of the program, or something that it returned? And which."""
    results: list[int]


class _Call(NamedTuple):
    """One call of a kernel: for one update whose arrays it writes over, or for copies of many small ones in a row."""

    kernel: Callable[..., Any]
    parts: list[_Part]
    targets: list[int]
    in_place: bool


class SharedUpdateCalls:
    """The updates that were cut out of a program."""

    def __init__(self, calls: Sequence[_Call], kept: Sequence[int], count: int) -> None:
        self._calls, self._kept, self._count = calls, kept, count

    def together(self, flat: Sequence[torch.Tensor], arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All results of the program: of its arguments, and of what the rest of it has come to."""
        results: list[Any] = [None] * self._count
        for at, x in zip(self._kept, arrays, strict=False):
            results[at] = x
        for kernel, parts, targets, in_place in self._calls:
            given = [[flat[at] if is_argument else arrays[at] for is_argument, at in part.sources] for part in parts]
            rows = [[x.reshape(-1) if x.ndim else x for x in xs] for xs in given]
            if in_place:
                kernel(*rows[0])
                for target, at in zip(targets, parts[0].results, strict=True):
                    results[at] = given[0][target]
                continue
            row = [torch.cat(column) if column[0].ndim else column[0] for column in zip(*rows, strict=True)]
            kernel(*row)
            sizes = [xs[targets[0]].numel() for xs in rows]
            for number, target in enumerate(targets):
                for x, xs, part in zip(row[target].split(sizes), given, parts, strict=True):
                    results[part.results[number]] = x.view(xs[target].shape)
        return results


class SharedUpdates:
    """The updates in a traced graph of which there are many.

    `pairs` are arguments whose memory results may take, and these; `over` are those of them that will.
    """

    def __init__(self, graph: Any, pairs: Mapping[int, int], over: Mapping[int, int]) -> None:
        nodes = list(graph.graph.nodes)
        self._places = {node: at for at, node in enumerate(arguments_of(nodes))}
        self._over = over
        by_form: dict[Any, list[_ParamUpdate]] = {}
        for update in _updates(nodes, self._places, pairs):
            if _stands_alone(update, self._places, pairs):
                by_form.setdefault((update.form, update.targets), []).append(update)
        kinds = [same for same in by_form.values() if len(same) >= _MANY]
        copied = [update for kind in kinds for update in kind if not self._in_place(update)]
        few = sum(size_of(node) for update in copied for node in _targets(update)) < MUCH
        self._kinds = kinds if few else []

    def _in_place(self, update: _ParamUpdate) -> bool:
        return all(self._places[node] in self._over for node in _targets(update))

    def cut_out(self, graph: Any, compiled: Compile) -> tuple[SharedUpdateCalls | None, dict[int, int]]:
        """Cut them out of the graph, which then returns the rest of its results, and what they need of it.

        Gives what computes them, if there are any, and the new positions of those that are left by the old ones.
        """
        output = list(graph.graph.nodes)[-1]
        results = list(output.args[0])
        cut = {at for kind in self._kinds for update in kind for at in update.results}
        kept = [at for at in range(len(results)) if at not in cut]
        calls: list[_Call] = []
        needed: dict[Any, int] = {}
        for kind in self._kinds:
            kernel = _kernel(kind, compiled)
            rows: dict[Any, _Call] = {}
            for update in kind:
                sources = [
                    (True, self._places[node])
                    if node in self._places
                    else (False, len(kept) + needed.setdefault(node, len(needed)))
                    for node in update.given
                ]
                in_place = self._in_place(update)
                numbers = tuple([node for node in update.given if not shape_of(node)])
                targets = [at for at in update.targets if at is not None]
                key = update.results[0] if in_place else numbers
                call = rows.setdefault(key, _Call(kernel, [], targets, in_place))
                call.parts.append(_Part(sources, update.results))
            calls += rows.values()
        if calls:
            output.args = ([*(results[at] for at in kept), *needed],)
            graph.graph.eliminate_dead_code()
            graph.recompile()
        return SharedUpdateCalls(calls, kept, len(results)) if calls else None, {
            at: number for number, at in enumerate(kept)
        }


def _targets(update: _ParamUpdate) -> list[Any]:
    return [update.given[at] for at in update.targets if at is not None]


def _updates(nodes: Sequence[Any], places: Mapping[Any, int], pairs: Mapping[int, int]) -> Iterable[_ParamUpdate]:
    """For each group of results that share operations on arrays of their shape, these."""
    results = nodes[-1].args[0]
    at = {node: number for number, node in enumerate(results) if isinstance(node, fx.Node)}
    order = {node: number for number, node in enumerate(nodes)}
    group_of: dict[Any, set[Any]] = {}
    for node in at:
        mine, stack = set[Any](), [node]
        while stack:
            one = stack.pop()
            if one not in mine and _is_step(one):
                mine.add(one)
                parts = [part for part in one.all_input_nodes if shape_of(part) == shape_of(node)]
                stack += parts
                # What reads a moment belongs to what takes its place: it could not be read afterwards.
                stack += [results[pairs[places[part]]] for part in parts if places.get(part) in pairs]
        for one in list(mine):
            mine |= group_of.get(one, set())
        group_of.update(dict.fromkeys(mine, mine))
    for mine in {id(group): group for group in group_of.values()}.values():
        yield _update(sorted(mine, key=order.__getitem__), at, places, pairs)


def _stands_alone(update: _ParamUpdate, places: Mapping[Any, int], pairs: Mapping[int, int]) -> bool:
    """May it run after the rest, which does not need what it computes, and overwrites nothing that it reads?"""
    mine = {*update.steps}
    arguments = [places[node] for node in update.given if node in places]
    return (
        None not in update.targets
        and all(node.op != "get_attr" for node in update.given)
        and all(pairs[at] in update.results for at in arguments if at in pairs)
        and not any(places.get(origin_of(node)) in pairs for node in update.given if node not in places)
        and all(user in mine or user.op == "output" for step in update.steps for user in step.users)
    )


def _is_step(node: Any) -> bool:
    """Is it an elementwise operation on arrays of one shape, and numbers?"""
    return (
        is_elementwise(node)
        and bool(shape_of(node))
        and all(shape_of(part) in ((), shape_of(node)) for part in node.all_input_nodes)
    )


def _update(
    steps: list[Any], at: Mapping[Any, int], places: Mapping[Any, int], pairs: Mapping[int, int]
) -> _ParamUpdate:
    inside = {node: number for number, node in enumerate(steps)}
    given: dict[Any, int] = {}

    def part(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return ("step", inside[value]) if value in inside else ("given", given.setdefault(value, len(given)))
        return tuple([part(one) for one in value]) if isinstance(value, (list, tuple)) else plain(value)

    lines = [(one.target, part(one.args), tuple(sorted((k, part(v)) for k, v in one.kwargs.items()))) for one in steps]
    outcomes = [node for node in steps if node in at]
    looks = [(bool(shape_of(node)), node.meta["val"].dtype, node.meta["val"].device) for node in given]
    form = tuple(lines), tuple(looks), tuple([inside[node] for node in outcomes])
    results = [at[node] for node in outcomes]
    mine = {pairs[places[node]]: number for node, number in given.items() if places.get(node) in pairs}
    return _ParamUpdate(steps, list(given), results, tuple([mine.get(one) for one in results]), form)


def _kernel(kind: Sequence[_ParamUpdate], compiled: Compile) -> Callable[..., Any]:
    """The operations of a kind on arrays of one axis, of any length, whose results are written over some of them."""
    update = max(kind, key=lambda one: size_of(one.steps[0]))

    def body(*given: torch.Tensor) -> list[torch.Tensor]:
        values = dict(zip(update.given, given, strict=True))
        for node in update.steps:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        for target, outcome in zip(update.targets, update.form[2], strict=True):
            assert target is not None
            given[target].copy_(values[update.steps[outcome]])
        return []

    size = update.steps[0].meta["val"].numel()
    looks = [(size if shape_of(node) else (), node.meta["val"]) for node in update.given]
    examples = [torch.zeros(shape, dtype=like.dtype, device=like.device) for shape, like in looks]
    graph = compat.trace_any_length(body, examples)
    return compiled(graph, [node.meta["val"] for node in arguments_of(graph.graph.nodes)])
