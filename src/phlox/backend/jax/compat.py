"""Every private or unstable name of JAX that Phlox uses, and what Phlox does without it.

Eager work needs none of them. Without some, JAX reports a leaked tracer by its own error, which comes later and says
less. Compiling needs one of them, and the error says so in one sentence.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from threading import get_ident
from types import FrameType
from typing import Any

import jax
import numpy as np

from phlox.backend.pytree import keeping
from phlox.errors import CompileError

SUPPORTED = "0.10"
"""The versions of JAX that Phlox is known to compile on."""

PRIVATE = {
    "jax.core.Tracer._trace": "programs are not told apart: checks and leaked tracers are JAX's own errors",
    "jax.core.Trace.is_valid": "a leaked tracer is reported by JAX's own error",
    "jax.extend.core.get_opaque_trace_state": "a leaked tracer of `grad` is reported by JAX's own error",
    "jax.extend.core.primitives.convert_element_type_p": "nothing that takes scalars is compiled",
    "jax._src.core.trace_ctx": "a value set into a parameter inside `vmap` within `grad` is not told apart",
    "jax._src.xla_bridge.backends_are_initialized": "using JAX too early is JAX's own error",
    "jaxlib._jax.make_gloo_tcp_collectives": "collectives of CPUs listen on the address of the machine's name",
    "jax.jit()._cache_size": "compilations for other layouts of arrays are not counted",
    "jax._src.interpreters.pxla.reflatten_outputs_for_dispatch": "results of `jax.jit` have the ids of its first call",
    "jax._src.array.ArrayImpl": "an array moved back to the default device stays committed to it",
    "jax._src.api": "`jax.grad` towards an integer is JAX's own error, which does not name the parameter",
    "jax._src.api._check_scalar": "the loss of `jax.grad` must be an array: JAX's error says to convert it",
    "jax._src.lax.lax._one_vjp": "as above; both are changed so that the loss may be a tensor of one element",
}
"""All private names in use, and what happens without each."""


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _find(module: str, name: str) -> Any:
    return getattr(_module(module), name, None)


# --- tracers and their traces


@cache
def traced_type() -> type[Any]:
    """The type of a program's tracers: tracers of `jit` and `scan`, but not of `grad` and `vmap`."""
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
    """Has the trace of this tracer certainly ended?"""
    valid = getattr(trace_of(x), "is_valid", None)
    return valid is not None and not valid()


def beneath(x: Any) -> Any:
    """The value inside of a tracer of `grad`, `jvp` or `vmap`."""
    return getattr(x, "primal", getattr(x, "val", None))


def is_closed(x: Any) -> bool:
    """Has the trace of this tracer's program ended? False if JAX does not show it."""
    return _looks_closed(x) and _closing_shows()


def _looks_closed(x: Any) -> bool:
    # A complete trace releases its constants, by a table of another type.
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

# --- active transformations


def is_outside() -> bool:
    """Is no transformation active? None is while JAX flattens the result of a function under jvp.

    False if unknown.
    """
    return _OUTSIDE is not None and trace_state() == _OUTSIDE


def trace_state() -> Any:
    """A value that is equal while the same transformations are active; None if unknown."""
    state = _find("jax.extend.core", "get_opaque_trace_state")
    return None if state is None else state()


with jax.ensure_compile_time_eval():
    _OUTSIDE = trace_state()


_CONTEXT, _EAGER = _find("jax._src.core", "trace_ctx"), _find("jax._src.core", "eval_trace")


def transformation() -> weakref.ref[Any] | None:
    """The innermost active transformation (jit, grad, vmap, ...); None if there is none."""
    try:
        trace = _CONTEXT.trace
    except AttributeError:
        return None if is_outside() else weakref.ref(_OUTSIDE)
    return None if trace is _EAGER else weakref.ref(trace)


def note_keeping() -> None:
    """Keep `phlox.backend.pytree.keeping` up to date, if this JAX makes it possible."""
    pxla: Any = _module("jax._src.interpreters.pxla")
    keep = getattr(pxla, "reflatten_outputs_for_dispatch", None)
    if keep is None:
        return

    @wraps(keep)
    def noted(*args: Any, **kwargs: Any) -> Any:
        keeping.add(get_ident())
        try:
            return keep(*args, **kwargs)
        finally:
            keeping.discard(get_ident())

    pxla.reflatten_outputs_for_dispatch = noted


_TREES = "jax._src.tree_util"


def differentiates() -> bool:
    """See `phlox.backend.pytree.is_differentiating`. False if unknown."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("phlox.", _TREES)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name not in ("value_and_grad_f", "jacfun"):
        return False
    return frame.f_globals.get("__name__") == _API and not frame.f_locals.get("allow_int", False)


# --- tensors as arrays


def accept_tensors() -> None:
    """Let JAX accept tensors where it accepts only its own arrays; other values are unaffected."""
    _accept_losses()
    for function in vars(jax.nn).values():
        if isinstance(function, jax.custom_jvp) and function.jvp is not None:  # such as relu
            function.defjvp(_on_arrays(function.jvp))


def _on_arrays(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that gets arrays in place of tensors."""

    @wraps(rule)
    def of_arrays(*operands: Any) -> Any:
        return rule(*jax.tree.map(_as_array, operands, is_leaf=_is_tensor))

    return of_arrays


def _as_array(x: Any) -> Any:
    return x.__jax_array__() if _is_tensor(x) else x


def _accept_losses() -> None:
    """Let `jax.grad` differentiate a loss that is a tensor of one element.

    JAX checks that a loss is a scalar, and starts the backward pass with a one. Both must be arrays there. To JAX, a
    tensor is a PyTree of one array: so the check reads that array, and the one is put into the same tree.
    """
    api, lax = _module("jax._src.api"), _module("jax._src.lax.lax")
    check, first_cotangent = getattr(api, "_check_scalar", None), getattr(lax, "_one_vjp", None)
    if check is None or first_cotangent is None:
        return

    @wraps(check)
    def check_scalar(x: Any) -> None:
        for leaf in jax.tree.leaves(x) if _is_tensor(x) else [x]:
            check(leaf.reshape(()) if _is_tensor(x) and leaf.size == 1 else leaf)

    @wraps(first_cotangent)
    def one_vjp(x: Any) -> Any:
        def started(leaf: Any) -> Any:
            return first_cotangent(leaf.reshape(())).reshape(leaf.shape)

        return jax.tree.map(started, x) if _is_tensor(x) else first_cotangent(x)

    setattr(api, "_check_scalar", check_scalar)  # noqa: B010 - JAX's own name
    setattr(lax, "_one_vjp", one_vjp)  # noqa: B010


def _is_tensor(x: Any) -> bool:
    return type(x).__module__.startswith("phlox.") and hasattr(type(x), "__jax_array__")


# --- processes


def has_started() -> bool:
    """Has JAX initialized its devices? False if that is unknown."""
    is_initialized = _find("jax._src.xla_bridge", "backends_are_initialized")
    return is_initialized is not None and is_initialized()


def let_gloo_listen_on(host: str) -> None:
    """Let the collectives of CPUs listen on this address; the default is the address of the machine's name.

    JAX has no option for it. If its internals have changed, the default stays.
    """
    library = _find("jaxlib", "_jax")
    make = getattr(library, "make_gloo_tcp_collectives", None)
    if make is not None and not isinstance(make, partial):
        library.make_gloo_tcp_collectives = partial(make, hostname=host)


# --- placement


def uncommitted(x: Any) -> Any:
    """The same array on its one device, but not committed to it: it can be combined with arrays on other devices.

    An array in column-major order stays committed: programs read an uncommitted array in row-major order.
    """
    array = _find("jax._src.array", "ArrayImpl")
    if array is None or not x.committed or x.format.layout.major_to_minor != tuple(range(x.ndim)):
        return x
    return array(x.aval, x.sharding, [x], committed=False)


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
