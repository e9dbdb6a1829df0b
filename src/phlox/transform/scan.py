"""`scan`: a loop that a compiled function holds once, however often it turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, TypeVar, cast

from phlox import random
from phlox.backend import Backend, as_device
from phlox.backend.tracing import checks
from phlox.errors import BackendError, KindError, ModuleError, ShapeError
from phlox.host.signal_guard import scope
from phlox.optim.optimizer import tracing
from phlox.tensor import stack
from phlox.tensor.backend_promotion import is_below
from phlox.transform.packing import TreeLeaves, lengths
from phlox.transform.tree import AnyTensor

C = TypeVar("C")
ScanBody = Callable[[Any, Any], tuple[Any, Any]]


def scan(
    fn: Callable[[C, Any], tuple[C, Any]], carry: C, xs: Any = None, *, length: int | None = None, reverse: bool = False
) -> tuple[C, Any]:
    """`fn(carry, x) -> (carry, y)` for every x along the first axis of `xs`: the last carry, and the ys stacked.

    Carry, xs and ys are tensors and modules, or lists, tuples and dicts of them; xs are stacked on their first axis, as
    `phlox.stack_modules` does with layers. Without xs, the function is called `length` times with None. Eagerly this is
    an ordinary loop. In a program that is traced for XLA it is one loop of the program, whose size and time to
    compile do not grow with the length, and means the same:

    - Random draws differ from turn to turn, and are those of the ordinary loop.
    - Gradients flow to the carry, to xs, and to whatever else the function uses. Memory grows with what the tape keeps
      of a turn: `phlox.scan(phlox.checkpoint(fn), ...)` keeps the carry alone.
    - A module in the carry is a copy: it may set its running statistics, and the last one is returned. So a module that
      sets any belongs there, and not outside of the function.

    The carry must come back as it went in, with the structure, shapes and kinds. Numbers in it become tensors of rank
    0. Modules among the ys come back as one, stacked, that is another model, as those of `phlox.stack_modules`.

    Args:
        fn: the function of a turn.
        carry: what the first turn is given.
        xs: what the loop runs along.
        length: the number of turns; needed only without xs.
        reverse: from the last x to the first; the ys stay in the order of the xs.

    Raises `ShapeError` for first axes of different sizes and for no turns at all, `ModuleError` for a carry that does
    not come back as it went in and for what cannot be part of a loop; each names the path.

    >>> import phlox as px
    >>> total, sums = px.scan(lambda total, x: (total + x, total + x), px.tensor(0.0), px.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    if not callable(fn):
        raise KindError(f"scan: the first argument is a function of (carry, x), got {type(fn).__name__}")
    start, along = TreeLeaves(carry, "carry"), TreeLeaves(xs, "xs")
    device = start.device() or along.device() or as_device(None)
    start.on(device)
    turns = _length(along.on(device), length)
    backend = _highest([*start.tensors, *along.tensors], device.backend)
    loop = _Loop(fn, start, along, turns, reverse)
    if not backend.traces_loops():
        return loop.run()
    while True:
        try:
            return loop.record(backend)
        except _Higher as found:
            if found.loop is not loop:
                raise
            backend = found.backend


def _length(along: TreeLeaves, length: int | None) -> int:
    """How many turns there are."""
    if length is not None:
        try:
            length = index(length)
        except TypeError:
            raise KindError(f"scan: length is an integer, the number of steps; got {length!r}") from None
    sizes = lengths(along.tensors, along.paths())
    scalar = next((path for path, size in sizes.items() if size is None), None)
    if scalar is not None:
        raise ShapeError(
            f"scan: {scalar} has no axis to run along; what is the same in every turn needs no place in xs"
        )
    found = set(sizes.values())
    if len(found) > 1 or (found and length is not None and found != {length}):
        have = ", ".join(f"{path} has {size}" for path, size in sizes.items())
        wanted = "" if length is None else f", and length is {length}"
        raise ShapeError(
            f"scan: the first axes of xs must be of one size: {have}{wanted} (a list of layers is not "
            "run along: make them one with phlox.stack_modules)"
        )
    if not found and length is None:
        raise ShapeError("scan: without tensors in xs, say how many turns there are: length=...")
    turns = cast("int", found.pop() if found else length)
    if turns < 1:
        raise ShapeError(f"scan: there must be one turn at least, to know what it gives; got {turns}")
    return turns


def _highest(tensors: Iterable[AnyTensor], backend: Backend) -> Backend:
    """The highest of the backends of these tensors that decorate this one; itself if none does."""
    for x in tensors:
        if is_below(backend, x.backend):
            backend = x.backend
    return backend


class _Higher(Exception):
    """The function computes on a backend above that of its arguments."""

    def __init__(self, loop: _Loop, backend: Backend) -> None:
        self.loop, self.backend = loop, backend


class _Loop:
    """A call of `scan`."""

    def __init__(self, fn: ScanBody, start: TreeLeaves, along: TreeLeaves, length: int, reverse: bool) -> None:
        self.fn, self.start, self.along, self.length, self.reverse = fn, start, along, length, reverse
        self.raised = False
        """Has it been found that the carry belongs on a higher backend?"""

    def _turn(self, carry: Any, x: Any) -> tuple[TreeLeaves, TreeLeaves]:
        """The results of the function, the carry being as it was."""
        found: Any = self.fn(carry, x)
        if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
            raise ModuleError(
                f"scan: the function must return a pair (carry, y), got {type(cast('object', found)).__name__}; "
                "y may be None"
            )
        device = self.start.device() or self.along.device()
        after, y = TreeLeaves(found[0], "carry").on(device), TreeLeaves(found[1], "y", own=True).on(device)
        self.raised |= self.start.meet(after)
        difference = self.start.difference(after)
        if difference is not None:
            raise ModuleError(
                "scan: the carry must come back as it went in, with the same structure, shapes and kinds: "
                f"{difference}; return it like that, or start with one like what is returned"
            )
        return after, y

    def run(self) -> tuple[Any, Any]:
        """As an ordinary loop."""
        entries = [[x._with(one) for one in x.backend.unstack(x.primitive)] for x in self.along.tensors]  # pyright: ignore[reportPrivateUsage]
        carry, rows = self.start, list[TreeLeaves]()
        for number in reversed(range(self.length)) if self.reverse else range(self.length):
            x = self.along.build(iter([one[number] for one in entries]))
            carry, y = self._turn(carry.build(iter(carry.tensors)), x)
            if rows:
                rows[0].meet(y)
            difference = rows[0].difference(y) if rows else None
            if difference is not None:
                raise ModuleError(f"scan: what is returned beside the carry must be alike in every turn: {difference}")
            rows.append(y)
        if self.reverse:
            rows.reverse()
        columns = zip(*(row.tensors for row in rows), strict=True)
        return carry.build(iter(carry.tensors)), rows[0].build(map(stack, columns))

    def record(self, backend: Backend) -> tuple[Any, Any]:
        """As one loop of the program that is being traced."""
        stream, start, along = random.current(), self.start.tensors, self.along.tensors
        self._check_engine(backend, [*start, *along], [*self.start.paths(), *self.along.paths()])
        tracer = checks.tracer()
        checked = tracer is not None and backend.trace_of(tracer) is backend.current_trace()
        last: list[Any] = []

        def body(state: tuple[Any, ...], one: tuple[Any, ...]) -> tuple[Sequence[Any], Sequence[Any]]:
            turn = random.TracedStream(state[0])
            carry = self.start.build(map(_around, [backend] * len(start), start, state[1:]))
            x = self.along.build(map(_around, [backend] * len(along), along, one))
            # Recording: an optimizer from outside would be left with what ends with the loop.
            with scope(tracing, turn), random.stream(turn), checks.collecting(checked, state[0]) as collected:
                after, y = self._turn(carry, x)
            found = [*after.tensors, *y.tensors]
            higher = _highest(found, backend)
            if higher is not backend or self.raised:
                self.raised = False
                raise _Higher(self, higher)
            self._check_engine(backend, found, [*after.paths(), *y.paths()])
            last[:] = after, y, turn.position, collected
            ys = [x.primitive for x in y.tensors]
            return [turn.words(), *(x.primitive for x in after.tensors)], [*ys, *collected.values]

        state, entries = [stream.words(), *(x.primitive for x in start)], [x.primitive for x in along]
        (_, *carry), found = backend.scan(body, state, entries, self.length, reverse=self.reverse)
        after, y, draws, collected = last
        stream.skip(draws * self.length, backend)
        count = len(y.tensors)
        if collected.checks:
            checks.add_from_loop(collected, [backend.strip(x) for x in found[count:]])
        ends = after.build(map(_around, [backend] * len(carry), after.tensors, carry))
        return ends, y.build(map(_around, [backend] * count, y.tensors, found[:count]))

    def _check_engine(self, backend: Backend, tensors: Sequence[AnyTensor], paths: Sequence[str]) -> None:
        for x, path in zip(tensors, paths, strict=True):
            if x.backend is not backend and not is_below(x.backend, backend):
                raise BackendError(
                    f"scan: {path} is on {x.backend!r}, and the loop is traced on {backend!r}; move it there with "
                    ".to_device(...), or make it there (device=...)"
                )


def _around(backend: Backend, like: AnyTensor, array: Any) -> AnyTensor:
    """A tensor like another one around an array of a backend that may lie above its own."""
    while backend is not like.backend and (below := backend.without_tape()) is not None:
        array, backend = backend.value(array), below
    return like._with(array)  # pyright: ignore[reportPrivateUsage]
