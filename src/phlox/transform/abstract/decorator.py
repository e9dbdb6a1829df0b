"""`Abstract(B)`: the backend B for arrays with a shape and a kind, and without values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np

from phlox.backend.contract import Backend, Decorator
from phlox.backend.contract.collectives import Presence, Reduction
from phlox.backend.contract.tracing import TracingOps
from phlox.backend.contract.types import Array, Gradients, Kinds, Needed, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Float, Kind
from phlox.backend.processes import processes
from phlox.backend.registry import load_decorator
from phlox.errors import UnsupportedError
from phlox.host.dtypes import FloatElement
from phlox.transform.abstract.rules import FROM_NOTHING, RULES


class Blank:
    """An array without values."""

    __slots__ = ("device", "element", "kind", "shape")

    shape: Shape
    kind: type[Kind]
    device: Device
    element: str
    """The float element of its backend; for other kinds it does not matter."""

    def __repr__(self) -> str:
        return f"Blank({self.shape}, {self.kind.__name__})"


class Abstract(Decorator):
    """The backend `inner` without values: operations find the shapes of their results, and compute nothing.

    Floating-point operations are counted in `phlox.transform.abstract.counting`. It works for every engine, also those
    that cannot trace. Arrays of the inner backend are constants; operations on constants only run on the inner backend,
    and are not counted. An operation without a rule uses the contract's definition.

    >>> import phlox as px
    >>> from phlox.backend import NumPy
    >>> x = px.zeros((10**6, 10**6), device=Abstract(NumPy()))
    >>> (x @ x.T).shape
    (1000000, 1000000)
    """

    box: type[Blank] = Blank
    rules: ClassVar[Mapping[str, Callable[..., Any]]] = RULES
    """`(A, *arguments)` for an operation with an operand that has no value."""
    rules_from_nothing: ClassVar[Mapping[str, Callable[..., Any]]] = FROM_NOTHING
    _made: ClassVar[dict[tuple[type[Abstract], Backend], Any]] = {}

    def __new__(cls, inner: Backend) -> Self:
        if (cls, inner) in cls._made:
            return cls._made[cls, inner]
        if inner.inner is not None:
            raise UnsupportedError(f"Abstract stands on an engine alone, and {inner!r} is a decorator; see abstracted")
        self = super().__new__(cls)
        self.inner = inner
        self.name = f"{cls.__name__.lower()}({inner.name})"
        self.float_element = inner.float_element
        self.int_element = inner.int_element
        box, shape = cls.box, inner.shape
        self.shape = lambda x: x.shape if type(x) is box else shape(x)
        for name, rule in cls.rules.items():
            setattr(self, name, self._operation(name, rule))
        for name, rule in cls.rules_from_nothing.items():
            setattr(self, name, _bound(rule, self))
        return cls._made.setdefault((cls, inner), self)

    def _operation(self, name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        box, inner = self.box, self.inner

        def operation(*arguments: Any) -> Any:
            for x in arguments:
                if type(x) is box or (isinstance(x, (list, tuple)) and any(type(one) is box for one in x)):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                    return rule(self, *arguments)
            return getattr(inner, name)(*arguments)

        return operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def blank(self, shape: Sequence[int], kind: type[Kind] = Float, device: Device | None = None) -> Blank:
        """An array of this shape and kind."""
        found = object.__new__(self.box)
        found.shape, found.kind, found.element = tuple(shape), kind, self.float_element
        found.device = self.device() if device is None else device.on(self)
        return found

    # --- no tape, and nothing to decorate but an engine

    def without_tape(self) -> Backend | None:
        return None

    def with_float(self, element: FloatElement) -> Backend:
        return type(self)(self.inner.with_float(element))

    def strip(self, x: Array) -> Array:
        return x

    def requires_grad(self, x: Array) -> bool:
        return False

    def is_poisoned(self, x: Array) -> bool:
        return False

    def batch_of(self, x: Array) -> Shape:
        return ()

    def is_donated(self, x: Array) -> bool:
        return type(x) is not self.box and self.inner.is_donated(x)

    # --- what is known of an array

    def device_of(self, x: Array) -> Device:
        return x.device.on(self) if type(x) is self.box else self.inner.device_of(x).on(self)

    def kind_of(self, x: Array) -> type[Kind]:
        return x.kind if type(x) is self.box else self.inner.kind_of(x)

    def owns_floats(self, x: object) -> bool:
        if isinstance(x, self.box):
            return x.kind is Float and x.element == self.float_element
        return self.inner.owns_floats(x)

    def is_traced(self, x: Array) -> bool:
        """Does the array lack a value?"""
        return type(x) is self.box or self.inner.is_traced(x)

    def trace_of(self, x: Array) -> object | None:
        return None if type(x) is self.box else self.inner.trace_of(x)

    def collects_checks(self, x: Array) -> bool:
        return type(x) is not self.box and self.inner.collects_checks(x)

    def cuts_sequences(self, x: Array) -> bool:
        return type(x) is not self.box and self.inner.cuts_sequences(x)

    def check_indices(self, indices: Array, size: int, *, from_end: bool) -> bool:
        if type(indices) is self.box:
            return TracingOps.check_indices(self, indices, size, from_end=from_end)
        return self.inner.check_indices(indices, size, from_end=from_end)

    def check_fits(self, x: Array, target: Backend) -> None:
        if type(x) is not self.box:
            self.inner.check_fits(x, target)

    def prefers_fused_matmul(self, joined: Sequence[Array]) -> bool:
        return False

    # --- moving

    def replicate_like(self, x: Array, like: Array) -> Array:
        known = type(x) is not self.box and type(like) is not self.box
        return self.inner.replicate_like(x, like) if known else x

    def to_device(self, x: Array, device: Device) -> Array:
        if type(x) is self.box:
            return self.blank(x.shape, x.kind, device)
        return self.inner.to_device(x, device.on(self.inner))

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        below: Backend | None = target
        while below is not None and not isinstance(below, Abstract):
            below = below.inner
        if type(x) is not self.box:
            place = self.inner if below is None else below.inner
            assert place is not None
            return self.inner.cast(x, place, device.on(place))
        if below is None:
            raise self.no_value(f"a tensor cannot go to {target!r}")
        return below.blank(x.shape, x.kind, device.on(below))

    def duplicate(self, x: Array) -> Array:
        return x if type(x) is self.box else self.inner.duplicate(x)

    def detach(self, x: Array) -> Array:
        return x

    # --- collectives, which would wait for processes that may not evaluate shapes

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        return list(arrays)

    def all_gather(self, x: Array) -> Array:
        return self.blank((processes().size, *self.shape(x)), self.kind_of(x), self.device_of(x))

    def broadcast(self, x: Array, root: int) -> Array:
        return x

    # --- values, of which there are none

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return self.inner.to_host(self._known(x))

    def await_array(self, x: Array) -> None:
        if type(x) is not self.box:
            self.inner.await_array(x)

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        return self.inner.to_dlpack(self._known(x), **options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        return self.inner.dlpack_device(self._known(x))

    def _known(self, x: Array) -> Array:
        if type(x) is self.box:
            raise self.no_value(
                f"a tensor of shape {x.shape} has no value that could be read (by item(), float(), bool() or numpy())"
            )
        return x

    needs_values: str = "the shape of the result of this operation depends on values"
    """The error for an operation that runs on the host."""

    def no_value(self, what: str) -> Exception:
        """The error if a value is needed."""
        return UnsupportedError(f"{what} where only shapes are evaluated; use phlox.where, or compute it outside")

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        if any(type(x) is self.box for x in arrays):
            raise self.no_value(self.needs_values)
        return self.inner.on_host(kinds, fn, *arrays)

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        """A function of the engine's own arrays (see `phlox.lift`): the engine finds the shapes.

        On an engine that cannot trace, the function is called with zeros.
        """
        blanks = [place for place, x in enumerate(arrays) if type(x) is self.box]
        if not blanks:
            return self.inner.call_native(fn, *arrays)
        found: list[Any] = []

        def body(donated: Any, kept: Sequence[Array]) -> list[Array]:
            given = list(arrays)
            for place, x in zip(blanks, kept, strict=True):
                given[place] = x
            found.append(_map(self._blank_like, self.inner.call_native(fn, *given)))
            return []

        if self.inner.compiles:
            likes = [self.inner.abstract_array(arrays[n].shape, arrays[n].kind, arrays[n].device) for n in blanks]
            self.inner.trace_only(body, [], likes)
        else:
            make = {kind: getattr(self.inner, f"{kind}_full") for kind in ("float", "int", "bool")}
            body([], [make[x.kind.name](x.shape, 0, x.device.on(self.inner)) for x in (arrays[n] for n in blanks)])
        return found[-1]

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        """Gradients have the shapes of the arrays."""
        return tuple([self._blank_like(x) for x in arrays])

    def _blank_like(self, x: Any) -> Any:
        if not hasattr(x, "shape"):
            return x
        return x if type(x) is self.box else self.blank(self.inner.shape(x), self.inner.kind_of(x))


def _map(fn: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [_map(fn, part) for part in cast("Sequence[Any]", value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, dict):
        return {key: _map(fn, part) for key, part in cast("dict[Any, Any]", value).items()}
    return fn(value)


def _bound(rule: Callable[..., Any], backend: Abstract) -> Callable[..., Any]:
    return lambda *arguments: rule(backend, *arguments)


def abstracted(backend: Backend) -> Backend:
    """The same decorators (tapes) around an engine without values."""
    if isinstance(backend, Abstract):
        return backend
    if backend.inner is None:
        return Abstract(backend)
    assert isinstance(backend, Decorator)
    name, options = backend.spec()
    return load_decorator(name)(abstracted(backend.inner), **options)
