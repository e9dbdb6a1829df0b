"""Tapes, by which gradients are computed; `Autodiff` overrides most of these members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.errors import AutodiffError, UnsupportedError

if TYPE_CHECKING:
    from phlox.backend.contract.backend import Backend


class TapingOps:
    """The defaults are those of a backend without a tape."""

    inner: Backend | None = None
    """The backend that a decorator wraps."""
    differentiates: bool = False
    """Does this backend have a tape?"""

    def below(self, x: Array) -> Array:
        """The inner backend's own array, in a box of this one."""
        return x

    def with_autodiff(self) -> Backend:
        """This backend with a tape above it, or with one more tape if it has one already.

        A decorator that differentiates in another way returns itself around this backend.
        """
        from phlox.backend.registry import EXPORTS, load  # the floor above, by its location

        return load(EXPORTS["Autodiff"])(self)

    def without_tape(self) -> Backend | None:
        """The backend without its outermost tape; None if there is no tape."""
        return self.inner

    def value(self, x: Array) -> Array:
        """The array of `without_tape()` inside x, with its history on the tapes below."""
        return x

    # --- values on the tape

    def make_leaf(self, x: Array) -> Array:
        """A leaf of the tape with this value."""
        raise AutodiffError(self._no_tape())

    def copy_leaf(self, x: Array) -> Array:
        """A copy of a leaf of the tape, with a gradient of its own; x itself if it is no leaf."""
        return x

    def node_of(self, x: Array) -> Any:
        """The node of the tape that made this value, or None."""
        return None

    def is_leaf(self, x: Array) -> bool:
        """Is this a leaf of the tape?"""
        return False

    def requires_grad(self, x: Array) -> bool:
        """Do gradients flow back through this value to its operands?"""
        return False

    def poisoned(self, x: Array, why: str) -> Array:
        """The value without its history: a gradient that reaches it raises `AutodiffError` with the message `why`."""
        return x

    def is_poisoned(self, x: Array) -> bool:
        """Is this the result of `poisoned`?"""
        return False

    # --- gradients

    def backward(self, x: Array, cotangent: Array | None, retain: bool) -> dict[int, Array]:
        """The gradients of the leaves that `x` depends on, by the id of their node."""
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
        """`run(None)`, without keeping values for the backward pass if the backend can run it again there.

        Given an array, `run` runs so that a compiler cannot merge it with an earlier run.
        """
        return run(None)

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        """Call a function on native arrays; a decorator differentiates it by the engine's own autodiff."""
        return fn(*arrays)

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        """The engine's own gradients of `fn` for the arrays that are `needed`; `AutodiffError` if it has no autodiff.

        `fn` returns a tuple of arrays, and `gs` are their cotangents; None means zero.
        """
        raise AutodiffError(f"{self!r} cannot differentiate a native function; its engine has no autodiff of its own")

    def native_pullback(
        self, fn: Callable[..., Any], arrays: Sequence[Array], needed: Needed
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Any]], Gradients] | None]:
        """`fn(*arrays)`, and `native_vjp` as a function of the cotangents, which uses values kept from this call.

        None in place of the function means that the engine keeps nothing, so the call has to be repeated.
        """
        return self.call_native(fn, *arrays), None

    def _no_tape(self) -> str:
        return (
            f"{self!r} has no tape; for the gradients of a model, compute with model = model.train(); for those of "
            f"other tensors, make them on Autodiff({self!r}).device()"
        )
