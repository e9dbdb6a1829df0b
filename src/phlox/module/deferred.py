"""Deferred parameters: what their values are created from."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from types import FunctionType
from typing import Any, ClassVar, Protocol, cast

from phlox.backend import Backend, Device, Float, Kind
from phlox.backend.contract.backend import engine_of
from phlox.backend.registry import load
from phlox.batching import outside
from phlox.errors import ModuleError
from phlox.host.signal_guard import scope
from phlox.module.foreign_leaf import described
from phlox.random import Key, current, normal, stream
from phlox.random.stream import Stream
from phlox.tensor import Tensor


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
        array = initialized(self.function, current().substream(), shape, device)
        return Tensor.from_primitive(array, device.backend, Float)


_called_as_ours: dict[type[Any], bool] = {}
"""For classes of initializers, whether all instances have Phlox's signature; functions differ."""


def as_initializer(given: Any) -> Initializer:
    """An initializer with Phlox's signature, `(shape, fans, device)`, from one with that signature or with JAX's."""
    known = _called_as_ours.get(cast("type[Any]", type(given)))
    return given if known or not is_of_jax(given) else FromJax(given)


def is_of_jax(given: Any) -> bool:
    """Do the names of the arguments, `(key, shape, dtype)`, say that this is an initializer of JAX?"""
    cls = cast("type[Any]", type(given))
    known = _called_as_ours.get(cls)
    if known:
        return False
    try:
        names = [*signature(given).parameters, "", ""]
    except (TypeError, ValueError):  # nothing is said about it
        return False
    found = names[1] == "shape" or (names[0] != "shape" and ("key" in names[0] or "rng" in names[0]))
    if known is None:
        _called_as_ours[cls] = not found and isinstance(_call_of(cls), FunctionType)
    return found


def _call_of(cls: type[Any]) -> Any:
    return next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)


class _SeededStream(Stream):
    """A stream whose draws are meant to be the same whenever a program is run."""

    whole = True

    def check(self, backend: Backend) -> None:
        pass


_forbidden: ContextVar[bool] = ContextVar("phlox_no_initializers", default=False)


@contextmanager
def no_initializers() -> Generator[None]:
    """Within this scope running an initializer is an error: a check that every value comes from a record."""
    with scope(_forbidden, True):
        yield


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a deferred parameter holds in place of a value."""

    shape: tuple[int, ...]
    initializer: Initializer
    fans: tuple[int, int]
    device: Device
    key: Key
    program: object = None
    """The program that was being traced when the parameter was declared, if any."""
    kind: ClassVar[type[Kind]] = Float
    """Only Float parameters are deferred."""

    def made(self, key: Key | None = None) -> Tensor[Any, Any, Any]:
        """Create the value, from the parameter's own sub-stream or from another key."""
        if _forbidden.get():
            raise ModuleError(
                f"a parameter of shape {self.shape} was about to be initialised where that is forbidden; "
                "load a record that has it"
            )
        engine = engine_of(self.device.backend)
        source: Any = self.key if key is None else key
        if engine.is_tracing():
            # A part of the program it can only be if it was declared in it, and its value is meant to be always the
            # same, which a seed says.
            if key is None or self.program is None or engine.current_trace() is not self.program:
                raise ModuleError(
                    f"a parameter of shape {self.shape} is first used inside a transformation of JAX or PyTorch and "
                    "cannot be made there; call model.init() before or, where the model is created inside, "
                    "model.init(seed)"
                )
            source = _SeededStream(key)
        with stream(source), outside():
            value = self.initializer(self.shape, self.fans, self.device)
        if not isinstance(value, Tensor) or value.shape != self.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
            got = f"shape {value.shape}" if isinstance(value, Tensor) else described(value)  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"an initializer gave {got} for a parameter of shape {self.shape}")
        return value
