"""Steps that are skipped because gradients were not finite: the old values are kept."""

from __future__ import annotations

from sys import intern
from typing import Any, TypeVar, cast

import numpy as np

from phlox.backend import Backend, Device, Float, Int
from phlox.errors import OptimizerError
from phlox.optim.simple import AnyTensor
from phlox.optim.state.tree import flatten, unflatten
from phlox.optim.step.shared_scalars import shared
from phlox.tensor import Tensor, tensor, where

S = TypeVar("S")


def select_step(finite: AnyTensor, after: S, before: S, device: Device) -> S:
    """In a compiled function, select the tensors and scalars after a step, or those before it.

    `finite` is a Bool of rank zero: if it is true, those after the step are selected.
    """
    new: list[Any] = []
    old: list[Any] = []
    skeleton = flatten(after, new)
    if flatten(before, old) != skeleton:
        raise OptimizerError(
            "skip_nonfinite needs a state that has the same entries before and after a step; let `init` return all of "
            "them"
        )
    return cast("S", unflatten(skeleton, iter([_select(finite, a, b, device) for a, b in zip(new, old, strict=True)])))


def _select(finite: AnyTensor, new: Any, old: Any, device: Device) -> Any:
    if isinstance(new, Tensor):
        after = cast("AnyTensor", new)  # tensors of a state can differ in precision
        return where(finite.to_device(after.device), after, cast("AnyTensor", old))
    if _is_array(new) or not (isinstance(new, (int, float)) or hasattr(new, "dtype")):
        return _constant(new, old)
    # Computed once for all parameters with this number.
    return shared(_select_number, finite, new, old, device.backend, intern(device.name))


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _constant(new: Any, old: Any) -> Any:
    """A constant of the program, which is the same before and after a step."""
    if new is old or (_is_array(new) and new.dtype == old.dtype and np.array_equal(new, old)):
        return new
    raise OptimizerError(
        f"skip_nonfinite cannot choose between two values of {type(new).__name__} in a compiled function; keep what "
        "changes from step to step in tensors and numbers"
    )


def _select_number(finite: AnyTensor, new: Any, old: Any, backend: Backend, name: str) -> Any:
    device = Device(backend, name)
    return where(finite.to_device(device), _as_tensor(new, device), _as_tensor(old, device)).primitive


def _as_tensor(number: Any, device: Device) -> AnyTensor:
    if isinstance(number, (int, float)):
        return tensor(number, device=device)
    return Tensor.from_primitive(number, device.backend, Float if "float" in str(number.dtype) else Int)
