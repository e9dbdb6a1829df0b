"""What a backend says of functions that are being traced: tracers of arrays and scalars, loops, and checks put off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.types import Array
from phlox.backend.kind import Kind
from phlox.backend.tracing import checks
from phlox.errors import IndexRangeError


class TracingOps(ArrayOps):
    """An engine that computes at once needs none of it: here nothing is ever traced."""

    def is_tracing(self) -> bool:
        """Is a program being traced right now which would hold a value made from constants for ever?"""
        return False

    def current_trace(self) -> object | None:
        """The program that is being traced right now, in which an operation on constants would be a step; or None."""
        return None

    def trace_of(self, x: Array) -> object | None:
        """The program that this tracer belongs to, below whatever the engine makes of it; None for a value."""
        return None

    def is_leaked(self, x: Array, *, surely: bool = False) -> bool:
        """Is this tracer of no use any more, since what it was a part of has ended?

        With `surely`, only if there is no doubt: an engine may look at what a function has returned in between.
        """
        return False

    def is_leaked_error(self, error: Exception) -> bool:
        """Did the engine refuse a tracer of something that has ended?"""
        return False

    def is_trace_error(self, error: Exception) -> bool:
        """Did tracing fail since the function needed the value of a tracer?"""
        return False

    # --- scalars that are arguments of a program

    def is_traced_scalar(self, value: object) -> bool:
        """Is this, though not a Python number, the engine's stand-in for one (an argument of a traced function)?"""
        return False

    def scalar_expm1(self, x: Any) -> Any:
        """exp(x) - 1 of a Python number or of the engine's stand-in for one."""
        return math.expm1(x)

    def as_device_scalar(self, value: float) -> Any:
        """A number as an argument of programs that are called with it again and again: the engine's own, if faster."""
        return value

    def scalar_argument(self, value: float) -> Any:
        """A number that is an argument of a program as that takes it, with all its 64 bits; see `TracedScalar`."""
        return value

    def scalar_from_argument(self, x: Any, whole: bool) -> Any:
        """The tracer of a number, of the tracer of what `scalar_argument` has given."""
        return x

    def on_scalars(self, op: Callable[..., Any], whole: bool, *operands: Any) -> Any:
        """An operation on tracers of numbers, and Python numbers, in 64 bits: as ints if `whole`, else as floats."""
        return op(*operands)

    def scalar_as_operand(self, x: Any, other: Any) -> Any:
        """The tracer of a number as it meets an array of the engine's."""
        return x

    def promote_scalar(self, x: Any, kind: type[Kind]) -> Any:
        """The tracer of a number as it meets arrays of this backend, Float or Int."""
        return x

    def concrete_scalar(self, x: Any) -> Any:
        """The engine's stand-in for a number as a Python number, where its value is known."""
        return x

    # --- loops

    def traces_loops(self) -> bool:
        """Is a program being traced right now, of which `scan` would be one loop?"""
        return False

    def scan(
        self,
        body: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]],
        carry: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool = False,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """`body(carry, x) -> (carry, y)` along the first axis of `xs`: the last carry, and the ys stacked on one.

        A tuple of numbers may stand for one of `xs`: each turn gets its own, as the engine's stand-in for a number.
        `length` is the size of that axis, for loops over no arrays. With `reverse`, from the last to the first; the ys
        stay in the order of the xs. Here an ordinary loop; an engine that records programs makes it one loop there.
        """
        state, found = tuple(carry), list[tuple[Array, ...]]()
        entries: list[Sequence[Array]] = [x if isinstance(x, tuple) else self.unstack(x) for x in xs]
        for number in reversed(range(length)) if reverse else range(length):
            after, y = body(state, tuple([one[number] for one in entries]))
            state = tuple(after)
            found.append(tuple(y))
        columns = zip(*(reversed(found) if reverse else found), strict=True)
        return state, tuple([self.stack(column) for column in columns])

    def unstack(self, x: Array) -> Sequence[Array]:
        """The entries of an array along its first axis."""
        shape = self.shape(x)
        whole = tuple([slice(0, size, 1) for size in shape[1:]])
        cut = [self.index(x, (slice(number, number + 1, 1), *whole)) for number in range(shape[0])]
        return [self.reshape(one, shape[1:]) for one in cut]

    def stack(self, arrays: Sequence[Array]) -> Array:
        """Arrays of one shape, stacked on a new first axis."""
        return self.concat(tuple([self.reshape(x, (1, *self.shape(x))) for x in arrays]), 0)

    def set_column(self, x: Array, place: int, entry: Array) -> Array:
        """x with this entry along the second axis replaced; x is given up, for its memory may be what is returned."""
        before, after = (slice(0, place, 1), slice(place + 1, self.shape(x)[1], 1))
        first, *rest = self.shape(x)
        whole = [slice(0, size, 1) for size in rest[1:]]
        parts = [self.index(x, (slice(0, first, 1), part, *whole)) for part in (before, after)]
        return self.concat((parts[0], self.reshape(entry, (first, 1, *rest[1:])), parts[1]), 1)

    # --- checks of values, which a program makes at its end

    def check_indices(self, indices: Array, size: int, *, from_end: bool) -> bool:
        """`IndexRangeError` for an index outside an axis of `size`, where it can be seen (not under a trace).

        `from_end` says whether negative ones count from the end, or are out of range too. Returns whether there may be
        any negative ones.
        """
        shape = self.shape(indices)
        if math.prod(shape) == 0:
            return False

        def find_error(least: int, greatest: int) -> Exception | None:
            if least >= (-size if from_end else 0) and greatest < size:
                return None
            worst = greatest if greatest >= size else least
            bounds = "" if from_end else f"; it must be at least 0 and less than {size}"
            return IndexRangeError(f"index {worst} is out of range for an axis of size {size}{bounds}")

        if not self.is_traced(indices):
            host = self.to_host(indices)
            least = int(host.min())
            error = find_error(least, int(host.max()))
            if error is not None:
                raise error
            return least < 0
        if self.collects_checks(indices):
            axes = tuple(range(len(shape)))
            checks.add(find_error, self.int_min(indices, axes, False), self.int_max(indices, axes, False))
        return True

    def collects_checks(self, x: Array) -> bool:
        """Does the program that this tracer belongs to gather checks? See `phlox.backend.tracing.checks`."""
        return False
