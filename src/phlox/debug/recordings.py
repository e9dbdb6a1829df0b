"""The outputs of a model's layers, and their gradients, recorded call by call for a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.autodiff.tape import Node, is_poisoned, is_spent
from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.debug.running import LossOf, float_leaves, host_of, inputs_on, loss_of, moved, undisturbed
from phlox.module import GradientsParams, Module
from phlox.module.calls import Call, layer_name, observed, with_function_layers
from phlox.transform.tree import AnyTensor

Host: TypeAlias = np.ndarray[Any, Any]


@dataclass(slots=True)
class Recorded:
    """One call of a layer."""

    path: str
    call: int
    """The index of the call among the layer's calls."""
    layer: str
    values: list[Host]
    """The Float tensors that it returned."""
    gradients: list[Host | None] = field(default_factory=list[Host | None])
    """The gradients of the loss with respect to them."""
    arrived: list[int] = field(default_factory=list[int])
    """The rank of each gradient in the order of arrival."""


@dataclass(slots=True)
class Recording:
    """One run of a model, by one of our engines or by another library."""

    label: str
    calls: list[Recorded] = field(default_factory=list[Recorded])
    """In the order of their returns."""
    parameters: dict[str, Host] = field(default_factory=dict[str, Host])
    """The gradients of parameters, by path."""
    loss: float | None = None
    """The loss, if one was given."""
    counts: Counter[str] = field(default_factory=Counter[str])
    _arrivals: int = 0

    def add(self, path: str, layer: str, values: list[Host]) -> Recorded:
        """Add a call of a layer that has returned."""
        entry = Recorded(path, self.counts[path], layer, values, [None] * len(values), [0] * len(values))
        self.counts[path] += 1
        self.calls.append(entry)
        return entry

    def add_gradient(self, entry: Recorded, index: int, gradient: Host) -> None:
        """Add the gradient of one of the results of a call; if several arrive, the last one is complete."""
        if entry.gradients[index] is None:
            self._arrivals += 1
            entry.arrived[index] = self._arrivals
        entry.gradients[index] = gradient


def recorded(
    model: Module, args: Any, kwargs: Any, device: Device, label: str, *, loss: LossOf | None, gradients: bool
) -> Recording:
    """Run a model on a device, differentiate it, and record its layers."""
    view = with_function_layers(moved(model, device, tape=gradients))
    args, kwargs = inputs_on(view, (args, kwargs), device)
    recording = Recording(label)
    with undisturbed():
        watch = _Watch(recording) if gradients else None

        def on_call(call: Call) -> None:
            leaves = float_leaves(call.outputs)
            with_values = [(x, values) for x in leaves if (values := host_of(x.backend, x.primitive)) is not None]
            entry = recording.add(call.path, layer_name(call.module), [values for _, values in with_values])
            if watch is not None:
                for index, (x, _) in enumerate(with_values):
                    watch.gradient_of(x, entry, index)

        with observed(view, on_call):
            outputs = cast("Callable[..., Any]", view)(*args, **kwargs)
        if gradients or loss is not None:
            value = loss_of(outputs, loss)
            if loss is not None and value is not None:
                recording.loss = value.item()
            if gradients and value is not None:
                _add_parameters(recording, view, GradientsParams.from_grads(value.backward(), view))
    return recording


def _add_parameters(recording: Recording, model: Module, gradients: GradientsParams) -> None:
    for path, param in model.named_params():
        gradient = gradients.get(param.id)
        if gradient is not None:
            values = host_of(gradient.backend, gradient.primitive)
            assert values is not None
            recording.parameters[path] = values


class _Watch:
    """Records the gradients of intermediate tensors when the backward pass reaches them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def gradient_of(self, x: AnyTensor, entry: Recorded, index: int) -> None:
        """Record the gradient of a tensor, when it arrives."""
        node = x.backend.node_of(x.primitive)
        if node is None or node.vjp is None or is_spent(node) or is_poisoned(node):
            return
        vjp, engine, recording = node.vjp, engine_of(x.backend), self.recording

        def watched(node: Node, g: Any, cotangents: Any) -> None:
            if type(g) is not dict:
                values = host_of(engine, g)
                if values is not None:
                    recording.add_gradient(entry, index, values)
            vjp(node, g, cotangents)

        node.vjp = watched
