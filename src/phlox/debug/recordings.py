"""What the layers of a model give, and the gradients that reach them, kept call by call to be compared."""

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
    """Which of the layer's calls, from zero."""
    layer: str
    values: list[Host]
    """The Float tensors that it has returned."""
    gradients: list[Host | None] = field(default_factory=list[Host | None])
    """Those of the loss towards them."""
    arrived: list[int] = field(default_factory=list[int])
    """In which order the gradients have come."""


@dataclass(slots=True)
class Recording:
    """One run of a model, by an engine of ours or by another library."""

    label: str
    calls: list[Recorded] = field(default_factory=list[Recorded])
    """In the order in which they have returned."""
    parameters: dict[str, Host] = field(default_factory=dict[str, Host])
    """The gradients of parameters, by path."""
    loss: float | None = None
    """The loss, where one was given."""
    counts: Counter[str] = field(default_factory=Counter[str])
    _arrivals: int = 0

    def add(self, path: str, layer: str, values: list[Host]) -> Recorded:
        """Note a call of a layer that has returned."""
        one = Recorded(path, self.counts[path], layer, values, [None] * len(values), [0] * len(values))
        self.counts[path] += 1
        self.calls.append(one)
        return one

    def take_gradient(self, one: Recorded, place: int, gradient: Host) -> None:
        """Note the gradient towards one of the results of a call; the last is whole, where several come."""
        if one.gradients[place] is None:
            self._arrivals += 1
            one.arrived[place] = self._arrivals
        one.gradients[place] = gradient


def recorded(
    model: Module, args: Any, kwargs: Any, device: Device, label: str, *, loss: LossOf | None, gradients: bool
) -> Recording:
    """A model run, and differentiated, on a device."""
    view = with_function_layers(moved(model, device, tape=gradients))
    args, kwargs = inputs_on(view, (args, kwargs), device)
    found = Recording(label)
    with undisturbed():
        watch = _Watch(found) if gradients else None

        def on_call(call: Call) -> None:
            leaves = float_leaves(call.outputs)
            known = [(x, values) for x in leaves if (values := host_of(x.backend, x.primitive)) is not None]
            one = found.add(call.path, layer_name(call.module), [values for _, values in known])
            if watch is not None:
                for place, (x, _) in enumerate(known):
                    watch.gradient_of(x, one, place)

        with observed(view, on_call):
            outputs = cast("Callable[..., Any]", view)(*args, **kwargs)
        if gradients or loss is not None:
            value = loss_of(outputs, loss)
            if loss is not None and value is not None:
                found.loss = value.item()
            if gradients and value is not None:
                _take_parameters(found, view, GradientsParams.from_grads(value.backward(), view))
    return found


def _take_parameters(found: Recording, model: Module, gradients: GradientsParams) -> None:
    for path, param in model.named_params():
        gradient = gradients.get(param.id)
        if gradient is not None:
            values = host_of(gradient.backend, gradient.primitive)
            assert values is not None
            found.parameters[path] = values


class _Watch:
    """Takes the gradients of intermediate tensors as the backward pass comes to them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def gradient_of(self, x: AnyTensor, one: Recorded, place: int) -> None:
        """Note the gradient towards a tensor."""
        node = x.backend.node_of(x.primitive)
        if node is None or node.vjp is None or is_spent(node) or is_poisoned(node):
            return
        vjp, engine, recording = node.vjp, engine_of(x.backend), self.recording

        def watched(node: Node, g: Any, cotangents: Any) -> None:
            if type(g) is not dict:
                values = host_of(engine, g)
                if values is not None:
                    recording.take_gradient(one, place, values)
            vjp(node, g, cotangents)

        node.vjp = watched
