"""Parameters that are not there yet: what they are to be made of."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from phlox.backend import Backend, Device, Float, Kind
from phlox.backend.contract.backend import engine_of
from phlox.batching import outside
from phlox.errors import ModuleError
from phlox.module.foreign import a_thing
from phlox.random import Key, stream
from phlox.random.stream import Stream
from phlox.tensor import Tensor


class Initializer(Protocol):
    """Gives a parameter its first value, drawing from the ambient stream, which is the parameter's own."""

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        """A tensor of `shape` on `device`; `fans` are the connections into and out of a unit."""
        ...


class _SeededStream(Stream):
    """A stream whose draws are meant to be the same whenever a program is run."""

    def check(self, backend: Backend) -> None:
        pass


_forbidden: ContextVar[bool] = ContextVar("phlox_no_initializers", default=False)


@contextmanager
def no_initializers() -> Generator[None]:
    """Within this scope running an initializer is an error: proof that a model comes from its record alone."""
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a parameter knows until its value is needed."""

    shape: tuple[int, ...]
    initializer: Initializer
    fans: tuple[int, int]
    device: Device
    key: Key
    program: object = None
    """That was being recorded when the parameter was declared, if one was."""

    @property
    def kind(self) -> type[Kind]:
        """Only Float parameters are deferred."""
        return Float

    def made(self, key: Key | None = None) -> Tensor[Any, Any, Any]:
        """The value, from the parameter's own sub-stream or from another key."""
        if _forbidden.get():
            raise ModuleError(
                f"a parameter of shape {self.shape} was about to be initialised where that is forbidden; "
                "load a record that has it"
            )
        engine = engine_of(self.device.backend)
        source: Any = self.key if key is None else key
        if engine.bakes_constants():
            # A part of the program it can only be if it was declared in it, and its value is meant to be always the
            # same, which a seed says.
            if key is None or self.program is None or engine.program() is not self.program:
                raise ModuleError(
                    f"a parameter of shape {self.shape} is first used inside a transformation of JAX or PyTorch and "
                    "cannot be made there; call model.init() before or, where the model is created inside, "
                    "model.init(seed)"
                )
            source = _SeededStream(key)
        with stream(source), outside():
            value = self.initializer(self.shape, self.fans, self.device)
        if not isinstance(value, Tensor) or value.shape != self.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
            got = f"shape {value.shape}" if isinstance(value, Tensor) else a_thing(value)  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"an initializer gave {got} for a parameter of shape {self.shape}")
        return value
