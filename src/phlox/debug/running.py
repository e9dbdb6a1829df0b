"""Runs a model to inspect it: nothing changes, and it draws the random numbers that a call would draw now."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import numpy as np

from phlox import random
from phlox.backend import Backend, Device, Float
from phlox.backend.contract import Decorator
from phlox.backend.contract.backend import engine_of
from phlox.errors import KindError, ModuleError
from phlox.host.signal_guard import scope
from phlox.module import Module
from phlox.module.param import restoring_params
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.tensor import Tensor, tensor
from phlox.transform.summary.evaluate import place_of
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves, tensors_of

LossOf: TypeAlias = Callable[[Any], AnyTensor]
"""A function from the outputs of a model to its loss."""


@contextmanager
def undisturbed() -> Generator[object]:
    """A scope in which parameters may be set and random numbers drawn; its end restores them.

    Compiled functions run eagerly. Yields the trace that optimizers must belong to, see `twin_of`.
    """
    trace = object()
    stream = random.current()
    with (
        scope(tracing, trace),
        random.stream(stream.replay(stream.position)),
        restoring_params(),
        np.errstate(all="ignore"),
    ):
        yield trace


def twin_of(optimizer: Optimizer, trace: object | None) -> Optimizer:
    """The optimizer with its states, to take steps within `undisturbed`; this one stays as it is."""
    twin = optimizer.twin()
    twin._home = trace  # pyright: ignore[reportPrivateUsage]
    return twin


def is_on_tape(model: Module) -> bool:
    """Do its parameters record a tape?"""
    return any(param.backend.differentiates for param in model.params())


def is_in_training(model: Module) -> bool:
    """Is it in training: by its mode or, without one, because it records a tape?"""
    return is_on_tape(model) if model.training is None else model.training


def with_tape(model: Module) -> Module:
    """The model in its current mode, on a tape."""
    if is_on_tape(model):
        return model
    return model.train() if model.training else model.valid(tape=True)


def moved(model: Module, device: Device, *, tape: bool) -> Module:
    """The model in its current mode, on another device, with or without a tape."""
    training = is_in_training(model)
    view = model.valid().to_device(device)
    if tape:
        return view.train() if training else view.valid(tape=True)
    return view.train(tape=False) if training else view


def inputs_on(model: Module, inputs: Any, device: Device | None = None) -> Any:
    """Inputs, with NumPy arrays as tensors on the model's device, and tensors of other engines moved there.

    With a `device`, all tensors are moved to it.
    """
    target = device or place_of(model, inputs, training=False)
    target = target.on(engine_of(target.backend))

    def onto(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return tensor(value, device=target)
        x = cast("AnyTensor", value)
        engine = engine_of(x.backend)
        if device is None and engine is target.backend:
            return x
        return Tensor.from_primitive(x.backend.strip(x.primitive), engine, x.kind).to_device(target)

    return map_leaves(onto, inputs, (Tensor, np.ndarray))


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs (one, several in a list or tuple, or a dict by name) as the arguments of a call."""
    if isinstance(inputs, Mapping):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, (list, tuple)):
        return tuple(cast("Sequence[Any]", inputs)), {}
    if isinstance(inputs, (Tensor, np.ndarray)):
        return (cast("Any", inputs),), {}
    raise KindError(
        "inputs are the arguments of a call of the model, [x] or (x, mask) or {'x': x}, of tensors or arrays; got "
        f"{type(inputs).__name__}"
    )


def checked_model(function: str, model: Any) -> Module:
    """The model; `ModuleError` for anything else."""
    if not isinstance(model, Module):
        raise ModuleError(f"{function}: the model is a Module, got {type(model).__name__}")
    return model


def loss_of(outputs: Any, loss: LossOf | None) -> AnyTensor | None:
    """The scalar to differentiate: `loss(outputs)` or, without a loss, the sum of the outputs with fixed weights.

    A plain sum has no gradient after a softmax or a normalization. None if nothing has a gradient.
    """
    if loss is not None:
        value = loss(outputs)
        if not isinstance(value, Tensor) or value.kind is not Float or value.size != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            shown = f"a tensor of shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"loss: it takes the outputs of the model and returns one number, got {shown}")
        return value if value.is_require_grad() else None
    total: AnyTensor | None = None
    for index, x in enumerate(tensors_of(outputs)):
        if x.kind is not Float or not x.is_require_grad():
            continue
        direction = np.random.default_rng(index).uniform(0.5, 1.5, x.shape).astype(np.float32)
        signs = np.where(np.arange(direction.size).reshape(x.shape) % 2, -1.0, 1.0).astype(np.float32)
        device = x.device.on(engine_of(x.backend))
        part = (x * tensor(direction * signs, device=device)).sum()
        total = part if total is None else total + part
    return total


def host_of(backend: Backend, x: Any) -> np.ndarray[Any, Any] | None:
    """The values of a backend's own array, even if it is in a batch or on a tape; None for a tracer."""
    while isinstance(backend, Decorator):
        x, backend = backend.below(x), backend.inner
    if backend.is_traced(x):
        return None
    return np.asarray(backend.to_host(x))


def float_leaves(value: Any) -> list[AnyTensor]:
    """The Float tensors in arguments or results of a module, without those of modules."""
    return [x for _, x in leaves_of(value, Tensor) if x.kind is Float]
