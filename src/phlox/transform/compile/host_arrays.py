"""NumPy arrays among the arguments of a compiled function: each is converted as by `phlox.tensor`.

The tensor is on the device of the first module among the arguments or, without one, of the first tensor; without
either, on the default device. The program gets a copy in the form that suits its engine, so the caller may write to the
array after the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import Backend, Device, Kind, as_device
from phlox.backend.contract.backend import backend_of_arrays, engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.backend.pytree import DATACLASS, container_of_class
from phlox.config import Config
from phlox.errors import KindError, RangeError
from phlox.module import Module
from phlox.module.template import kept
from phlox.tensor import Tensor, tensor
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import wrap
from phlox.transform.tree import AnyTensor, container_of

HostArray: TypeAlias = "np.ndarray[Any, Any]"
MakeTensor: TypeAlias = Callable[[HostArray, Device], AnyTensor]


def is_array(value: Any) -> bool:
    """Is this a NumPy array that becomes a tensor? A numeric array without axes is a number."""
    if not isinstance(value, np.ndarray):
        return False
    array = cast("HostArray", value)
    return array.ndim > 0 or array.dtype.kind not in "fiu"


def has_arrays(value: Any) -> bool:
    """Does an argument contain such an array?"""
    if isinstance(value, (Tensor, Module, float, int, str)) or value is None:
        return False
    if isinstance(value, np.ndarray):
        return is_array(value)
    parts = _parts(value)
    return parts is not None and any(has_arrays(part) for _, part in parts)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """The labelled contents of a container; a dataclass is one if it holds an array or a tensor."""
    container = container_of(value)
    if container is None:
        kind = container_of_class(cast("type[Any]", type(value)))
        if kind is None or kind is not DATACLASS or isinstance(value, Config):
            return None
        if not any(is_array(part) for _, part in kind.items(value)):
            return None
        container = kind
    assert container is not None
    return [(container.label(key), part) for key, part in container.items(value)]


def as_argument(value: HostArray, device: Device) -> AnyTensor:
    """A tensor that only a program can use."""
    kind = kind_of_dtype(value.dtype)
    engine = engine_of(device.backend)
    return wrap(ops_of(device.backend, kind), engine.host_argument(value, kind, device.on(engine)))


def as_tensor(value: HostArray, device: Device) -> AnyTensor:
    """An ordinary tensor."""
    return tensor(value, device=device)


def with_tensors(value: Any, name: str, device: Device, make: MakeTensor, *, over: bool = False) -> Any:
    """An argument with a tensor in place of each NumPy array; the argument itself if it has none.

    If a loop runs `over` it, numeric arrays with one axis stay: a number for each step. Raises `KindError` for
    elements that are not numbers, and `RangeError` for those that do not fit, with the path.
    """
    if not has_arrays(value):
        return value
    if isinstance(value, np.ndarray):
        array = cast("HostArray", value)
        if over and array.ndim == 1 and array.dtype.kind in "fiu":
            return array
        try:
            return make(array, device)
        except (KindError, RangeError) as error:
            raise type(error)(f"{name}: a NumPy array of shape {array.shape}: {error}") from None
    parts = _parts(value)
    container = container_of_class(cast("type[Any]", type(value)))
    assert parts is not None and container is not None
    return container.build(value, [with_tensors(part, name + label, device, make, over=over) for label, part in parts])


def device_for(values: Iterable[Any]) -> Device:
    """The device for the arrays among these arguments."""
    arguments = list(values)
    for cls in (Module, Tensor):
        device = _first_device(arguments, cls)
        if device is not None:
            return device
    return as_device(None)


def _first_device(values: Sequence[Any], cls: type[Any]) -> Device | None:
    for value in values:
        device: Device | None = None
        if isinstance(value, cls):
            device = _device_of_module(value) if isinstance(value, Module) else cast("AnyTensor", value).device
        elif not isinstance(value, (Module, Tensor)):
            parts = _parts(value)
            device = None if parts is None else _first_device([part for _, part in parts], cls)
        if device is not None:
            return device
    return None


def _device_of_module(module: Module) -> Device | None:
    """The device of its first parameter, preferably of one that has the module's own precision."""
    pending = kept(module)
    if pending is None:
        params = module.structure().params
        own = next((param for param in params if not param.full_precision), params[0] if params else None)
        return None if own is None else own.device
    marks = pending[0].template.marks
    index = next((i for i, mark in enumerate(marks) if not mark[3]), 0)
    if not marks:
        return None
    backend: Backend = marks[index][0].backend
    return backend_of_arrays(backend).device_of(pending[1][index]).on(backend)


def array_matcher(kind: type[Kind], device: Device, shape: tuple[int, ...]) -> Callable[[Any, list[Any]], bool]:
    """A matcher `(value, leaves)`: is this an array of that kind and shape? If so, it appends the program's argument.

    For another shape the function may be traced, and the arguments are read again, with tensors in place of arrays.
    """
    engine = engine_of(device.backend)
    engine_device = device.on(engine)
    known_dtype: Any = None

    def match(value: Any, leaves: list[Any]) -> bool:
        nonlocal known_dtype
        if value.__class__ is not np.ndarray or value.shape != shape:
            return False
        try:
            dtype = value.dtype
            if dtype is not known_dtype:
                if kind_of_dtype(dtype) is not kind:
                    return False
                known_dtype = dtype
            leaves.append(engine.host_argument(value, kind, engine_device))
        except (KindError, RangeError):  # the full reading of the call raises it again, with the path
            return False
        return True

    return match
