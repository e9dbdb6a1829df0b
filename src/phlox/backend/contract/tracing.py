"""Tracing: tracers of arrays and scalars, loops that are traced once, and checks that run after the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.tracing import checks
from phlox.backend.tracing.symbolic import is_symbolic, whole
from phlox.errors import IndexRangeError, UnsupportedError


class TracingOps(ArrayOps):
    """The defaults are those of an engine that never traces."""

    def is_tracing(self) -> bool:
        """Is a function being traced? An array that is made from constants is then a constant of its program."""
        return False

    def current_trace(self) -> object | None:
        """The trace that an operation on constants would be part of now; None outside of any."""
        return None

    def trace_of(self, x: Array) -> object | None:
        """The innermost trace that this tracer belongs to; None for an array with a value."""
        return None

    def device_of_tracers(self, device: Device) -> Device:
        """The device of a program's tracers for arrays on this device."""
        return device

    def outlives(self, x: Array, other: Array) -> bool:
        """Does `other` belong to a transformation that `x` does not belong to?"""
        return False

    def without_gradient(self, x: Array) -> Array:
        """The same as a constant to the engine's own derivatives."""
        return x

    def transformations(self) -> object:
        """A value that is equal while the same transformations are active, including those that trace no program."""
        return self.current_trace()

    def is_leaked(self, x: Array, *, surely: bool = False) -> bool:
        """Is this a leaked tracer, one whose trace has ended?

        With `surely`, only if that is certain: between two transformations, the engine itself may handle tracers.
        """
        return False

    def is_leaked_error(self, error: Exception) -> bool:
        """Is this the engine's error for a leaked tracer?"""
        return False

    def is_trace_error(self, error: Exception) -> bool:
        """Is this the engine's error for a function that needs the value of a tracer?"""
        return False

    # --- random streams on traced keys; a state is three 32-bit words, see `phlox.backend.threefry.generator`

    def draws_from(self, state: Any) -> bool:
        """Can this engine draw from a state that is not a NumPy array?"""
        return False

    def state_of_seed(self, seed: Array) -> Any:
        """The state at the start of the stream of a traced seed, an Int scalar: its 64 bits, and position 0."""
        raise UnsupportedError(f"{self!r} traces no seeds")

    def fold_in(self, state: Any, number: int) -> Any:
        """The state at the start of the sub-stream with the number: the state's position plus `number`."""
        raise UnsupportedError(f"{self!r} traces no keys")

    def from_host_draws(self, fn: Callable[[Any], Any], state: Any, shape: Shape, device: Device) -> Array:
        """The Float array `fn(state as a NumPy array)`, computed by NumPy whenever the program runs."""
        raise UnsupportedError(f"{self!r} cannot call a function of NumPy in a program")

    # --- traced scalars: Python scalars that are arguments of a compiled function

    def is_traced_scalar(self, value: object) -> bool:
        """Is this a traced scalar: the engine's tracer, or array, in place of a Python scalar?"""
        return False

    def scalar_expm1(self, x: Any) -> Any:
        """exp(x) - 1 of a Python scalar or a traced one."""
        return math.expm1(x)

    def as_device_scalar(self, value: float) -> Any:
        """A scalar as a repeated argument of compiled functions: an array, if that is faster."""
        return value

    def scalar_argument(self, value: float) -> Any:
        """A scalar as an argument of a compiled function, with all of its 64 bits; see `TracedScalar`."""
        return value

    def scalar_from_argument(self, x: Any, whole: bool) -> Any:
        """The traced scalar of 64 bits from the tracer of a result of `scalar_argument`."""
        return x

    def on_scalars(self, op: Callable[..., Any], whole: bool, *operands: Any) -> Any:
        """An operation on traced and Python scalars in 64 bits: as ints if `whole`, else as floats."""
        return op(*operands)

    def scalar_as_operand(self, x: Any, other: Any) -> Any:
        """A traced scalar as an operand beside one of the engine's arrays."""
        return x

    def promote_scalar(self, x: Any, kind: type[Kind]) -> Any:
        """A traced scalar as an operand beside this backend's arrays of a kind, Float or Int."""
        return x

    def concrete_scalar(self, x: Any) -> Any:
        """A traced scalar as a Python scalar, if its value is known."""
        return x

    # --- loops

    def traces_loops(self) -> bool:
        """Is a function being traced, so that `scan` becomes one loop of its program?"""
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
        """`body(carry, x) -> (carry, y)` along the first axis of `xs`: the last carry, and the ys stacked.

        One of `xs` may be a tuple of Python scalars: each step gets its own, traced if an engine traces. `length` is
        the number of steps, for loops without arrays. With `reverse` it runs from the last step to the first; the ys
        stay in the order of the xs. This default is a Python loop; an engine that compiles makes it one loop of a
        program.
        """
        state, ys = tuple(carry), list[tuple[Array, ...]]()
        entries: list[Sequence[Array]] = [x if isinstance(x, tuple) else self.unstack(x) for x in xs]
        for step in reversed(range(length)) if reverse else range(length):
            after, y = body(state, tuple([x[step] for x in entries]))
            state = tuple(after)
            ys.append(tuple(y))
        columns = zip(*(reversed(ys) if reverse else ys), strict=True)
        return state, tuple([self.stack(column) for column in columns])

    def unstack(self, x: Array) -> Sequence[Array]:
        """The slices of an array along its first axis."""
        shape = self.shape(x)
        others = tuple([slice(0, size, 1) for size in shape[1:]])
        rows = [self.index(x, (slice(number, number + 1, 1), *others)) for number in range(shape[0])]
        return [self.reshape(row, shape[1:]) for row in rows]

    def stack(self, arrays: Sequence[Array]) -> Array:
        """Arrays of one shape, stacked on a new first axis."""
        return self.concat(tuple([self.reshape(x, (1, *self.shape(x))) for x in arrays]), 0)

    def set_column(self, x: Array, column: int, entry: Array) -> Array:
        """x with its slice at `column` along the second axis replaced by `entry`; x is donated."""
        before, after = (slice(0, column, 1), slice(column + 1, self.shape(x)[1], 1))
        first, *sizes = self.shape(x)
        others = [slice(0, size, 1) for size in sizes[1:]]
        parts = [self.index(x, (slice(0, first, 1), part, *others)) for part in (before, after)]
        return self.concat((parts[0], self.reshape(entry, (first, 1, *sizes[1:])), parts[1]), 1)

    def write_from(self, x: Array, values: Array, start: Array, axis: int, donated: bool) -> Array:
        """x with `values` along an axis, from the Int scalar `start` on; values beyond its end are dropped.

        `start` may be [rows]: then each row of the first axis has its own. A donated x may be written to, and is not
        used again.
        """
        ops, device = cast("Any", self), self.device_of(start)
        size, count, rows = self.shape(x)[axis], self.shape(values)[axis], self.shape(start)
        shape = [size if other == axis else 1 for other in range(len(self.shape(x)))]
        if rows:
            start, shape[0] = ops.reshape(start, (*rows, 1)), rows[0]
        # For each position in x, the index of its value: shapes are fixed, and all indices in range.
        source = ops.int_sub(ops.int_arange(0, size, 1, device), start)
        new = ops.bool_and(ops.int_less_equal(0, source), ops.int_less(source, whole(count)))
        if is_symbolic(count) or count > 1:
            last = ops.int_full((*rows, size), whole(count - 1), device)
            inside = ops.where(ops.int_less(source, 0), ops.int_full((*rows, size), 0, device), source)
            inside = ops.where(ops.int_less(last, inside), last, inside)
            if rows:
                inside = ops.broadcast_to(ops.reshape(inside, tuple(shape)), self.shape(x))
                values = ops.take_along_axis(values, inside, axis)
            else:
                values = ops.take(values, inside, axis)
        return ops.where(ops.reshape(new, tuple(shape)), values, x)

    # --- checks of values, which a compiled function runs after the call

    def check_indices(self, indices: Array, size: int, *, from_end: bool) -> bool:
        """Raise `IndexRangeError` for an index outside an axis of `size`, if values are known (not for tracers).

        With `from_end`, negative indices count from the end; otherwise they are out of range. Returns whether there may
        be negative ones.
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
        """Does the trace of this tracer collect checks? See `phlox.backend.tracing.checks`."""
        return False
