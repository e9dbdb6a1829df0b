"""`Backend`: the contract as a class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from phlox.backend.contract.required import RandomOps
from phlox.backend.contract.types import Array, Gradients, Kinds, Needed, Shape
from phlox.backend.contract.update import ManyUpdates, UpdateOps
from phlox.backend.device import Device
from phlox.backend.kind import Float, Kind
from phlox.backend.tracing import checks
from phlox.errors import AutodiffError, IndexRangeError, RangeError, UnsupportedError
from phlox.host.dtypes import (
    HOST_DTYPES,
    INT_RANGES,
    LARGEST,
    FloatElement,
    IntElement,
)


class Backend(UpdateOps, RandomOps, ManyUpdates):
    """A small immutable value that names element types and holds operations on an engine's own arrays.

    Backends are equal and hashable by value; equal backends are one object. Write one by subclassing
    `EngineBackend` and giving it the functions that `phlox.backend.contract.required` declares; everything else is
    derived from those and may be overridden.
    """

    name: str
    """The engine's name, as in the registry."""
    float_element: FloatElement
    int_element: IntElement
    inner: Backend | None = None
    """The backend that a decorator wraps."""
    differentiates: bool = False
    """Does this backend record a tape?"""
    batched: int = 0
    """Of how many batches, one in the other, do arrays hide the axis?"""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise UnsupportedError(f"{self!r} does not support `{attribute}`; use another backend for it")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # --- what every backend says of itself and of its arrays

    def device(self, name: str | None = None) -> Device:
        """The default device, or the one called `name`: `"cpu"`, `"gpu"`, `"gpu:1"`. Raises `DeviceError` if absent."""
        raise NotImplementedError

    def to_device(self, x: Array, device: Device) -> Array:
        """The array on another device of this backend."""
        raise NotImplementedError

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        """A native array from one in host memory, in this backend's element type.

        Floats round; a finite float that would become infinite, or an integer that does not fit, is `RangeError`.
        """
        raise NotImplementedError

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        """The values as a NumPy array; waits for an asynchronous engine. May share memory: do not write to it."""
        raise NotImplementedError

    def await_array(self, x: Array) -> None:
        """Wait until an asynchronous engine has made the array, for whoever must not have too many under way."""

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        if any(self.is_traced(x) for x in arrays):
            raise UnsupportedError(f"{self!r} cannot do this while a program is being traced, only eagerly")
        device = self.device_of(arrays[0])
        found = fn(*(self.to_host(x) for x in arrays))
        if not isinstance(kinds, tuple):
            return self._computed(found, kinds, device)
        return tuple(self._computed(x, kind, device) for x, kind in zip(found, kinds, strict=True))

    def _computed(self, found: Any, kind: type[Kind], device: Device) -> Array:
        """A result found on the host; rounded as results are, so that what is too large becomes an infinity."""
        host = np.asarray(found)
        if kind.name == "float":
            with np.errstate(over="ignore"):
                host = host.astype(self.host_float_dtype, copy=False)
        return self.from_host(host, kind, device)

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        """The values as an array of the engine behind `target`, on `device`, rounded to its elements.

        Floats round as the results of arithmetic do: what is too large becomes an infinity. An integer that does not
        fit is `RangeError`. Within one engine this is a conversion on the device; else it goes through host memory.
        """
        if self.is_traced(x):
            raise UnsupportedError(
                f"a tensor on {self!r} cannot go to {target!r} while a program is being traced: that needs its values"
            )
        return engine_of(target)._computed(self.to_host(x), self.kind_of(x), device)

    def full_precision(self) -> Backend:
        """This backend with f32 in place of half-precision floats; itself where they are f32 or f64."""
        return self

    def element(self, kind: type[Kind]) -> Any:
        """The engine's own type of the elements of a kind."""
        return self.host_dtype(kind)

    def owns_floats(self, x: object) -> bool:
        """Is this an array of floats in this backend's own element type?"""
        return getattr(x, "dtype", None) == self.element(Float)

    def check_fits(self, x: Array, target: Backend) -> None:
        """`RangeError` for a finite value that `target`'s elements cannot hold, where it can be seen (no trace)."""
        kind = self.kind_of(x)
        engine = engine_of(target)
        narrower = {
            "float": LARGEST[engine.float_element] < LARGEST[self.float_element],
            "int": INT_RANGES[engine.int_element][1] < INT_RANGES[self.int_element][1],
            "bool": False,
        }
        if narrower[kind.name] and not self.is_traced(x):
            engine.fit(self.to_host(x), kind)

    def fit(self, array: np.ndarray[Any, Any], kind: type[Kind]) -> np.ndarray[Any, Any]:
        """A host array in this backend's element type; `RangeError` for values which that cannot hold."""
        raise NotImplementedError

    def from_dlpack(self, x: Any, device: Device) -> Array:
        """An array, of whatever element type, in the memory of another library's where it can be there.

        `x` has the methods `__dlpack__` and `__dlpack_device__` of the Array API standard. What cannot be taken is any
        exception.
        """
        raise UnsupportedError(f"{self!r} takes no arrays of other libraries through DLPack")

    def replicate_like(self, x: Array, like: Array) -> Array:
        """x on all the devices that `like` is on, where an engine's arrays may be spread over several.

        In shards as `like` is if it has its shape; whole on each of them, otherwise.
        """
        return x

    def others(self, device: Device) -> str:
        """How the devices after the first one are called, of those over which an array is spread."""
        return ""

    def prefers_fused_matmul(self) -> bool:
        """Does one product with matrices side by side cost less here than a product with each of them?

        So it is where each is gathered from several devices: one exchange then does for all.
        """
        return False

    def duplicate(self, x: Array) -> Array:
        """The same values in memory of their own."""
        return self.from_host(self.to_host(x).copy(), self.kind_of(x), self.device_of(x))

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        """The array as a DLPack capsule; see `__dlpack__` of the Array API standard."""
        return self.strip(x).__dlpack__(**options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        """The device of an array as DLPack numbers it."""
        return self.strip(x).__dlpack_device__()

    def kind_of(self, x: Array) -> type[Kind]:
        """The kind that a native array belongs to."""
        raise NotImplementedError

    def is_scalar(self, value: object) -> bool:
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

    def scalar_of(self, x: Any, whole: bool) -> Any:
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

    def is_traced(self, x: Array) -> bool:
        """Is this array a tracer in a program that is being traced?"""
        return False

    def is_tracing(self) -> bool:
        """Is a program being traced right now which would hold a value made from constants for ever?"""
        return False

    def program(self) -> object | None:
        """The program that is being traced right now, in which an operation on constants would be a step; or None."""
        return None

    def program_of(self, x: Array) -> object | None:
        """The program that this tracer belongs to, below whatever the engine makes of it; None for a value."""
        return None

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        """Call a function on native arrays; a decorator differentiates it by the engine's own autodiff."""
        return fn(*arrays)

    def native_vjp(self, fn: Callable[..., Any], arrays: Sequence[Array], g: Any) -> tuple[Array, ...]:
        """The engine's own gradient of `fn` at `arrays`, with cotangent `g`; `AutodiffError` if it has none."""
        raise AutodiffError(f"{self!r} cannot differentiate a native function; its engine has no autodiff of its own")

    compiles: bool = False
    """Can this backend record a function as one program? Where not, `phlox.compile` calls the function itself."""

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        """The function as a program of two lists of arrays, (donated, kept); it is traced at the first call.

        An engine that cannot tell who else holds an array calls `release()` before a run in which it writes over what
        is donated: the caller then drops all that it holds of it, the entries of the list included.
        """
        raise NotImplementedError

    def trace_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        """Run the function on tracers once, for what it does on the way."""
        raise NotImplementedError

    def blank(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        """What `trace_only` makes a tracer of where there is no array yet."""
        raise UnsupportedError(f"{self!r} computes at once, and cannot run a function on shapes alone")

    def is_trace_error(self, error: Exception) -> bool:
        """Did tracing fail since the function needed the value of a tracer?"""
        return False

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
        entries: list[Sequence[Array]] = [x if isinstance(x, tuple) else self.entries(x) for x in xs]
        for number in reversed(range(length)) if reverse else range(length):
            after, y = body(state, tuple([one[number] for one in entries]))
            state = tuple(after)
            found.append(tuple(y))
        columns = zip(*(reversed(found) if reverse else found), strict=True)
        return state, tuple([self.piled(column) for column in columns])

    def entries(self, x: Array) -> Sequence[Array]:
        """The entries of an array along its first axis."""
        shape = self.shape(x)
        whole = tuple([slice(0, size, 1) for size in shape[1:]])
        cut = [self.index(x, (slice(number, number + 1, 1), *whole)) for number in range(shape[0])]
        return [self.reshape(one, shape[1:]) for one in cut]

    def piled(self, arrays: Sequence[Array]) -> Array:
        """Arrays of one shape, stacked on a new first axis."""
        return self.concat(tuple([self.reshape(x, (1, *self.shape(x))) for x in arrays]), 0)

    def put_entry(self, x: Array, place: int, entry: Array) -> Array:
        """x with this entry along the second axis replaced; x is given up, for its memory may be what is returned."""
        before, after = (slice(0, place, 1), slice(place + 1, self.shape(x)[1], 1))
        first, *rest = self.shape(x)
        whole = [slice(0, size, 1) for size in rest[1:]]
        parts = [self.index(x, (slice(0, first, 1), part, *whole)) for part in (before, after)]
        return self.concat((parts[0], self.reshape(entry, (first, 1, *rest[1:])), parts[1]), 1)

    def in_one_call(self, fn: Callable[..., Any], *static: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """`fn(self, *static, ...)`, a function of arrays and numbers written in operations of this backend.

        Where each call costs an engine more than what it computes, it is a program that is one call, and that takes
        the arrays at the places `donate` for its own. Products are at the precision of the elements.
        """
        return partial(fn, self, *static)

    def strip(self, x: Array) -> Array:
        """The array of the innermost backend behind decorators."""
        return x

    def is_leaked(self, x: Array, *, surely: bool = False) -> bool:
        """Is this tracer of no use any more, since what it was a part of has ended?

        With `surely`, only if there is no doubt: an engine may look at what a function has returned in between.
        """
        return False

    def is_leaked_error(self, error: Exception) -> bool:
        """Did the engine refuse a tracer of something that has ended?"""
        return False

    def is_donated(self, x: Array) -> bool:
        """Was this array given away to a compiled function, and is used up?"""
        return False

    def is_donated_error(self, error: Exception) -> bool:
        """Did the engine refuse an array that was given away to a compiled function?"""
        return False

    def is_engine_error(self, error: Exception) -> bool:
        """Is this of a class that engines raise by themselves, and not one of a program's own?"""
        return type(error) in (RuntimeError, ValueError, ArithmeticError, FloatingPointError, BufferError)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Is this what the engine raises where there is no memory for an array?"""
        return isinstance(error, MemoryError)

    def check_indices(self, indices: Array, size: int, *, from_end: bool) -> bool:
        """`IndexRangeError` for an index outside an axis of `size`, where it can be seen (not under a trace).

        `from_end` says whether negative ones count from the end, or are out of range too. Returns whether there may be
        any negative ones.
        """
        shape = self.shape(indices)
        if math.prod(shape) == 0:
            return False

        def judge(least: int, greatest: int) -> Exception | None:
            if least >= (-size if from_end else 0) and greatest < size:
                return None
            worst = greatest if greatest >= size else least
            bounds = "" if from_end else f"; it must be at least 0 and less than {size}"
            return IndexRangeError(f"index {worst} is out of range for an axis of size {size}{bounds}")

        if not self.is_traced(indices):
            host = self.to_host(indices)
            least = int(host.min())
            error = judge(least, int(host.max()))
            if error is not None:
                raise error
            return least < 0
        if self.gathers_checks(indices):
            axes = tuple(range(len(shape)))
            checks.leave(judge, self.int_min(indices, axes, False), self.int_max(indices, axes, False))
        return True

    def gathers_checks(self, x: Array) -> bool:
        """Does the program that this tracer belongs to gather checks? See `phlox.backend.tracing.checks`."""
        return False

    def with_autodiff(self) -> Backend:
        """A backend above this one that differentiates what it computes; one level more, if this one does already.

        A decorator that differentiates in a way of its own returns itself around this.
        """
        from phlox.backend.registry import EXPORTS, load  # the floor above, by its location

        return load(EXPORTS["Autodiff"])(self)

    def without_tape(self) -> Backend | None:
        """The backend without the highest of its tapes; None where there is no tape."""
        return self.inner

    def batch_of(self, x: Array) -> tuple[int, ...]:
        """The size of each batch that an array hides the axis of, the outermost first."""
        return ()

    def value(self, x: Array) -> Array:
        """The array on `without_tape()`, with its history there."""
        return x

    def tracked(self, x: Array) -> Array:
        """A leaf of the tape with this value."""
        raise AutodiffError(self._no_tape())

    def another_leaf(self, x: Array) -> Array:
        """A leaf of the tape as one of its own, whose gradient is not that of the first; anything else as it is."""
        return x

    def node_of(self, x: Array) -> Any:
        """The node of the tape that made this value, or None."""
        return None

    def is_leaf(self, x: Array) -> bool:
        """Is this a leaf of the tape?"""
        return False

    def requires_grad(self, x: Array) -> bool:
        """Would a gradient of this value go on to what it was made of?"""
        return False

    def poisoned(self, x: Array, why: str) -> Array:
        """The value without the history it had: a gradient that comes back to it is `AutodiffError`, which says why."""
        return x

    def is_poisoned(self, x: Array) -> bool:
        """Is this one of `poisoned`?"""
        return False

    def backward(self, x: Array, cotangent: Array | None, retain: bool) -> dict[int, Array]:
        """The gradients of the leaves that `x` depends on, by the number of their node."""
        raise AutodiffError(self._no_tape())

    def tape_function(
        self,
        operands: tuple[Array, ...],
        run: Callable[..., tuple[tuple[Array, ...], Any]],
        differentiate: Callable[[Backend, Any, Any, Needed], Gradients],
    ) -> tuple[Array, ...]:
        """`run(*values)[0]`, whose derivative is `differentiate(inner, run(*values)[1], gradients, needed)`."""
        raise UnsupportedError(f"{self!r} takes no function with a gradient of its own (phlox.custom_gradient)")

    def checkpoint(self, run: Callable[[Array | None], Sequence[Array]]) -> Sequence[Array]:
        """`run(None)`, of which nothing is kept for the backward pass where the backend can run it again there.

        Given an array, it is run in such a way that a compiler cannot merge it with an earlier run.
        """
        return run(None)

    def _no_tape(self) -> str:
        return f"{self!r} records no tape; make the tensors on Autodiff({self!r}).device(), or move them there"

    # --- element types

    @property
    def host_float_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this backend's floats."""
        return HOST_DTYPES[self.float_element]

    @property
    def host_int_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this backend's integers."""
        return HOST_DTYPES[self.int_element]

    def check_scalar(self, value: float, kind: type[Kind]) -> None:
        """`RangeError` for a Python number that this backend's elements cannot hold; floats are rounded."""
        if kind.name == "int":
            low, high = INT_RANGES[self.int_element]
            if not low <= value <= high:
                raise RangeError(
                    f"{value} does not fit {self!r}'s integers ({self.host_int_dtype}); use a backend of wider ones"
                )
        elif kind.name == "float" and (isinstance(value, int) or math.isfinite(value)):
            largest = LARGEST[self.float_element]
            if not -largest <= value <= largest:
                raise RangeError(
                    f"{value} does not fit {self!r}'s floats ({self.host_float_dtype}); use a backend of wider ones"
                )

    def host_dtype(self, kind: type[Kind]) -> np.dtype[Any]:
        """The NumPy dtype of this backend's elements of a kind."""
        name = kind.name
        return HOST_DTYPES[self.float_element if name == "float" else self.int_element if name == "int" else "bool"]


def engine_of(backend: Backend) -> Backend:
    """The backend behind all decorators."""
    while backend.inner is not None:
        backend = backend.inner
    return backend


def without_autodiff(backend: Backend) -> Backend:
    """The backend behind all tapes; a batch stays one."""
    while (lower := backend.without_tape()) is not None:
        backend = lower
    return backend
