"""Records a loop of a program on the tape: its body is traced once, and the backward pass is a second loop.

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
            new_carry, outputs = inner.scan(tracer.forward, values, entries, length, reverse=reverse)
            break
        except _Retry as retry:
            if retry.tracer is not tracer:
                raise
    traced = tracer.last
    results = [*new_carry, *outputs[: len(traced.roots) - count]]
    for index in traced.unchanged:
        results[index] = carry[index]
    for index in traced.new_leaves:
        results[index] = leaf(box, results[index])
    tracked = [index for index, root in enumerate(traced.roots) if root is not None]
    if tracked:
        tracked_flags = (*tracer.tracked_carry, *tracer.tracked_xs)
        sources = [x for x, is_tracked in zip((*carry, *xs), tracked_flags, strict=True) if is_tracked]
        saved = (outputs[len(traced.roots) - count :], tuple(traced.outside), tuple(entries[n] for n in traced.entries))
        backward_loop = _BackwardLoop(backend, tracer, traced, length, not reverse)
        whole = new_node((*map(backend.node_of, sources), *traced.captured), backward_loop.vjp, saved)
        boxes = split_results(box, tuple(results[index] for index in tracked), whole)
        for index, x in zip(tracked, boxes, strict=True):
            results[index] = x
    return tuple(results[:count]), tuple(results[count:])


def unstack(backend: TapeOps, x: Array) -> Sequence[Array]:
    """`backend.unstack` of a tracked array, with one node for all results."""

    def run(value: Array) -> tuple[Arrays, None]:
        return tuple(backend.inner.unstack(value)), None

    def differentiate(inner: Backend, saved: None, gs: Sequence[Array | None], needed: Any) -> Gradients:
        present = next(g for g in gs if g is not None)
        zeros = inner.float_full(inner.shape(present), 0.0, inner.device_of(present))
        return (inner.stack([zeros if g is None else g for g in gs]),)

    return tape_several(backend.inner, backend.box, (x,), run, differentiate)


class _Retry(Exception):
    """Raised when the body must be traced again, with changed settings of the tracer."""

    def __init__(self, tracer: _BodyTracer) -> None:
        self.tracer = tracer


@dataclass(slots=True)
class _TracedBody:
    """The result of tracing the body."""

    leaves: list[int]
    """For each argument of the body (the carry comes first), the id of its node, a leaf; -1 if it is not tracked."""
    roots: list[int | None]
    """For each result (the carry comes first), the id of its node; None if it passes no gradient on."""
    unchanged: list[int]
    """The indices of tracked entries of the carry that the body returns unchanged."""
    new_leaves: list[int]
    """The indices of entries of the carry that the body returns as new leaves, such as parameters after a step."""
    captured: list[Node]
    """The nodes outside the body whose values it has captured."""
    templates: list[NodeTemplate] | None = None
    """Templates of the nodes inside the body; None if the backward pass must run the body again."""
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

    def run(self, state: Sequence[Array], entries: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Run the body on leaves of the tape; returns its arguments (the carry, then the entries) and its results."""
        box = self.backend.box
        tracked = (*self.tracked_carry, *self.tracked_xs)
        arguments = [leaf(box, x) if track else x for x, track in zip((*state, *entries), tracked, strict=True)]
        new_carry, y = self.body(tuple(arguments[: len(state)]), tuple(arguments[len(state) :]))
        return arguments, [*new_carry, *y]

    def forward(self, state: Arrays, entries: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
        """The body for `inner.scan`, which also returns the saved values for the backward pass."""
        backend, count = self.backend, len(state)
        arguments, results = self.run(state, entries)
        nodes: list[Node | None] = [backend.node_of(x) for x in results]
        tracked_carry = [tracked or node is not None for tracked, node in zip(self.tracked_carry, nodes, strict=False)]
        if tracked_carry != self.tracked_carry:  # a carry that is tracked after one step is tracked before the next
            self.tracked_carry = tracked_carry
            raise _Retry(self)
        leaves = _node_ids(backend, arguments)
        unchanged = [index for index in range(count) if nodes[index] is not None and results[index] is arguments[index]]
        new_leaves = [
            index
            for index, node in enumerate(nodes[:count])
            if node is not None and node.vjp is None and node.id >= self.start and node.id not in leaves
        ]
        for index in (*unchanged, *new_leaves):
            nodes[index] = None
        roots = [node for node in nodes if node is not None]
        inside, captured = _nodes_of_body(roots, {*leaves}, self.start)
        self.last = traced = _TracedBody(leaves, [node and node.id for node in nodes], unchanged, new_leaves, captured)
        if roots and self.saves:
            saver = Saver(backend.inner, self.start)
            for index in range(count):
                if results[index] is arguments[index]:
                    saver.add_constant(state[index], self.values[index])
            for index, x in enumerate(entries):
                saver.add_entry(x, index)
            try:
                traced.templates = [saver.template_of(node) for node in inside]
            except UnreachableArrays:
                self.saves = False
                raise _Retry(self) from None
            traced.residuals, traced.outside, traced.entries = saver.step, saver.outside, saver.entries
        elif roots:
            traced.residuals, traced.entries = list(state), list(range(len(entries)))
        values = [backend.value(x) for x in results]
        return values[:count], [*values[count:], *traced.residuals]


def _node_ids(backend: TapeOps, arguments: Sequence[Array]) -> list[int]:
    nodes = map(backend.node_of, arguments)
    return [-1 if node is None else node.id for node in nodes]


def _nodes_of_body(roots: Sequence[Node], leaves: set[int], start: int) -> tuple[list[Node], list[Node]]:
    """The nodes that the roots depend on: those inside the body, from the oldest to the newest, and those outside."""
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
    return [inside[node_id] for node_id in sorted(inside)], list(outside.values())


class _BackwardLoop:
    """The second loop. It holds no arrays: the arrays that the first loop has saved are on the node of that loop."""

    def __init__(self, backend: TapeOps, tracer: _BodyTracer, traced: _TracedBody, length: int, reverse: bool) -> None:
        inner, self.count = backend.inner, len(tracer.values)
        self.backend, self.inner, self.length, self.reverse = backend, inner, length, reverse
        self.tracked = [index for index, node in enumerate(traced.roots) if node is not None]
        self.roots, self.leaves, self.unchanged = traced.roots, traced.leaves, traced.unchanged
        self.shapes, self.templates = [inner.shape(x) for x in tracer.values], traced.templates
        self.tracked_carry = [index for index, is_tracked in enumerate(tracer.tracked_carry) if is_tracked]
        self.tracked_xs = [index for index, is_tracked in enumerate(tracer.tracked_xs) if is_tracked]
        self.captured = [node.id for node in traced.captured]
        self.rerun = None if traced.templates is not None else tracer.run

    def vjp(self, whole: Node, shares: dict[int, Array], cotangents: Cotangents) -> None:
        """Compute the gradients of the carry, of the xs and of captured values from those of the results."""
        inner, add, settle = self.inner, self.backend.box.add, self.backend.box.settle
        residuals, outside, entries = whole.saved
        received = {index: shares[number] for number, index in enumerate(self.tracked) if number in shares}
        if settle is not None:
            received = {index: settle(g) for index, g in received.items()}
        device = inner.device_of(next(iter(received.values())))
        rows = [index for index in received if index >= self.count]
        columns = [*residuals, *entries, *(received[index] for index in rows)]
        # Sums over steps are at full precision, unless tapes below record the loop: it can only carry their own arrays.
        followed = any(has_history(inner, x) for x in (*columns, *outside, *received.values()))
        wide, grow, _ = (inner, _identity, _identity) if followed else converters(inner)
        total_of = settle if followed and settle is not None else _identity

        def zeros(index: int) -> Array:
            return inner.float_full(self.shapes[index], 0.0, device)

        def settled(g: Array) -> Array:
            return g if settle is None else settle(g)

        def one_step(totals: Arrays, columns: Arrays) -> tuple[list[Array], list[Array | None], list[Array | None]]:
            """The gradients of the carry, of the entries, and of captured values."""
            saved, entry, gs = _split(columns, len(residuals), len(entries))
            nodes, leaves = self._tape(saved, entry, outside)
            inside: Cotangents = {}
            for index, g in (*zip(self.tracked_carry, totals, strict=True), *zip(rows, gs, strict=True)):
                if index in nodes:
                    number = nodes[index].id
                    inside[number] = add(inside[number], g) if number in inside else g
            ends = {*self.captured, *leaves}
            backpropagate([node for node in nodes.values() if node.id in inside], inside, until=ends)
            new_totals: list[Array] = []
            for index, total in zip(self.tracked_carry, totals, strict=True):
                g = inside.get(leaves[index])
                if index in self.unchanged:
                    new_totals.append(total if g is None else total_of(add(total, g)))
                else:
                    new_totals.append(zeros(index) if g is None else settled(g))
            entry_gradients = [inside.get(leaves[self.count + index]) for index in self.tracked_xs]
            entry_gradients = [g if g is None else settled(g) for g in entry_gradients]
            return new_totals, entry_gradients, [inside.get(number) for number in self.captured]

        start = [received[index] if index in received else zeros(index) for index in self.tracked_carry]
        start = [grow(g) if index in self.unchanged else g for index, g in zip(self.tracked_carry, start, strict=True)]
        tracked_xs, captured = self._find_gradients(one_step, start, columns)
        sums = [wide.float_full(shape, 0.0, device.on(wide)) for shape in captured.values()]

        def body(state: Arrays, step_columns: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            new_totals, entry_gradients, captured_gradients = one_step(state[: len(start)], step_columns)
            totals = zip(state[len(start) :], captured, strict=True)
            sums = [total_of(add(total, captured_gradients[index])) for total, index in totals]
            return [*new_totals, *sums], [entry_gradients[index] for index in tracked_xs]

        ends, gradients = inner.scan(body, [*start, *sums], columns, self.length, reverse=self.reverse)
        parents = whole.parents
        first, last = len(self.tracked_carry), len(self.tracked_carry) + len(self.tracked_xs)
        positions = [*range(first), *(last + index for index in captured), *(first + index for index in tracked_xs)]
        for index, g in zip(positions, (*ends, *gradients), strict=True):
            parent = parents[index]
            if parent is not None:
                cotangents[parent.id] = add(cotangents[parent.id], g) if parent.id in cotangents else g

    def _tape(self, saved: Arrays, entry: Arrays, outside: Arrays) -> tuple[dict[int, Node], list[int]]:
        """The nodes of the results in one step, and the ids of the leaves."""
        if self.rerun is not None:
            arguments, results = self.rerun(saved, entry)
            return {index: results[index].node for index in self.tracked}, _node_ids(self.backend, arguments)
        arrays = {"step": saved, "entry": entry, "outside": outside}
        nodes: dict[int, Node] = {}
        for template in self.templates or ():
            nodes[template.id] = template.node(nodes, arrays)
        root_ids = {index: node_id for index, node_id in enumerate(self.roots) if node_id is not None}
        return {index: nodes.get(node_id) or end(node_id) for index, node_id in root_ids.items()}, self.leaves

    def _find_gradients(self, one_step: Any, start: Sequence[Array], columns: Sequence[Array]) -> Any:
        """Trace the loop to find which xs and captured nodes get gradients; for the nodes, also the shapes of these."""
        if not self.tracked_xs and not self.captured:
            return [], {}
        with_gradients: list[Any] = []

        def body(state: Arrays, step_columns: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            new_totals, entry_gradients, captured_gradients = one_step(state, step_columns)
            with_gradients[:] = (
                [index for index, g in enumerate(entry_gradients) if g is not None],
                {index: self.inner.shape(g) for index, g in enumerate(captured_gradients) if g is not None},
            )
            return new_totals, []

        def trace(donated: Any, kept: Any) -> list[Any]:
            self.inner.scan(body, start, columns, self.length, reverse=self.reverse)
            return []

        self.inner.trace_only(trace, [], [])
        return with_gradients


def _identity(x: Array) -> Array:
    return x


def _split(arrays: Arrays, first: int, second: int) -> tuple[Arrays, Arrays, Arrays]:
    return arrays[:first], arrays[first : first + second], arrays[first + second :]
