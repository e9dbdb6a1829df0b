"""Every private or unstable name of JAX that Phlox uses, in this one place, and what Phlox does where a JAX lacks one.

Eager work needs none of them. If some are missing, a leaked tracer is reported by JAX's own error, which comes later
and says less. Compiling needs one of them, and the error says so in one sentence.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import FrameType
from typing import Any

import jax
import numpy as np

from phlox.errors import CompileError

SUPPORTED = "0.10"
"""The versions of JAX that Phlox is known to compile on."""

PRIVATE = {
    "jax.core.Tracer._trace": "programs are not told apart: checks and leaked tracers are JAX's own affair",
    "jax.core.Trace.is_valid": "a leaked tracer is reported by JAX's own error",
    "jax.extend.core.get_opaque_trace_state": "a leaked tracer of `grad` is reported by JAX's own error",
    "jax.extend.core.primitives.convert_element_type_p": "nothing that takes scalars is compiled",
    "jax._src.xla_bridge.backends_are_initialized": "that JAX was used too early is JAX's own error",
    "jax.jit()._cache_size": "what is compiled again because arrays lie on devices in another way is not counted",
    "jax._src.api": "`jax.grad` towards an integer is JAX's own error, which does not name the parameter",
}
"""All private names in use, and what happens without each."""


def _find(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


# --- tracers and their traces


@cache
def traced_type() -> type[Any]:
    """The type of the tracers of a program, as those of `jit` and `scan`, but not those of `grad` and `vmap`."""
    seen: list[type[Any]] = []

    def fn(x: Any) -> Any:
        seen.append(type(x))
        return x

    jax.make_jaxpr(fn)(np.float32(0.0))
    return seen[0]


def trace_of(x: Any) -> Any:
    """The trace that a tracer belongs to; None if that is unknown."""
    return getattr(x, "_trace", None)


def is_over(x: Any) -> bool:
    """Is it sure that the trace of this tracer has ended?"""
    valid = getattr(trace_of(x), "is_valid", None)
    return valid is not None and not valid()


def beneath(x: Any) -> Any:
    """The value inside of a tracer of `grad`, `jvp` or `vmap`."""
    return getattr(x, "primal", getattr(x, "val", None))


def is_closed(x: Any) -> bool:
    """Has the trace of this tracer's program ended? False if JAX does not show it."""
    return _looks_closed(x) and _closing_shows()


def _looks_closed(x: Any) -> bool:
    # The trace of a program that is complete lets go of its constants, in a table of another type.
    return type(getattr(getattr(trace_of(x), "frame", None), "constid_to_tracer", None)) is dict


@cache
def _closing_shows() -> bool:
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        seen.extend([x, _looks_closed(x)])
        return x

    jax.make_jaxpr(fn)(np.float32(0.0))
    tracer, closed_before = seen
    return not closed_before and _looks_closed(tracer)


_API = "jax._src.api"
"""The module of `jax.grad`."""

# --- transformations that are under way


def is_outside() -> bool:
    """Is no transformation under way? So it is, too, while JAX takes apart what a function under jvp has returned.

    False where that cannot be told.
    """
    return _OUTSIDE is not None and _trace_state() == _OUTSIDE


def _trace_state() -> Any:
    state = _find("jax.extend.core", "get_opaque_trace_state")
    return None if state is None else state()


with jax.ensure_compile_time_eval():
    _OUTSIDE = _trace_state()


def differentiates() -> bool:
    """Does `jax.grad` or its kin take a tree apart now, to look at what they differentiate towards?

    It is asked by a function that flattens a node of the tree. False where that cannot be told.
    """
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename == jax.tree_util.tree_leaves.__code__.co_filename:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name not in ("value_and_grad_f", "jacfun"):
        return False
    return frame.f_globals.get("__name__") == _API and not frame.f_locals.get("allow_int", False)


# --- processes


def has_started() -> bool:
    """Has JAX initialized its devices? False if that is unknown."""
    found = _find("jax._src.xla_bridge", "backends_are_initialized")
    return found is not None and found()


# --- programs


def programs_of(run: Any) -> int | None:
    """The number of argument types for which `jax.jit` has compiled a function; None if that is unknown."""
    size = getattr(run, "_cache_size", None)
    return None if size is None else size()


# --- scalars


def weakly(x: Any, dtype: Any) -> Any:
    """A weakly typed scalar, like Python's own: it takes the dtype of the other operand."""
    convert = _find("jax.extend.core.primitives", "convert_element_type_p")
    if convert is None:
        raise CompileError(
            f"JAX {jax.__version__} lacks `jax.extend.core.primitives.convert_element_type_p`, which compiling needs; "
            f"Phlox compiles on JAX {SUPPORTED} (without compiling, everything runs)"
        )
    return convert.bind(x, new_dtype=np.dtype(dtype), weak_type=True, sharding=None)
