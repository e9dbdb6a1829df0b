"""64-bit elements without JAX's global switch: it is on only while an operation of a 64-bit backend runs.

`jax.enable_x64` as a context holds only for the thread, and takes about 0.7 microseconds. Arrays keep their dtype after
it; only JAX's own functions, called on them outside, narrow to 32 bits if an operand is a Python number.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import jax

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.catalogue import OPERATIONS

_FLOATS = frozenset({"float64", "float32"})
_INTS = frozenset({"int64", "int32"})

_ABOUT_ARRAYS = (
    "from_host", "to_device", "place", "cast", "duplicate", "from_dlpack", "on_host", "call_native", "native_vjp",
    "scalar_expm1", "trace_only", "check_indices", "scan", "_products",
)  # fmt: skip


def in_x64(function: Callable[..., Any], settle: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """The function with 64-bit types switched on while it runs; `settle` is applied to its result."""

    @wraps(function)
    def operation(*arguments: Any, **options: Any) -> Any:
        with jax.enable_x64(True):
            result = function(*arguments, **options)
            return result if settle is None else settle(result)

    return operation


def settler(float_dtype: Any, int_dtype: Any) -> Callable[[Any], Any]:
    """A function that casts results to the backend's dtypes, since with 64-bit types JAX may choose others."""

    def settle(result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple([settle(part) for part in cast("tuple[Any, ...]", result)])
        dtype = getattr(result, "dtype", None)
        if dtype is None or dtype in (float_dtype, int_dtype):
            return result
        if dtype.name in _INTS:
            return result.astype(int_dtype)
        return result.astype(float_dtype) if dtype.name in _FLOATS else result

    return settle


def switch_on(backend: EngineBackend, float_dtype: Any, int_dtype: Any) -> None:
    """Let a backend with 64-bit elements run everything with JAX's 64-bit types enabled."""
    settle = settler(float_dtype, int_dtype)

    def settle_forward(result: tuple[Any, Any]) -> tuple[Any, Any]:
        return settle(result[0]), result[1]

    for name in OPERATIONS:
        finish = settle_forward if name.endswith("_forward") else settle
        setattr(backend, name, in_x64(getattr(backend, name), finish))
    for name in _ABOUT_ARRAYS:
        setattr(backend, name, in_x64(getattr(backend, name)))
    compile, in_one_call, pullback = backend.compile, backend.in_one_call, backend.native_pullback

    def pullback_in_x64(fn: Callable[..., Any], arrays: Any, needed: Any) -> tuple[Any, Any]:
        results, pull = in_x64(pullback)(fn, arrays, needed)
        return results, in_x64(pull)

    def compile_in_x64(fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
        run: Any = compile(fn, release)
        wide: Any = in_x64(run)
        wide.lower = in_x64(run.lower)
        return wide

    def in_one_call_in_x64(fn: Callable[..., Any], *static: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return in_x64(in_one_call(fn, *static, donate=donate))

    backend.compile, backend.native_pullback = compile_in_x64, pullback_in_x64
    backend.in_one_call = in_one_call_in_x64
