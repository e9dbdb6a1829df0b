"""What a backend says of compiled programs, and of the errors that its engine raises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Kind
from phlox.errors import UnsupportedError


class CompilingOps:
    """Here an engine that compiles nothing."""

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

    def abstract_array(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        """What `trace_only` makes a tracer of where there is no array yet."""
        raise UnsupportedError(f"{self!r} computes at once, and cannot run a function on shapes alone")

    def in_one_call(self, fn: Callable[..., Any], *static: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """`fn(self, *static, ...)`, a function of arrays and numbers written in operations of this backend.

        Where each call costs an engine more than what it computes, it is a program that is one call, and that takes
        the arrays at the places `donate` for its own. Products are at the precision of the elements.
        """
        return partial(fn, self, *static)

    def barrier(self, x: Array, after: Array) -> Array:
        """x, as a value that a compiler can compute only once it has `after`; for those who do not compile, x."""
        return x

    def rounded(self, x: Array) -> Array:
        """x, as its element type holds it, for what follows: a compiler rounds no product and sum together."""
        return x

    # --- arrays given to a program

    def is_donated(self, x: Array) -> bool:
        """Was this array given away to a compiled function, and is used up?"""
        return False

    def is_donated_error(self, error: Exception) -> bool:
        """Did the engine refuse an array that was given away to a compiled function?"""
        return False

    # --- the engine's errors

    def is_engine_error(self, error: Exception) -> bool:
        """Is this of a class that engines raise by themselves, and not one of a program's own?"""
        return type(error) in (RuntimeError, ValueError, ArithmeticError, FloatingPointError, BufferError)

    def is_out_of_memory(self, error: Exception) -> bool:
        """Is this what the engine raises where there is no memory for an array?"""
        return isinstance(error, MemoryError)
