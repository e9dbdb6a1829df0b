"""Compiling: functions as programs, donated arrays, and the errors of an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.backend.settings import Settings
from phlox.errors import UnsupportedError

if TYPE_CHECKING:
    from phlox.backend.analysis import Analysis


class CompilingOps:
    """The defaults are those of an engine that compiles nothing."""

    compiles: bool = False
    """Can this backend compile a function? If not, `phlox.compile` calls the function itself."""

    prefers_compiled: bool = False
    """Do single operations have so much overhead that a training is compiled by default?"""

    tunings: tuple[Settings, ...] = ()
    """The settings of this engine that `phlox tune` tries; they change results only by rounding."""

    takes_xla_flags: bool = False
    """Does the engine compile with XLA, which reads its flags from the environment?"""

    def compile(self, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        """Compile a function of two lists of arrays, (donated, kept); it is traced at the first call.

        An engine that sees an array's owners only by reference counts calls `release()` before a run that overwrites
        donated arrays: the caller then drops its references to them, also those in the list.
        """
        raise NotImplementedError

    def trace_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        """Trace the function without compiling it, for its side effects."""
        raise NotImplementedError

    def analyze(self, run: Callable[[Any, Any], Any], donated: Any, kept: Any) -> Analysis | None:
        """The costs of the program that `run`, a result of `compile`, has for arguments like these.

        It is traced and compiled if needed, but not run. None if the engine's compiler reports nothing.
        """
        return None

    def layout_of(self, x: Array) -> tuple[Hashable, str] | None:
        """An array's layout on devices, as a key and in words; None if programs do not depend on it."""
        return None

    def compilations(self, run: Callable[[Any, Any], Any]) -> int | None:
        """The number of argument types for which the engine has compiled `run`; None if layouts cannot differ."""
        return None

    def abstract_array(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        """An argument of `trace_only` with a shape and kind, but without values."""
        raise UnsupportedError(f"{self!r} computes eagerly, and cannot run a function on shapes alone")

    def in_one_call(self, fn: Callable[..., Any], *static: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """`fn(self, *static, ...)`, a function of arrays and scalars written in operations of this backend.

        An engine with slow calls compiles it as one program, with the arrays at the positions `donate` donated.
        Products have the precision of the elements.
        """
        return partial(fn, self, *static)

    def barrier(self, x: Array, after: Array) -> Array:
        """x, which a compiler computes no earlier than `after`; without a compiler, x itself."""
        return x

    def rounded(self, x: Array) -> Array:
        """x, rounded to its element type: a compiler must not fuse the product x with a sum that follows."""
        return x

    # --- donated arrays

    def is_donated(self, x: Array) -> bool:
        """Was this array donated to a compiled function, so that it cannot be used any more?"""
        return False

    def is_donated_error(self, error: Exception) -> bool:
        """Is this the engine's error for a donated array?"""
        return False

    # --- the engine's errors

    def is_engine_error(self, error: Exception) -> bool:
        """Is this of a class that engines raise, and not one of Phlox's or the user's?"""
        return type(error) in (RuntimeError, ValueError, ArithmeticError, FloatingPointError, BufferError)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Is this the engine's error for having no memory left?"""
        return isinstance(error, MemoryError)
