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
Make: TypeAlias = Callable[[HostArray, Device], AnyTensor]


def is_array(value: Any) -> bool:
    """Is this a NumPy array that becomes a tensor? A numeric array without axes is a number."""
    if not isinstance(value, np.ndarray):
        return False
    array = cast("HostArray", value)
    return array.ndim > 0 or array.dtype.kind not in "fiu"


def has_arrays(value: Any) -> bool:
    """Is there such an array in an argument?"""
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
        found = container_of_class(cast("type[Any]", type(value)))
        if found is None or found is not DATACLASS or isinstance(value, Config):
            return None
        if not any(is_array(part) for _, part in found.items(value)):
            return None
        container = found
    assert container is not None
    return [(container.label(key), part) for key, part in container.items(value)]


def as_argument(value: HostArray, place: Device) -> AnyTensor:
    """A tensor that only a program can use."""
    kind = kind_of_dtype(value.dtype)
    engine = engine_of(place.backend)
    return wrap(ops_of(place.backend, kind), engine.host_argument(value, kind, place.on(engine)))


def as_tensor(value: HostArray, place: Device) -> AnyTensor:
    """A tensor like any other."""
    return tensor(value, device=place)


def with_tensors(value: Any, name: str, place: Device, make: Make, *, over: bool = False) -> Any:
    """An argument with a tensor in place of each NumPy array; the argument itself if it has none.

    If a loop runs `over` it, numeric arrays with one axis stay: they are a number for each step. Raises `KindError` for
    elements that are not numbers, and `RangeError` for those that do not fit, with the path.
    """
    if not has_arrays(value):
        return value
    if isinstance(value, np.ndarray):
        array = cast("HostArray", value)
        if over and array.ndim == 1 and array.dtype.kind in "fiu":
            return array
        try:
            return make(array, place)
        except (KindError, RangeError) as error:
            raise type(error)(f"{name}: a NumPy array of shape {array.shape}: {error}") from None
    parts = _parts(value)
    container = container_of_class(cast("type[Any]", type(value)))
    assert parts is not None and container is not None
    return container.build(value, [with_tensors(part, name + label, place, make, over=over) for label, part in parts])


def place_of(values: Iterable[Any]) -> Device:
    """The device for the arrays among these arguments."""
    given = list(values)
    for cls in (Module, Tensor):
        found = _first(given, cls)
        if found is not None:
            return found
    return as_device(None)


def _first(values: Sequence[Any], cls: type[Any]) -> Device | None:
    for value in values:
        found: Device | None = None
        if isinstance(value, cls):
            found = _place_of_module(value) if isinstance(value, Module) else cast("AnyTensor", value).device
        elif not isinstance(value, (Module, Tensor)):
            parts = _parts(value)
            found = None if parts is None else _first([part for _, part in parts], cls)
        if found is not None:
            return found
    return None


def _place_of_module(module: Module) -> Device | None:
    """That of its first parameter, of those that have the module's own precision if there are any."""
    pending = kept(module)
    if pending is None:
        params = module.structure().params
        own = next((param for param in params if not param.full_precision), params[0] if params else None)
        return None if own is None else own.device
    marks = pending[0].template.marks
    number = next((place for place, mark in enumerate(marks) if not mark[3]), 0)
    if not marks:
        return None
    backend: Backend = marks[number][0].backend
    return backend_of_arrays(backend).device_of(pending[1][number]).on(backend)


def taker(kind: type[Kind], place: Device, shape: tuple[int, ...]) -> Callable[[Any, list[Any]], bool]:
    """A function `(value, leaves)`: is this an array of that kind and shape? If so, it appends the program's argument.

    For another shape the function may be traced, and the arguments are read again, with tensors in place of arrays.
    """
    engine = engine_of(place.backend)
    inside = place.on(engine)
    known: Any = None

    def take(value: Any, leaves: list[Any]) -> bool:
        nonlocal known
        if value.__class__ is not np.ndarray or value.shape != shape:
            return False
        try:
            dtype = value.dtype
            if dtype is not known:
                if kind_of_dtype(dtype) is not kind:
                    return False
                known = dtype
            leaves.append(engine.host_argument(value, kind, inside))
        except (KindError, RangeError):  # said once more, with its path, by those who read all of the call
            return False
        return True

    return take
