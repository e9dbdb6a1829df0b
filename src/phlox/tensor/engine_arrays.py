"""Conversions between tensors and arrays: arrays as operands and arguments, tensors as arrays for other libraries.

One rule holds everywhere. A backend uses arrays of its own engine as they are, and converts NumPy's arrays, which are
in host memory, as `phlox.tensor` does: floats and integers get the backend's element type. An array of another engine
is refused. So is a tensor with a history on a tape, because an array cannot keep the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Backend, Bool, Device, Float, Int, Kind, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.backend.levels import has_history, levels
from phlox.errors import AutodiffError, BackendError, KindError

if TYPE_CHECKING:
    from phlox.tensor.dispatch import Ops
    from phlox.tensor.tensor import Tensor

_ENGINES = {"numpy": "numpy", "jax": "jax", "jaxlib": "jax", "torch": "torch"}
"""The packages that define the engines' arrays and tracers."""
_ELEMENTS = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "i64"}


@lru_cache(maxsize=1024)
def is_array_type(cls: type[Any]) -> bool:
    """Is this a class of arrays of some library, such as `np.ndarray` or `jax.Array`, and not `Tensor`?"""
    # JAX's tracers have no `__dlpack__`, and `jax.Array`, the base class of arrays and tracers, has only the last.
    has_array_attribute = any(hasattr(cls, name) for name in ("__array_priority__", "__dlpack__", "addressable_shards"))
    return has_array_attribute and not hasattr(cls, "_ops") and not issubclass(cls, np.generic)


def is_array(value: object) -> bool:
    """Is this an array of some library, but not a tensor?

    >>> is_array(np.ones(2)), is_array(np.float32(2.0))
    (True, False)
    """
    return is_array_type(type(value))


def engine_with(array: object) -> Backend | None:
    """The engine that owns an array, at its default precision; None for other libraries' arrays.

    >>> engine_with(np.ones(2)), engine_with(3)
    (NumPy(), None)
    """
    for cls in type(array).__mro__:
        name = _ENGINES.get(cls.__module__.partition(".")[0])
        if name is not None and (engine := load_backend(name)()).owns(array):
            return engine
    return None


def _element(array: Any) -> str:
    """The name of the element type, such as `float32`, without PyTorch's prefix `torch.`."""
    return str(array.dtype).rpartition(".")[2]


def kind_of(array: Any) -> type[Kind] | None:
    """The kind of an array's elements; None for complex numbers, random keys (also raw ones, uint32) and the like."""
    name = _element(array)
    if name == "uint32" and not isinstance(array, np.ndarray):
        return None
    if name == "bool":
        return Bool
    try:
        return Int if name.startswith(("int", "uint")) else Float if "float" in name else kind_of_dtype(name)
    except (KindError, TypeError):
        return None


def backend_like(arrays: Sequence[Any]) -> Backend | None:
    """A backend of the arrays' engine with their element types; None without an array of an engine.

    >>> backend_like([np.zeros(2, np.float16), np.arange(3)])
    NumPy(float='f16', int='i64')
    """
    engines = [engine for engine in map(engine_with, arrays) if engine is not None]
    if not engines:
        return None
    engine = next((engine for engine in engines if engine.name != "numpy"), engines[0])
    names = [_ELEMENTS.get(_element(array), "") for array in arrays]
    floats = next((name for name in names if name in ("f64", "f32", "bf16", "f16")), "f32")
    return cast("Any", type(engine))(float=floats, int="i64" if "i64" in names else "i32")


def primitive_of(name: str, array: Any, kind: type[Kind], backend: Backend, device: Device) -> Any:
    """Convert an array to the backend's own; `BackendError` if it belongs to another engine than the backend's."""
    engine = engine_of(backend)
    if isinstance(array, np.ndarray):
        return backend.from_host(cast("np.ndarray[Any, Any]", array), kind, device)
    if not engine.owns(array):
        package = type(array).__module__.partition(".")[0]
        raise BackendError(
            f"{name}: an array of {_ENGINES.get(package, package)} and {backend!r} do not mix; make it a tensor there "
            f"with phlox.tensor(array, device={str(device)!r})"
        )
    try:
        return engine.accept(array)
    except AutodiffError as error:
        raise AutodiffError(f"{name}: {error}") from None


def operand_of(name: str, ops: Ops, other: Any, device: Device) -> Any:
    """An array as the other operand of a tensor of `ops`; `NotImplemented` if `other` is not an array."""
    if not is_array(other):
        return NotImplemented
    kind = kind_of(other)
    if kind is not ops.kind:
        raise _mixed(name, ops, other)
    return primitive_of(name, other, kind, ops.backend, device)


def _mixed(name: str, ops: Ops, array: Any) -> KindError:
    return KindError(
        f"{name}: a {ops.kind.__name__} tensor and an array of {array.dtype} do not mix; convert one of them, such "
        f"as with phlox.tensor(array, kind=phlox.{ops.kind.__name__})"
    )


def scalar_of(name: str, ops: Ops, x: Any) -> Any:
    """An engine's array of rank 0 as the other operand. Like a number, an integer also fits a Float tensor."""
    engine = engine_of(ops.backend)
    if not engine.owns(x):
        return x
    kind = kind_of(x)
    if kind is not ops.kind and (kind is not Int or ops.kind is not Float):
        raise _mixed(name, ops, x)
    if kind is Bool:
        return x
    # A weakly typed array takes the element type of the other operand, as a number does.
    return x if getattr(x, "weak_type", False) else engine.promote_scalar(x, ops.kind)


def one_of_many(name: str) -> BackendError:
    """The error for a tensor inside `phlox.vmap`, where an array is needed."""
    return BackendError(f"{name}: inside phlox.vmap a tensor stands for one example, an array cannot; use jax.vmap")


def array_of(name: str, tensor: Tensor[Any, Any, Any]) -> Any:
    """The engine's own array of a tensor, for other libraries; raises `AutodiffError` if its history would be lost."""
    backend, primitive = tensor.backend, tensor.primitive
    if backend.batch_of(primitive):
        raise one_of_many(name)
    # Below a tape, JAX's own derivatives are followed where it traces.
    if has_history(backend, primitive) and (levels() or not backend.is_traced(primitive)):
        raise AutodiffError(
            f"{name}: an array has no history on the tape, so gradients would be lost; stay with tensors, call "
            "phlox.lift(function) for a function of arrays, .detach() the tensor, or leave the tape with .valid() or "
            ".train(tape=False)"
        )
    return backend.strip(primitive)
