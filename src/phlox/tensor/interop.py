"""Conversion of other libraries' arrays to tensors."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from phlox.backend import Backend, Device, DeviceLike, Kind, as_device, backend_names, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.errors import BackendError, KindError
from phlox.host.torch_tensors import is_torch, plain
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import Tensor, wrap


def from_dlpack(x: Any, *, device: DeviceLike | None = None, copy: bool | None = None) -> Tensor[Any, Any, Any]:
    """Convert an array of NumPy, PyTorch, JAX or any library with `__dlpack__`; shares its memory if possible.

    Memory is shared if the array is on the target device and already has the dtype of its backend. A later write to the
    array then also changes the tensor, although tensors are otherwise immutable. Do not write to it any more, or copy
    with `phlox.tensor`.

    Args:
        x: an object with `__dlpack__` and `__dlpack_device__`. The tensor has its kind.
        device: the device of the tensor; None is the default device.
        copy: True always copies; False raises `BackendError` if a copy is needed; None copies only if needed.

    Raises:
        KindError: `x` has no `__dlpack__`, or holds neither floats nor integers nor booleans.
        RangeError: a value does not fit the backend's dtype.

    >>> import numpy as np
    >>> values = np.ones(3, np.float32)
    >>> x = from_dlpack(values)
    >>> values[0] = 5.0
    >>> x.tolist()
    [5.0, 1.0, 1.0]
    """
    target = as_device(device)
    if isinstance(x, Tensor):
        x = x.detach().primitive if x.backend.inner is None else x.backend.strip(x.detach().primitive)
    if not hasattr(x, "__dlpack__"):
        raise KindError(f"from_dlpack: {type(x).__name__} has no __dlpack__; phlox.tensor takes other values")
    engine = engine_of(target.backend)
    original, x = x, _plain("from_dlpack", x)
    if copy is False and is_torch(original) and original.is_neg():
        raise BackendError("from_dlpack: copy=False allows no pending negation of the tensor; call resolve_neg() first")
    shared = _via_dlpack(x, engine, target)
    if copy is not True and shared is not None and shared[0].dtype == engine.element(shared[1]):
        return wrap(ops_of(target.backend, shared[1]), shared[0])
    if copy is False:
        raise BackendError(
            f"from_dlpack: a {type(x).__name__} of {getattr(x, 'dtype', 'unknown type')} cannot be on {target} "
            f"({target.backend!r}) without a copy, which copy=False forbids"
        )
    return copy_array(x, target)


def _via_dlpack(x: Any, engine: Backend, device: Device) -> tuple[Any, type[Kind]] | None:
    """The array of another library as the engine's own array, of any dtype, and its kind; None if that fails."""
    try:
        array = engine.from_dlpack(x, device.on(engine))
        return array, engine.kind_of(array)
    except Exception:  # whatever the error, the caller has another way
        return None


def _plain(name: str, x: Any) -> Any:
    """Another library's array, with its values in plain memory; `KindError` if it has no such values."""
    try:
        return plain(x) if is_torch(x) else x
    except ValueError as error:
        raise KindError(f"{name}: {error}") from None


def copy_array(x: Any, device: Device) -> Tensor[Any, Any, Any]:
    """Copy another library's array to a tensor with memory of its own."""
    backend, engine = device.backend, engine_of(device.backend)
    x = _plain("tensor", x)
    shared = _via_dlpack(x, engine, device)
    if shared is not None and (engine.is_traced(shared[0]) or shared[0].dtype == engine.element(shared[1])):
        array, kind = shared
        engine_device = device.on(engine)
        return wrap(ops_of(backend, kind), engine.cast(engine.duplicate(array), engine, engine_device))
    host = host_values(x)
    kind = kind_of_dtype(host.dtype)
    return wrap(ops_of(backend, kind), copy_if_aliased(host, backend.from_host(host, kind, device)))


def copy_if_aliased(host: np.ndarray[Any, Any], primitive: Any) -> Any:
    """A backend's array of foreign memory, copied if it shares that memory."""
    return host.copy() if primitive is host else primitive


def host_values(x: Any) -> np.ndarray[Any, Any]:
    """The values of another library's array in host memory, possibly shared."""
    if isinstance(x, np.ndarray):
        return cast("np.ndarray[Any, Any]", x)
    library = "torch" if is_torch(x) else type(x).__module__.partition(".")[0]
    if library in backend_names():  # the backend of that library reads dtypes and devices that DLPack does not support
        return load_backend(library)().to_host(x)
    try:
        return np.from_dlpack(x)
    except Exception:
        return np.asarray(x)
