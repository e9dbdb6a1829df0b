"""A loop of a program, on the tape: its body is traced once, and the backward pass is a second loop.

The arrays that the nodes of one step save become results of the loop, one entry per step. The second loop runs from the
last step to the first: it creates the nodes of each step again, with the saved arrays, and backpropagates through them.
If the arrays of a node cannot be reached (a function closes over them, as in `checkpoint`), the second loop runs the
body again, from the carry at the start of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from phlox.autodiff.backward import backpropagate
from phlox.autodiff.collectives import TapeOps
from phlox.autodiff.residuals import NodeTemplate, Saver, UnreachableArrays, end
from phlox.autodiff.tape import Cotangents, Node, leaf, next_id
from phlox.autodiff.taping import new_node, split_results, tape_several
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients
from phlox.backend.contract.widening import converters
from phlox.backend.levels import has_history

Arrays: TypeAlias = tuple[Array, ...]
Body: TypeAlias = Callable[[Arrays, Arrays], tuple[Sequence[Array], Sequence[Array]]]
"""`(carry, x) -> (carry, y)`, as in `Backend.scan`."""


def scan(
    backend: TapeOps, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[Arrays, Arrays]:
    """`backend.scan` while a program is being traced."""
    inner, box, count = backend.inner, backend.box, len(carry)
    values, entries = [backend.value(x) for x in carry], [backend.value(x) for x in xs]
    tracer = _BodyTracer(backend, body, values, [type(x) is box for x in carry], [type(x) is box for x in xs])
    while True:
        try:
            after, found = inner.scan(tracer.forward, values, entries, length, reverse=reverse)
            break
        except _Retry as retry:
            if retry.tracer is not tracer:
                raise
    traced = tracer.last
    results = [*after, *found[: len(traced.roots) - count]]
    for place in traced.unchanged:
        results[place] = carry[place]
    for place in traced.new_leaves:
        results[place] = leaf(box, results[place])
    tracked = [place for place, root in enumerate(traced.roots) if root is not None]
    if tracked:
        wanted = (*tracer.tracked_carry, *tracer.tracked_xs)
        sources = [x for x, is_tracked in zip((*carry, *xs), wanted, strict=True) if is_tracked]
        saved = (found[len(traced.roots) - count :], tuple(traced.outside), tuple(entries[n] for n in traced.entries))
        backward_loop = _BackwardLoop(backend, tracer, traced, length, not reverse)
        whole = new_node((*map(backend.node_of, sources), *traced.captured), backward_loop.vjp, saved)
        boxes = split_results(box, tuple(results[place] for place in tracked), whole)
        for place, x in zip(tracked, boxes, strict=True):
            results[place] = x
    return tuple(results[:count]), tuple(results[count:])


def unstack(backend: TapeOps, x: Array) -> Sequence[Array]:
    """`backend.unstack` of a tracked array: one node for all."""

    def run(value: Array) -> tuple[Arrays, None]:
        return tuple(backend.inner.unstack(value)), None

    def differentiate(inner: Backend, saved: None, gs: Sequence[Array | None], needed: Any) -> Gradients:
        some = next(g for g in gs if g is not None)
        zeros = inner.float_full(inner.shape(some), 0.0, inner.device_of(some))
        return (inner.stack([zeros if g is None else g for g in gs]),)

    return tape_several(backend.inner, backend.box, (x,), run, differentiate)


class _Retry(Exception):
    """The body must be traced once more, on other terms."""

    def __init__(self, tracer: _BodyTracer) -> None:
        self.tracer = tracer


@dataclass(slots=True)
class _TracedBody:
    """The result of tracing the body."""

    leaves: list[int]
    """For each argument of the body, first the carry, the number of its node, a leaf; -1 if it is not tracked."""
    roots: list[int | None]
    """For each result, first the carry, the number of its node, if it has gradients to hand on."""
    unchanged: list[int]
    """The tracked parts of the carry that the body returns unchanged."""
    new_leaves: list[int]
    """The parts that it returns as new leaves, such as the parameters of a module after an optimizer's step."""
    captured: list[Node]
    """The nodes outside the body whose values it has captured."""
    made: list[NodeTemplate] | None = None
    """The nodes inside; None if the backward pass must run the body again."""
    residuals: list[Array] = field(default_factory=list[Array])
    """The saved values: arrays of every step, arrays from outside, and numbers of xs."""
    outside: list[Array] = field(default_factory=list[Array])
    entries: list[int] = field(default_factory=list[int])


class _BodyTracer:
    """Traces the body, as `forward`; `last` is the result of the last trace."""

    last: _TracedBody

    def __init__(
        self,
        backend: TapeOps,
        body: Body,
        values: list[Array],
        tracked_carry: list[bool],
        tracked_xs: list[bool],
    ) -> None:
        self.backend, self.body, self.values = backend, body, values
        self.tracked_carry, self.tracked_xs = tracked_carry, tracked_xs
        self.saves = True
        self.start = next_id()

    def run(self, state: Sequence[Array], one: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The arguments of the body (carry and entries) as leaves of the tape, and its results."""
        box = self.backend.box
        wanted = (*self.tracked_carry, *self.tracked_xs)
        given = [leaf(box, x) if one else x for x, one in zip((*state, *one), wanted, strict=True)]
        after, y = self.body(tuple(given[: len(state)]), tuple(given[len(state) :]))
        return given, [*after, *y]

    def forward(self, state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
        """The body for `inner.scan`, which also returns the saved values for the backward pass."""
        backend, count = self.backend, len(state)
        given, results = self.run(state, one)
        nodes: list[Node | None] = [backend.node_of(x) for x in results]
        grown = [known or node is not None for known, node in zip(self.tracked_carry, nodes, strict=False)]
        if grown != self.tracked_carry:  # what is tracked after a step is so before the next
            self.tracked_carry = grown
            raise _Retry(self)
        leaves = _numbers(backend, given)
        unchanged = [place for place in range(count) if nodes[place] is not None and results[place] is given[place]]
        new_leaves = [
            place
            for place, node in enumerate(nodes[:count])
            if node is not None and node.vjp is None and node.id >= self.start and node.id not in leaves
        ]
        for place in (*unchanged, *new_leaves):
            nodes[place] = None
        roots = [node for node in nodes if node is not None]
        inside, captured = _reached(roots, {*leaves}, self.start)
        self.last = traced = _TracedBody(leaves, [node and node.id for node in nodes], unchanged, new_leaves, captured)
        if roots and self.saves:
            saver = Saver(backend.inner, self.start)
            for place in range(count):
                if results[place] is given[place]:
                    saver.add_constant(state[place], self.values[place])
            for place, x in enumerate(one):
                saver.add_entry(x, place)
            try:
                traced.made = [saver.template_of(node) for node in inside]
            except UnreachableArrays:
                self.saves = False
                raise _Retry(self) from None
            traced.residuals, traced.outside, traced.entries = saver.step, saver.outside, saver.entries
        elif roots:
            traced.residuals, traced.entries = list(state), list(range(len(one)))
        found = [backend.value(x) for x in results]
        return found[:count], [*found[count:], *traced.residuals]


def _numbers(backend: TapeOps, given: Sequence[Array]) -> list[int]:
    nodes = map(backend.node_of, given)
    return [-1 if node is None else node.id for node in nodes]


def _reached(roots: Sequence[Node], leaves: set[int], start: int) -> tuple[list[Node], list[Node]]:
    """The nodes of the body that the roots depend on, in order; and the nodes outside."""
    inside: dict[int, Node] = {}
    outside: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.id in inside or node.id in outside or node.id in leaves:
            continue
        if node.id < start:
            outside[node.id] = node
        elif node.vjp is not None:
            inside[node.id] = node
            stack.extend(parent for parent in node.parents if parent is not None)
    return [inside[number] for number in sorted(inside)], list(outside.values())


class _BackwardLoop:
    """The second loop. It holds no arrays: those that the first has saved are on its node."""

    def __init__(self, backend: TapeOps, tracer: _BodyTracer, traced: _TracedBody, length: int, reverse: bool) -> None:
        inner, self.count = backend.inner, len(tracer.values)
        self.backend, self.inner, self.length, self.reverse = backend, inner, length, reverse
        self.tracked = [place for place, node in enumerate(traced.roots) if node is not None]
        self.roots, self.leaves, self.unchanged, self.made = traced.roots, traced.leaves, traced.unchanged, traced.made
        self.shapes = [inner.shape(x) for x in tracer.values]
        self.tracked_carry = [place for place, wanted in enumerate(tracer.tracked_carry) if wanted]
        self.tracked_xs = [place for place, wanted in enumerate(tracer.tracked_xs) if wanted]
        self.captured = [node.id for node in traced.captured]
        self.again = None if traced.made is not None else tracer.run

    def vjp(self, whole: Node, shares: dict[int, Array], cotangents: Cotangents) -> None:
        """Compute the gradients of the carry, of the xs and of captured values from those of the results."""
        inner, add, settle = self.inner, self.backend.box.add, self.backend.box.settle
        residuals, outside, entries = whole.saved
        given = {place: shares[number] for number, place in enumerate(self.tracked) if number in shares}
        if settle is not None:
            given = {place: settle(g) for place, g in given.items()}
        device = inner.device_of(next(iter(given.values())))
        rows = [place for place in given if place >= self.count]
        columns = [*residuals, *entries, *(given[place] for place in rows)]
        # What adds up over the steps is wide, unless tapes below follow the loop, which carries arrays of theirs alone.
        followed = any(has_history(inner, x) for x in (*columns, *outside, *given.values()))
        wide, grow, _ = (inner, _identity, _identity) if followed else converters(inner)
        total_of = settle if followed and settle is not None else _identity

        def zeros(place: int) -> Array:
            return inner.float_full(self.shapes[place], 0.0, device)

        def settled(g: Array) -> Array:
            return g if settle is None else settle(g)

        def one_step(totals: Arrays, one: Arrays) -> tuple[list[Array], list[Array | None], list[Array | None]]:
            """The gradients of the carry, of the entries, and of captured values."""
            saved, entry, gs = _split(one, len(residuals), len(entries))
            nodes, leaves = self._tape(saved, entry, outside)
            inside: Cotangents = {}
            for place, g in (*zip(self.tracked_carry, totals, strict=True), *zip(rows, gs, strict=True)):
                if place in nodes:
                    number = nodes[place].id
                    inside[number] = add(inside[number], g) if number in inside else g
            ends = {*self.captured, *leaves}
            backpropagate([node for node in nodes.values() if node.id in inside], inside, until=ends)
            after: list[Array] = []
            for place, total in zip(self.tracked_carry, totals, strict=True):
                g = inside.get(leaves[place])
                if place in self.unchanged:
                    after.append(total if g is None else total_of(add(total, g)))
                else:
                    after.append(zeros(place) if g is None else settled(g))
            into = [inside.get(leaves[self.count + place]) for place in self.tracked_xs]
            into = [g if g is None else settled(g) for g in into]
            return after, into, [inside.get(number) for number in self.captured]

        start = [given[place] if place in given else zeros(place) for place in self.tracked_carry]
        start = [grow(g) if place in self.unchanged else g for place, g in zip(self.tracked_carry, start, strict=True)]
        tracked_xs, captured = self._reached(one_step, start, columns)
        sums = [wide.float_full(shape, 0.0, device.on(wide)) for shape in captured.values()]

        def body(state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            after, into, out = one_step(state[: len(start)], one)
            totals = zip(state[len(start) :], captured, strict=True)
            sums = [total_of(add(total, out[place])) for total, place in totals]
            return [*after, *sums], [into[place] for place in tracked_xs]

        ends, gradients = inner.scan(body, [*start, *sums], columns, self.length, reverse=self.reverse)
        parents = whole.parents
        first, last = len(self.tracked_carry), len(self.tracked_carry) + len(self.tracked_xs)
        places = [*range(first), *(last + place for place in captured), *(first + place for place in tracked_xs)]
        for place, g in zip(places, (*ends, *gradients), strict=True):
            parent = parents[place]
            if parent is not None:
                cotangents[parent.id] = add(cotangents[parent.id], g) if parent.id in cotangents else g

    def _tape(self, saved: Arrays, entry: Arrays, outside: Arrays) -> tuple[dict[int, Node], list[int]]:
        """The nodes of the results in one step, and the numbers of the leaves."""
        if self.again is not None:
            given, results = self.again(saved, entry)
            return {place: results[place].node for place in self.tracked}, _numbers(self.backend, given)
        arrays = {"step": saved, "entry": entry, "outside": outside}
        nodes: dict[int, Node] = {}
        for made in self.made or ():
            nodes[made.id] = made.node(nodes, arrays)
        numbers = {place: number for place, number in enumerate(self.roots) if number is not None}
        return {place: nodes.get(number) or end(number) for place, number in numbers.items()}, self.leaves

    def _reached(self, one_step: Any, start: Sequence[Array], columns: Sequence[Array]) -> Any:
        """Which xs and which captured nodes get gradients, the latter with their shapes: found by tracing alone."""
        if not self.tracked_xs and not self.captured:
            return [], {}
        found: list[Any] = []

        def body(state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            after, into, out = one_step(state, one)
            found[:] = (
                [place for place, g in enumerate(into) if g is not None],
                {place: self.inner.shape(g) for place, g in enumerate(out) if g is not None},
            )
            return after, []

        def look(donated: Any, kept: Any) -> list[Any]:
            self.inner.scan(body, start, columns, self.length, reverse=self.reverse)
            return []

        self.inner.trace_only(look, [], [])
        return found


def _identity(x: Array) -> Array:
    return x


def _split(arrays: Arrays, first: int, second: int) -> tuple[Arrays, Arrays, Arrays]:
    return arrays[:first], arrays[first : first + second], arrays[first + second :]
