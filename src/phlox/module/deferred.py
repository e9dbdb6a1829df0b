"""Deferred parameters: the shapes, initializers and random streams from which their values are created."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from types import FunctionType
from typing import Any, NamedTuple, Protocol, cast

from phlox.backend import Backend, Device, Float, Kind
from phlox.backend.contract.backend import engine_of
from phlox.backend.registry import load
from phlox.batching import innermost, joined, outside
from phlox.batching.frames import PerExample
from phlox.errors import ModuleError, RandomnessError, UnsupportedError
from phlox.host.signal_guard import scope
from phlox.other_names import class_of
from phlox.random import current, normal, stream
from phlox.random.roots import Root, is_key, settled
from phlox.random.stream import Stream, TracedStream, WrongEngine, opened
from phlox.tensor import Tensor, stack


class Initializer(Protocol):
    """A function that creates the first value of a parameter; it draws from the parameter's own stream."""

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        """A tensor of `shape` on `device`; `fans` are the connections into and out of a unit."""
        ...


class JaxInitializer(Protocol):
    """An initializer of JAX (`jax.nn.initializers`): it takes a JAX key and returns a JAX array."""

    def __call__(self, key: Any, shape: Any, dtype: Any, /) -> Any:
        """An array of this shape and element type."""
        ...


def standard_normal(shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
    """Normally distributed values with mean 0 and standard deviation 1: the default initializer."""
    return normal(shape, device=device)


@dataclass(frozen=True, slots=True)
class FromJax:
    """An initializer of JAX as one of Phlox: it works on every backend if JAX is installed."""

    function: JaxInitializer

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        initialized = load("phlox.backend.jax.keys:initialized")
        array = initialized(self.function, settled(current().substream(), device.backend), shape, device)
        return Tensor.from_primitive(array, device.backend, Float)


_has_own_signature: dict[type[Any], bool] = {}
"""For classes of initializers, whether all instances have Phlox's signature; functions differ."""


def as_initializer(function: Any) -> Initializer:
    """An initializer with Phlox's signature, `(shape, fans, device)`, from one with that signature or with JAX's."""
    is_own = _has_own_signature.get(cast("type[Any]", type(function)))
    return function if is_own or not is_of_jax(function) else FromJax(function)


def is_of_jax(function: Any) -> bool:
    """Is this an initializer of JAX, by the names of its arguments, `(key, shape, dtype)`?"""
    cls = cast("type[Any]", type(function))
    is_own = _has_own_signature.get(cls)
    if is_own:
        return False
    try:
        names = [*signature(function).parameters, "", ""]
    except (TypeError, ValueError):  # the function has no readable signature
        return False
    is_jax = names[1] == "shape" or (names[0] != "shape" and ("key" in names[0] or "rng" in names[0]))
    if is_own is None:
        _has_own_signature[cls] = not is_jax and isinstance(_call_of(cls), FunctionType)
    return is_jax


def _call_of(cls: type[Any]) -> Any:
    return next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)


class _SeededStream(Stream):
    """A stream whose draws are the same in every run of a program."""

    whole = True

    def check(self, backend: Backend) -> None:
        pass


class _TracedSeededStream(TracedStream):
    """As `_SeededStream`, for a traced seed."""

    whole = True

    def check(self, backend: Backend) -> None:
        pass


_initializers_forbidden: ContextVar[bool] = ContextVar("phlox_no_initializers", default=False)


@contextmanager
def no_initializers() -> Generator[None]:
    """Within this scope, running an initializer is an error. It checks that every value comes from a record."""
    with scope(_initializers_forbidden, True):
        yield


class TraceContext(NamedTuple):
    """The transformations in which a parameter is declared, or its value is created."""

    program: object
    """The program that is being traced, if any."""
    transformations: object
    """The engine's transformations, also those that trace no program."""
    batch: object
    """The innermost `phlox.vmap`."""

    @classmethod
    def now(cls, engine: Backend) -> TraceContext:
        """The context of the caller."""
        return cls(engine.current_trace(), engine.transformations(), innermost())


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a deferred parameter holds instead of a value."""

    shape: tuple[int, ...]
    initializer: Initializer
    fans: tuple[int, int]
    device: Device
    root: Root
    context: TraceContext
    kind: type[Kind] = Float

    def create(self, root: Root | None = None) -> Tensor[Any, Any, Any]:
        """Create the value, from the parameter's own sub-stream or from another root."""
        if _initializers_forbidden.get():
            raise ModuleError(
                f"a parameter of shape {self.shape} was about to be initialised inside no_initializers(); "
                "load a record that has it"
            )
        engine = engine_of(self.device.backend)
        start = settled(self.root if root is None else root, engine)
        has_key = is_key(start)
        # The value can be created in a program only if the parameter was declared in the program, and if it follows a
        # seed (so that it is always the same) or a traced key. It must not outlive the transformation of that key.
        if engine.is_tracing() or not has_key:
            own, context = self.context, TraceContext.now(engine)
            if has_key and (root is None or own.program is None or context.program is not own.program):
                raise ModuleError(
                    f"a parameter of shape {self.shape} is first used inside a transformation of JAX or PyTorch and "
                    "cannot be created there; call model.init() before or, if the model is created inside, "
                    "model.init(seed)"
                )
            if not has_key and context != own:
                raise ModuleError(
                    f"a parameter of shape {self.shape} would get a value from a traced seed, but was declared outside "
                    "of the transformation (vmap, jit, scan) that traces it; create the model inside, and return it"
                )
        return self._check(self._create(start, engine))

    def _create(self, root: Root, engine: Backend) -> Any:
        if isinstance(root, PerExample):
            return self._create_stacked(root, engine)
        source: Any = root
        if not is_key(root) or engine.is_tracing():
            source = opened(root, _TracedSeededStream, _SeededStream)
        try:
            with stream(source), outside():
                return self.initializer(self.shape, self.fans, self.device)
        except Exception as error:  # the initializer draws on the host, or reads values there
            if is_key(root) or not (isinstance(error, WrongEngine) or _needs_values(error, engine)):
                raise
            return self._create_on_host(root, engine, error)

    def _create_on_host(self, root: Any, engine: Backend, error: Exception) -> Tensor[Any, Any, Any]:
        """The value from an initializer that needs NumPy; it is called in every run of the program."""
        host = load("phlox.backend.numpy.backend:NumPy")(float=engine.float_element).device()

        def values(words: Any) -> Any:
            with stream(words), outside():
                return self._check(self.initializer(self.shape, self.fans, host)).numpy()

        try:
            array = engine.from_host_draws(values, root, self.shape, self.device)
        except UnsupportedError:
            raise RandomnessError(
                f"a parameter of shape {self.shape} on {self.device} cannot be created from a traced seed by "
                f"{class_of(self.initializer)}, which computes on the host ({error}); initialise it outside"
            ) from error
        return Tensor.from_primitive(array, engine, self.kind)._on(self.device.backend)  # pyright: ignore[reportPrivateUsage]

    def _create_stacked(self, root: PerExample, engine: Backend) -> Tensor[Any, Any, Any]:
        """The value on a batched backend: each example has a value from its own seed."""
        values = [self._check(self._create(item, engine)) for item in root.items]
        value = stack(values)
        backend = joined(value.backend, root.backend)
        if backend is None or backend.inner is None:
            raise ModuleError(
                f"a parameter of shape {self.shape} on {self.device} cannot have a value for each example of "
                f"{root.backend!r}; create the model on the engine of the seed (device=...)"
            )
        inner = value._on(backend.inner)  # pyright: ignore[reportPrivateUsage]
        return Tensor.from_primitive(cast("Any", backend).boxed(inner.primitive), backend, Float)

    def _check(self, value: Any) -> Tensor[Any, Any, Any]:
        if not isinstance(value, Tensor) or value.shape != self.shape:
            description = f"shape {value.shape}" if isinstance(value, Tensor) else class_of(value)
            raise ModuleError(f"an initializer gave {description} for a parameter of shape {self.shape}")
        return cast("Tensor[Any, Any, Any]", value)


def _needs_values(error: BaseException | None, engine: Backend) -> bool:
    """Was the error raised because code read the value of a tracer?"""
    while error is not None:
        if engine.is_trace_error(cast("Exception", error)):
            return True
        error = error.__cause__
    return False
