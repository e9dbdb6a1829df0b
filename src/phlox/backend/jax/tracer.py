"""Tracing and compiling on JAX: to which trace a tracer belongs, traced scalars, loops."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, lru_cache, partial
from struct import Struct
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from phlox.backend.analysis import Analysis
from phlox.backend.contract import EngineBackend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape
from phlox.backend.device import Device
from phlox.backend.jax import compat, explicit, random
from phlox.backend.jax.arrays import default_name
from phlox.backend.jax.compat import weakly
from phlox.backend.jax.executables import analysis_of, layout_of
from phlox.backend.jax.sharding import LayoutPrograms
from phlox.backend.jax.sizes import is_symbolic
from phlox.backend.kind import Float, Kind
from phlox.backend.tracing import checks
from phlox.backend.tracing.scalar import TracedScalar
from phlox.host.memory import aligned_copy

_DOUBLE, _LONG = Struct("=d"), Struct("=q")
_INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}
_PROBE = np.zeros((), np.float32)
_WORTH_ALIGNING = 1 << 18
"""From so many bytes on, a second copy takes longer than aligning the first."""
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@lru_cache(maxsize=1024)
def _program(backend: Any, fn: Callable[..., Any], static: tuple[Any, ...], donate: tuple[int, ...]) -> Any:
    def run(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(backend, *static, *arguments)

    return jax.jit(run, donate_argnums=donate)


@cache
def _computes_doubles() -> bool:
    """Has the device 64-bit numbers? TPUs make them of several words, so they cannot be read from their bits."""
    return jax.default_backend() in ("cpu", "gpu", "cuda", "rocm")


@jax.custom_jvp
def _rounded(x: Any) -> Any:
    # XLA removes every identity from a program, barriers too, before LLVM fuses a product and a sum into one operation.
    # They cannot see through a change of bits that maps one NaN to another. They do see through a `where` of x and a
    # constant: they move the sum into both of its branches.
    integer = _INTEGERS[x.dtype.itemsize]
    bits = lax.bitcast_convert_type(x, integer)
    odd = integer(np.array(np.nan, x.dtype).view(integer) + 1)
    return lax.bitcast_convert_type(bits + (bits == odd).astype(integer), x.dtype)


_rounded.defjvps(lambda tangent, primal_out, x: tangent)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def has_ended(x: Any) -> bool:
    """Has a tracer's transformation certainly ended? For grad and jvp it shows only if others lie below them."""
    while isinstance(x, Tracer):
        if compat.is_over(x):
            return True
        if isinstance(x, compat.traced_type()):
            return compat.is_closed(x)
        x = compat.beneath(x)
    return False


def _traces(x: Any) -> Iterator[object]:
    """The transformations that an array is a tracer of, the innermost first."""
    while isinstance(x, Tracer):
        yield compat.trace_of(x)
        if isinstance(x, compat.traced_type()):
            return
        x = compat.beneath(x)


class Traces(EngineBackend):
    """See `phlox.backend.contract.tracing` and `compiling`."""

    def is_traced_scalar(self, value: object) -> bool:
        return isinstance(value, (Tracer, jax.Array)) and value.ndim == 0

    def is_traced(self, x: Array) -> bool:
        return isinstance(x, Tracer)

    def collects_checks(self, x: Array) -> bool:
        anchor = checks.tracer()
        # A tracer of an inner trace (of a scan's body) cannot leave that trace.
        return anchor is not None and compat.trace_of(x) is (compat.trace_of(anchor) or self)

    def barrier(self, x: Array, after: Array) -> Array:
        return lax.optimization_barrier((x, after))[0] if isinstance(x, Tracer) else x

    def rounded(self, x: Array) -> Array:
        return _rounded(x) if isinstance(x, Tracer) and jnp.issubdtype(x.dtype, jnp.floating) else x

    def current_trace(self) -> object | None:
        # Under jit, scan and checkpoint, an operation on constants is traced; under grad and vmap, it is done.
        return self.trace_of(lax.neg(_PROBE))

    def trace_of(self, x: Array) -> object | None:
        while isinstance(x, Tracer) and not isinstance(x, compat.traced_type()):
            x = compat.beneath(x)
        return compat.trace_of(x)

    def device_of_tracers(self, device: Device) -> Device:
        return self.device()

    def outlives(self, x: Array, other: Array) -> bool:
        traces = list(_traces(x))
        return any(not any(trace is own for own in traces) for trace in _traces(other))

    def without_gradient(self, x: Array) -> Array:
        return lax.stop_gradient(x)

    def transformations(self) -> object:
        return compat.trace_state()

    def draws_from(self, state: Any) -> bool:
        return isinstance(state, jax.Array)

    def state_of_seed(self, seed: Array) -> Any:
        return random.state_of_seed(seed)

    def fold_in(self, state: Any, number: int) -> Any:
        return random.fold_in(state, state[2] + np.uint32(number))

    def from_host_draws(self, fn: Callable[[Any], Any], state: Any, shape: Shape, device: Device) -> Array:
        result = jax.ShapeDtypeStruct(shape, self.element(Float))
        called = jax.pure_callback(lambda words: fn(np.asarray(words)), result, state, vmap_method="sequential")
        return self.place(called, device)

    def is_tracing(self) -> bool:
        return isinstance(lax.neg(_PROBE), Tracer)

    traces_loops = is_tracing

    def is_leaked(self, x: Array, *, surely: bool = False) -> bool:
        return isinstance(x, Tracer) and (has_ended(x) or (not surely and compat.is_outside()))

    def is_leaked_error(self, error: Exception) -> bool:
        return isinstance(error, jax.errors.UnexpectedTracerError)

    def is_donated(self, x: Array) -> bool:
        return not isinstance(x, Tracer) and x.is_deleted()

    def is_donated_error(self, error: Exception) -> bool:
        return isinstance(error, (RuntimeError, ValueError)) and "has been deleted" in str(error)

    def is_engine_error(self, error: Exception) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) or super().is_engine_error(error)

    def is_out_of_memory(self, error: Exception) -> bool:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
        return super().is_out_of_memory(error)

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        return self.native_pullback(fn, arrays, needed)[1](gs)

    def native_pullback(
        self, fn: Callable[..., Any], arrays: Sequence[Array], needed: Needed
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Any]], Gradients]]:
        def of_needed(*values: Any) -> Any:
            primals = iter(values)
            results = tuple(fn(*[next(primals) if need else x for x, need in zip(arrays, needed, strict=True)]))
            return tuple([y for y in results if _is_float(y)]), results

        primals = [x for x, is_needed in zip(arrays, needed, strict=True) if is_needed]
        _, back, results = jax.vjp(of_needed, *primals, has_aux=True)

        def pull(gs: Sequence[Any]) -> Gradients:
            pairs = [(y, g) for y, g in zip(results, gs, strict=True) if _is_float(y)]
            gradients = iter(back(tuple([jnp.zeros_like(y) if g is None else g for y, g in pairs])))
            return tuple([next(gradients) if is_needed else None for is_needed in needed])

        return results, pull

    def scalar_expm1(self, x: Any) -> Any:
        if isinstance(x, TracedScalar):
            return x.expm1()
        return jnp.expm1(x) if self.is_traced_scalar(x) else math.expm1(x)

    def as_device_scalar(self, value: float) -> Any:
        if self._is_wide():
            return value
        with jax.ensure_compile_time_eval():  # it outlives the trace in which it is created
            return jnp.asarray(value)

    def scalar_argument(self, value: float) -> Any:
        # Two 32-bit words pass whether or not JAX has 64-bit types enabled, and faster than a Python number.
        if not _computes_doubles():
            return value
        return np.frombuffer((_DOUBLE if value.__class__ is float else _LONG).pack(value), np.uint32)

    def scalar_from_argument(self, x: Any, whole: bool) -> Any:
        if getattr(x, "dtype", None) != np.uint32:
            return x
        with jax.enable_x64(True):
            dtype = np.dtype(np.int64 if whole else np.float64)
            return weakly(lax.bitcast_convert_type(x, dtype), dtype)

    def on_scalars(self, op: Callable[..., Any], whole: bool, *operands: Any) -> Any:
        # All are weakly typed and stay so: an operation with an array has the array's precision.
        with jax.enable_x64(True):
            return op(*operands)

    def promote_scalar(self, x: Any, kind: type[Kind]) -> Any:
        return x if self._is_wide() else weakly(x, np.float32 if kind is Float else np.int32)

    def scalar_as_operand(self, x: Any, other: Any) -> Any:
        whole = x.dtype.kind == "i"
        return x if other.dtype.itemsize == 8 else weakly(x, np.int32 if whole else np.float32)

    def _is_wide(self) -> bool:
        """Does it have 64-bit elements, which JAX must enable?"""
        return self.float_element == "f64" or self.int_element == "i64"

    def concrete_scalar(self, x: Any) -> Any:
        return x if isinstance(x, Tracer) else self.to_host(x).item()

    compiles = True
    prefers_compiled = True

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        compile = partial(jax.jit, donate_argnums=0)
        return compile(fn) if jax.device_count() == 1 else LayoutPrograms(fn, compile)

    def analyze(self, run: Callable[[Any, Any], Any], donated: Any, kept: Any) -> Analysis | None:
        return analysis_of(cast("Any", run).lower(donated, kept).compile())

    def layout_of(self, x: Array) -> tuple[Hashable, str] | None:
        return layout_of(x) if isinstance(x, jax.Array) and not isinstance(x, Tracer) else None

    def compilations(self, run: Callable[[Any, Any], Any]) -> int | None:
        # Called after each run: the caller looks at the arguments' shardings only if the number has grown.
        return run.compilations() if isinstance(run, LayoutPrograms) else None

    def host_argument(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Any:
        # A NumPy array goes to the device of the other arguments in a tenth of the time. JAX may alias its memory (if
        # aligned; otherwise it copies), or read it later: so JAX gets a copy, aligned if it is large, so that it does
        # not copy again. Doubles would be rounded while JAX's 64-bit types are disabled.
        if self._is_wide() or device.sharding is not None or device.name != default_name():
            return super().host_argument(array, kind, device)
        fitted = self.fit(array, kind)
        if fitted is not array:
            return fitted
        return array.copy("C") if array.nbytes < _WORTH_ALIGNING else aligned_copy(array)

    def in_one_call(self, fn: Callable[..., Any], *static: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return _program(self, fn, static, donate)

    def set_column(self, x: Array, column: int, entry: Array) -> Array:
        return x.at[:, column].set(entry)

    def write_from(self, x: Array, values: Array, start: Array, axis: int, donated: bool) -> Array:
        count = values.shape[axis]
        if start.ndim and self.is_traced(x) and not is_symbolic(count):  # in place, if x is donated
            rows, columns = jnp.arange(x.shape[0])[:, None], start[:, None] + jnp.arange(count)
            by_column = jnp.moveaxis(values, axis, 1).astype(x.dtype)
            written = jnp.moveaxis(x, axis, 1).at[rows, columns].set(by_column, mode="drop")
            return jnp.moveaxis(written, 1, axis)
        if is_symbolic(count) or count != 1 or not self.is_traced(x):
            return super().write_from(x, values, start, axis, donated)
        # In place, if x is donated. At a position beyond the end, the element that is there is written again.
        existing = lax.dynamic_slice_in_dim(x, start, 1, axis)
        entry = jnp.where(start < x.shape[axis], values, existing).astype(x.dtype)
        return lax.dynamic_update_slice_in_dim(x, entry, start, axis)

    def trace_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        jax.eval_shape(fn, donated, kept)

    def abstract_array(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        return jax.ShapeDtypeStruct(shape, self.element(kind))

    def is_trace_error(self, error: Exception) -> bool:
        return isinstance(error, _NEEDS_VALUES)

    def scan(
        self,
        body: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]],
        carry: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool = False,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if not self.traces_loops():
            return super().scan(body, carry, xs, length, reverse=reverse)

        def step(state: tuple[Array, ...], entries: tuple[Array, ...]) -> Any:
            after, y = body(state, entries)
            return tuple(after), tuple(y)

        # A tuple of Python scalars becomes a weakly typed array, as they are weakly typed.
        arrays = tuple([jnp.stack([jnp.asarray(n) for n in x]) if isinstance(x, tuple) else x for x in xs])
        start = explicit.settled(step, tuple(carry), arrays)
        if is_symbolic(length) and arrays:
            return lax.scan(step, start, arrays, reverse=reverse)
        return lax.scan(step, start, arrays, length, reverse=reverse)
