"""A loop of a program, on the tape: its body is recorded once, and walked back in a second loop.

What the nodes of one turn have saved becomes a result of the loop, one entry a turn; the second loop, which runs the
other way, makes the nodes of every turn again around its entries and walks them back. Where a node keeps arrays in a
place that cannot be reached (a function closes over them, as that of `checkpoint` does), the second loop runs the body
again, from the carry of every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.autodiff.residuals import Hidden, Made, Saver, end
from phlox.autodiff.tape import Cotangents, Node, backpropagate, leaf, next_id
from phlox.autodiff.taping import link, parts, record_several
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients
from phlox.backend.contract.widening import converters
from phlox.backend.levels import has_history

if TYPE_CHECKING:
    from phlox.autodiff.decorator import Autodiff

Arrays: TypeAlias = tuple[Array, ...]
Body: TypeAlias = Callable[[Arrays, Arrays], tuple[Sequence[Array], Sequence[Array]]]
"""`(carry, x) -> (carry, y)`, as in `Backend.scan`."""


def scan(
    backend: Autodiff, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[Arrays, Arrays]:
    """`backend.scan` while a program is being traced."""
    inner, box, count = backend.inner, backend.box, len(carry)
    values, entries = [backend.value(x) for x in carry], [backend.value(x) for x in xs]
    turns = _Turns(backend, body, values, [type(x) is box for x in carry], [type(x) is box for x in xs])
    while True:
        try:
            after, found = inner.scan(turns.forward, values, entries, length, reverse=reverse)
            break
        except _Retry as retry:
            if retry.turns is not turns:
                raise
    turn = turns.last
    results = [*after, *found[: len(turn.roots) - count]]
    for place in turn.same:
        results[place] = carry[place]
    for place in turn.cut:
        results[place] = leaf(box, results[place])
    tracked = [place for place, root in enumerate(turn.roots) if root is not None]
    if tracked:
        sources = [x for x, wanted in zip((*carry, *xs), (*turns.carried, *turns.entered), strict=True) if wanted]
        saved = (found[len(turn.roots) - count :], tuple(turn.outside), tuple(entries[n] for n in turn.entries))
        way_back = _WayBack(backend, turns, turn, length, not reverse)
        whole = link((*map(backend.node_of, sources), *turn.entrances), way_back.push, saved)
        for place, x in zip(tracked, parts(box, tuple(results[place] for place in tracked), whole), strict=True):
            results[place] = x
    return tuple(results[:count]), tuple(results[count:])


def entries(backend: Autodiff, x: Array) -> Sequence[Array]:
    """`backend.entries` of a tracked array: one node for all."""

    def run(value: Array) -> tuple[Arrays, None]:
        return tuple(backend.inner.entries(value)), None

    def differentiate(inner: Backend, saved: None, gs: Sequence[Array | None], needed: Any) -> Gradients:
        some = next(g for g in gs if g is not None)
        zeros = inner.float_full(inner.shape(some), 0.0, inner.device_of(some))
        return (inner.piled([zeros if g is None else g for g in gs]),)

    return record_several(backend.inner, backend.box, (x,), run, differentiate)


class _Retry(Exception):
    """The body must be traced once more, on other terms."""

    def __init__(self, turns: _Turns) -> None:
        self.turns = turns


@dataclass(slots=True)
class _Turn:
    """What tracing the body has found out."""

    leaves: list[int]
    """The numbers of the leaves in place of the carry and of the entries that are tracked, -1 for the others."""
    roots: list[int | None]
    """For each result, first the carry, the number of its node, if there is a way back from it."""
    same: list[int]
    """Which of the tracked carry come back as they went in."""
    cut: list[int]
    """Which come back as leaves of their own, as the parameters of a module do after an optimizer's step."""
    entrances: list[Node]
    """The nodes outside that the body depends on."""
    made: list[Made] | None = None
    """The nodes inside; None if the body must be run again."""
    turn: list[Array] = field(default_factory=list[Array])
    """What is saved: of every turn, from outside, and which of the arrays that the loop runs along."""
    outside: list[Array] = field(default_factory=list[Array])
    entries: list[int] = field(default_factory=list[int])


class _Turns:
    """Records the body, as `forward`; what it was like the last time is in `last`."""

    last: _Turn

    def __init__(
        self, backend: Autodiff, body: Body, values: list[Array], carried: list[bool], entered: list[bool]
    ) -> None:
        self.backend, self.body, self.values = backend, body, values
        self.carried, self.entered = carried, entered
        self.saves = True
        self.start = next_id()

    def run(self, state: Sequence[Array], one: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """What the body was given, carry and entries, with leaves of the tape; and its results."""
        box = self.backend.box
        wanted = (*self.carried, *self.entered)
        given = [leaf(box, x) if one else x for x, one in zip((*state, *one), wanted, strict=True)]
        after, y = self.body(tuple(given[: len(state)]), tuple(given[len(state) :]))
        return given, [*after, *y]

    def forward(self, state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
        """The body for `inner.scan`, which returns besides what the way back needs."""
        backend, count = self.backend, len(state)
        given, results = self.run(state, one)
        nodes: list[Node | None] = [backend.node_of(x) for x in results]
        grown = [known or node is not None for known, node in zip(self.carried, nodes, strict=False)]
        if grown != self.carried:  # what is tracked after a turn is so before the next
            self.carried = grown
            raise _Retry(self)
        leaves = _numbers(backend, given)
        same = [place for place in range(count) if nodes[place] is not None and results[place] is given[place]]
        cut = [
            place
            for place, node in enumerate(nodes[:count])
            if node is not None and node.push is None and node.id >= self.start and node.id not in leaves
        ]
        for place in (*same, *cut):
            nodes[place] = None
        roots = [node for node in nodes if node is not None]
        inside, entrances = _reached(roots, {*leaves}, self.start)
        self.last = turn = _Turn(leaves, [node and node.id for node in nodes], same, cut, entrances)
        if roots and self.saves:
            saver = Saver(backend.inner, self.start)
            for place in range(count):
                if results[place] is given[place]:
                    saver.know_same(state[place], self.values[place])
            for place, x in enumerate(one):
                saver.know_entry(x, place)
            try:
                turn.made = [saver.take_apart(node) for node in inside]
            except Hidden:
                self.saves = False
                raise _Retry(self) from None
            turn.turn, turn.outside, turn.entries = saver.turn, saver.outside, saver.entries
        elif roots:
            turn.turn, turn.entries = list(state), list(range(len(one)))
        found = [backend.value(x) for x in results]
        return found[:count], [*found[count:], *turn.turn]


def _numbers(backend: Autodiff, given: Sequence[Array]) -> list[int]:
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
        elif node.push is not None:
            inside[node.id] = node
            stack.extend(parent for parent in node.parents if parent is not None)
    return [inside[number] for number in sorted(inside)], list(outside.values())


class _WayBack:
    """The second loop. It holds no array: those that the first has saved are on its node."""

    def __init__(self, backend: Autodiff, turns: _Turns, turn: _Turn, length: int, reverse: bool) -> None:
        inner, self.count = backend.inner, len(turns.values)
        self.backend, self.inner, self.length, self.reverse = backend, inner, length, reverse
        self.tracked = [place for place, node in enumerate(turn.roots) if node is not None]
        self.roots, self.leaves, self.same, self.made = turn.roots, turn.leaves, turn.same, turn.made
        self.shapes = [inner.shape(x) for x in turns.values]
        self.carried = [place for place, wanted in enumerate(turns.carried) if wanted]
        self.entered = [place for place, wanted in enumerate(turns.entered) if wanted]
        self.entrances = [node.id for node in turn.entrances]
        self.again = None if turn.made is not None else turns.run

    def push(self, whole: Node, shares: dict[int, Array], found: Cotangents) -> None:
        """From the gradients of the results to those of the carry, of what was run along, and of what is outside."""
        inner, add, settle = self.inner, self.backend.box.add, self.backend.box.settle
        turn, outside, entries = whole.saved
        given = {place: shares[number] for number, place in enumerate(self.tracked) if number in shares}
        if settle is not None:
            given = {place: settle(g) for place, g in given.items()}
        device = inner.device_of(next(iter(given.values())))
        rows = [place for place in given if place >= self.count]
        columns = [*turn, *entries, *(given[place] for place in rows)]
        # What adds up over the turns is wide, unless tapes below follow the loop, which carries arrays of theirs alone.
        followed = any(has_history(inner, x) for x in (*columns, *outside, *given.values()))
        wide, grow, _ = (inner, _same, _same) if followed else converters(inner)
        total_of = settle if followed and settle is not None else _same

        def zeros(place: int) -> Array:
            return inner.float_full(self.shapes[place], 0.0, device)

        def settled(g: Array) -> Array:
            return g if settle is None else settle(g)

        def one_turn(totals: Arrays, one: Arrays) -> tuple[list[Array], list[Array | None], list[Array | None]]:
            """The gradients of the carry, of the entry, and towards the outside."""
            saved, entry, gs = _split(one, len(turn), len(entries))
            nodes, leaves = self._tape(saved, entry, outside)
            inside: Cotangents = {}
            for place, g in (*zip(self.carried, totals, strict=True), *zip(rows, gs, strict=True)):
                if place in nodes:
                    number = nodes[place].id
                    inside[number] = add(inside[number], g) if number in inside else g
            ends = {*self.entrances, *leaves}
            backpropagate([node for node in nodes.values() if node.id in inside], inside, until=ends)
            after: list[Array] = []
            for place, total in zip(self.carried, totals, strict=True):
                g = inside.get(leaves[place])
                if place in self.same:
                    after.append(total if g is None else total_of(add(total, g)))
                else:
                    after.append(zeros(place) if g is None else settled(g))
            into = [inside.get(leaves[self.count + place]) for place in self.entered]
            into = [g if g is None else settled(g) for g in into]
            return after, into, [inside.get(number) for number in self.entrances]

        start = [given[place] if place in given else zeros(place) for place in self.carried]
        start = [grow(g) if place in self.same else g for place, g in zip(self.carried, start, strict=True)]
        entered, entrances = self._reached(one_turn, start, columns)
        sums = [wide.float_full(shape, 0.0, device.on(wide)) for shape in entrances.values()]

        def body(state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            after, into, out = one_turn(state[: len(start)], one)
            totals = zip(state[len(start) :], entrances, strict=True)
            sums = [total_of(add(total, out[place])) for total, place in totals]
            return [*after, *sums], [into[place] for place in entered]

        ends, gradients = inner.scan(body, [*start, *sums], columns, self.length, reverse=self.reverse)
        parents = whole.parents
        first, last = len(self.carried), len(self.carried) + len(self.entered)
        places = [*range(first), *(last + place for place in entrances), *(first + place for place in entered)]
        for place, g in zip(places, (*ends, *gradients), strict=True):
            parent = parents[place]
            if parent is not None:
                found[parent.id] = add(found[parent.id], g) if parent.id in found else g

    def _tape(self, saved: Arrays, entry: Arrays, outside: Arrays) -> tuple[dict[int, Node], list[int]]:
        """The nodes of the results in one turn, and the numbers of the leaves."""
        if self.again is not None:
            given, results = self.again(saved, entry)
            return {place: results[place].node for place in self.tracked}, _numbers(self.backend, given)
        arrays = {"turn": saved, "entry": entry, "outside": outside}
        nodes: dict[int, Node] = {}
        for made in self.made or ():
            nodes[made.id] = made.node(nodes, arrays)
        numbers = {place: number for place, number in enumerate(self.roots) if number is not None}
        return {place: nodes.get(number) or end(number) for place, number in numbers.items()}, self.leaves

    def _reached(self, one_turn: Any, start: Sequence[Array], columns: Sequence[Array]) -> Any:
        """Which entries and which nodes outside get gradients, with the shapes of the latter: found on shapes alone."""
        if not self.entered and not self.entrances:
            return [], {}
        found: list[Any] = []

        def body(state: Arrays, one: Arrays) -> tuple[Sequence[Array], Sequence[Array]]:
            after, into, out = one_turn(state, one)
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


def _same(x: Array) -> Array:
    return x


def _split(arrays: Arrays, first: int, second: int) -> tuple[Arrays, Arrays, Arrays]:
    return arrays[:first], arrays[first : first + second], arrays[first + second :]
