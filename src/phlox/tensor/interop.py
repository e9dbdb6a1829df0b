"""Arrays of other libraries as tensors."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from phlox.backend import Backend, Device, DeviceLike, Kind, as_device, backend_names, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.errors import BackendError, KindError
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import Tensor, wrap


def from_dlpack(x: Any, *, device: DeviceLike | None = None, copy: bool | None = None) -> Tensor[Any, Any, Any]:
    """A tensor of an array of NumPy, PyTorch, JAX or any library with `__dlpack__`, in the same memory if possible.

    Memory is shared where the array is on the device and of the element type of the tensor's backend. Whoever then
    writes to the array changes the tensor too, which nothing else can: write no more, or use `phlox.tensor`, a copy.

    Args:
        x: an object with `__dlpack__` and `__dlpack_device__`; its kind becomes the tensor's.
        device: where the tensor is to be; None is the default device, as everywhere.
        copy: True always copies; False raises `BackendError` where a copy is needed; None copies where it is needed.

    Raises:
        KindError: `x` is no such array, or holds neither floats nor ints nor booleans.
        RangeError: a value does not fit the backend's elements.

    >>> import numpy as np
    >>> values = np.ones(3, np.float32)
    >>> x = from_dlpack(values)
    >>> values[0] = 5.0
    >>> x.tolist()
    [5.0, 1.0, 1.0]
    """
    place = as_device(device)
    if isinstance(x, Tensor):
        x = x.detach().primitive if x.backend.inner is None else x.backend.strip(x.detach().primitive)
    if not hasattr(x, "__dlpack__"):
        raise KindError(f"from_dlpack: {type(x).__name__} has no __dlpack__; phlox.tensor takes other values")
    engine = engine_of(place.backend)
    taken = _taken(x, engine, place)
    if copy is not True and taken is not None and taken[0].dtype == engine.element(taken[1]):
        return wrap(ops_of(place.backend, taken[1]), taken[0])
    if copy is False:
        raise BackendError(
            f"from_dlpack: a {type(x).__name__} of {getattr(x, 'dtype', 'unknown type')} cannot be on {place} "
            f"({place.backend!r}) without a copy, which copy=False forbids"
        )
    return copied(x, place)


def _taken(x: Any, engine: Backend, place: Device) -> tuple[Any, type[Kind]] | None:
    """The array of another library as the engine's own, of whatever element type, and its kind; or None."""
    try:
        array = engine.from_dlpack(x, place.on(engine))
        return array, engine.kind_of(array)
    except Exception:  # whatever the two libraries say, there is another way
        return None


def copied(x: Any, place: Device) -> Tensor[Any, Any, Any]:
    """The values of another library's array, as a tensor with memory of its own."""
    backend, engine = place.backend, engine_of(place.backend)
    taken = _taken(x, engine, place)
    if taken is not None and (engine.is_traced(taken[0]) or taken[0].dtype == engine.element(taken[1])):
        array, kind = taken
        inside = place.on(engine)
        return wrap(ops_of(backend, kind), engine.cast(engine.duplicate(array), engine, inside))
    host = host_values(x)
    kind = kind_of_dtype(host.dtype)
    return wrap(ops_of(backend, kind), own(host, backend.from_host(host, kind, place)))


def own(host: np.ndarray[Any, Any], primitive: Any) -> Any:
    """What a backend made of memory that is not ours: a copy if it is that memory."""
    return host.copy() if primitive is host else primitive


def host_values(x: Any) -> np.ndarray[Any, Any]:
    """The values of another library's array in host memory, which may be its own."""
    if isinstance(x, np.ndarray):
        return cast("np.ndarray[Any, Any]", x)
    library = type(x).__module__.partition(".")[0]
    if library in backend_names():  # whoever knows the library knows types and devices that others cannot take
        return load_backend(library)().to_host(x)
    try:
        return np.from_dlpack(x)
    except Exception:
        return np.asarray(x)
