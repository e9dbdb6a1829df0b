"""Parts of `OptaxAdaptor`: the layout of a transformation's state, its inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.optim.simple import AnyTensor
from phlox.optim.state.tree import State
from phlox.optim.step.validation import check_arguments, value_for
from phlox.record import LazyTensor
from phlox.tensor import Tensor

SHARED = "shared"
"""The id of the state that belongs to no single parameter, such as counts of steps."""


class Leaf(NamedTuple):
    """One array of the transformation's state."""

    id: ParamId | None
    """The id of the parameter that it belongs to, or None."""
    name: str
    """Its path, without the parameter's."""
    shape: tuple[int, ...]
    """The shape as it is kept and saved."""
    element: Any


class OptaxLayout(NamedTuple):
    """How the transformation's state is built."""

    params: tuple[Any, ...]
    """Ids, paths, shapes and element types of the parameters that this is for."""
    structure: Any
    leaves: list[Leaf]


class StepInput(NamedTuple):
    """A parameter that takes a step."""

    path: str
    param: Param
    value: AnyTensor
    grad: AnyTensor


def is_shared(state: State) -> bool:
    return isinstance(state, dict) and isinstance(cast("dict[str, Any]", state).get(SHARED), dict)


def lazy_of(stored: Any) -> LazyTensor:
    """A tensor as an entry of a record, read from its device when the record is."""
    if isinstance(stored, LazyTensor):
        return stored
    tensor = cast("AnyTensor", stored)

    def read() -> Any:
        array = np.asarray(tensor._host("")).view()  # pyright: ignore[reportPrivateUsage]
        array.flags.writeable = False
        return array

    in_shards = tensor.device.sharding is not None
    shards = partial(tensor.backend.shards, tensor.primitive) if in_shards else None
    return LazyTensor.from_function(tensor.shape, np.dtype(tensor.primitive.dtype), read, shards=shards)


def stored_value(leaf: Leaf, shared: Mapping[str, Any], states: Mapping[ParamId, Any]) -> Any:
    """The stored value of a leaf, or None."""
    parts: Mapping[str, Any] = shared if leaf.id is None else states.get(leaf.id) or {}
    return parts.get(leaf.name)


def array_of(stored: Any, device: Device, trees: Any) -> Any:
    """A tensor, or a tensor of a record, as an array on the device."""
    if isinstance(stored, LazyTensor):
        return trees.from_host(stored.read(), device)
    tensor = cast("AnyTensor", stored)
    backend = engine_of(device.backend)
    if type(tensor.backend) is type(backend) and (
        tensor.backend.is_traced(tensor.primitive) or tensor.device.name == device.name
    ):
        return tensor.primitive
    return tensor.to_device(device.on(backend)).primitive


def step_inputs(module: Module, grads: GradientsParams) -> list[StepInput]:
    """The parameters that take a step, after checks."""
    check_arguments(module, grads)
    inputs: list[StepInput] = []
    for path, param in module.named_params():
        grad = grads.get(param.id)
        if grad is None or not param.trained:
            continue
        value = param.val()
        if engine_of(value.backend).name != "jax":
            raise OptimizerError(
                f"{path}: the parameter is on {value.backend!r}, but Optax's transformations work on JAX arrays; move "
                "the module there, model.to_device(Autodiff(Jax())), or use an optimizer of phlox.optim"
            )
        work = value_for(path, value, grad).to_full_precision()
        if grad.backend is not work.backend or grad.device != work.device:
            grad = grad.to_device(work.device)
        inputs.append(StepInput(path, param, work, grad))
    return inputs


def native(value: Any, paths: Mapping[ParamId, str]) -> Any:
    """An argument for the transformation: tensors as arrays, gradients as a dict by path."""
    if isinstance(value, Tensor):
        tensor = cast("AnyTensor", value)
        return tensor.backend.strip(tensor.primitive)
    if isinstance(value, GradientsParams):
        return {paths[id]: tensor.primitive for id, tensor in value.items() if id in paths}
    return value


def check_updates(updates: Any, params: Mapping[str, Any]) -> None:
    if not isinstance(updates, dict) or cast("dict[str, Any]", updates).keys() != params.keys():
        raise OptimizerError(
            "OptaxAdaptor: the update of the transformation must give updates of the structure of the gradients, a "
            f"dict by path, got {type(cast('object', updates)).__name__}"
        )
    for path, update in cast("dict[str, Any]", updates).items():
        if getattr(update, "shape", None) != params[path].shape:
            raise OptimizerError(
                f"{path}: the update of the transformation is of shape {getattr(update, 'shape', None)}, the parameter "
                f"of shape {params[path].shape}"
            )


def moved(array: Any, update: Any, rate: Any) -> Any:
    step = update if isinstance(rate, float) and rate == 1.0 else update * rate
    return (array + step).astype(array.dtype)


def trees_of_jax() -> Any:
    """JAX's module of trees; imported only when JAX is in use."""
    from phlox.backend.jax import trees

    return trees


def checked_rate(lr: Any) -> Any:
    """The rate as a Python number or, in a compiled function, a traced scalar."""
    if isinstance(lr, (Tensor, Mapping)):
        raise OptimizerError(
            "OptaxAdaptor takes one learning rate, a number; for rates by path use optax.multi_transform or "
            "optax.masked, whose labels and masks are dicts by path"
        )
    if isinstance(lr, (int, float, np.floating, np.integer)):
        lr = float(cast("float", lr))
    if isinstance(lr, float) and not (lr >= 0.0 and math.isfinite(lr)):
        raise OptimizerError(f"the learning rate must be a finite number of at least zero, got {lr}")
    return lr
