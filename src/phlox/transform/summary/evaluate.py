"""Running a model on arrays without values: the calls of its modules, their results and operations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from phlox import random
from phlox.autodiff.tape import Node, next_id
from phlox.backend import Backend, Device, Float, as_device, default_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.host.signal_guard import scope
from phlox.module import Module, Param
from phlox.module.calls import Call, observed
from phlox.module.param import restoring_params
from phlox.optim import OptimizerAdaptor
from phlox.optim.optimizer import tracing
from phlox.optim.state.tree import flatten
from phlox.random import Stream
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of
from phlox.transform.abstract import Abstract, Work, abstracted, counted
from phlox.transform.eval_shape import TensorSpec, check_closed
from phlox.transform.tree import AnyTensor, leaves_of, map_parts, tensors_of


@dataclass(slots=True)
class Calls:
    """The data about all calls of one module."""

    count: int = 0
    outputs: Any = None
    """The result of the first call, with a `TensorSpec` in place of each tensor."""
    work: Work = field(default_factory=Work)
    activations: int = 0
    """Bytes of the results of the modules below that call no other module, or of its own if it calls none."""


def blank(shape: Iterable[int], kind: Any, device: Device) -> AnyTensor:
    """A tensor without values, on a backend as `abstracted` makes it."""
    backend = abstracted(device.backend)
    return Tensor.from_primitive(abstract_of(backend).blank(tuple(shape), kind, device), backend, kind)


def abstract_of(backend: Backend) -> Abstract:
    """The `Abstract` backend inside the decorators."""
    below: Backend | None = backend
    while below is not None and not isinstance(below, Abstract):
        below = below.inner
    assert below is not None
    return below


def with_values(model: Module, value_of: Callable[[str, Param], tuple[Any, Backend]]) -> Module:
    """The model with other values for its parameters: an array and its engine, by path and parameter."""
    structure = model.structure()
    made: list[Param] = []
    for path, param in structure.named():
        value, engine = value_of(path, param)
        marks = param.trained, param.trainable, param.id, param.full_precision
        made.append(Param.revive(ops_of(engine, param.kind), value, *marks))
    return structure.build(made)


def without_values(model: Module) -> Module:
    """The model with parameters that have no values; deferred ones stay deferred."""

    def value_of(path: str, param: Param) -> tuple[Any, Backend]:
        tensor = blank(param.shape, param.kind, param.device)
        return tensor.backend.strip(tensor.primitive), tensor.backend

    return with_values(model, value_of)


def place_of(model: Module, inputs: Any, *, training: bool) -> Device:
    """The device for inputs: the first parameter's device or, without parameters, the first input's."""
    params = [param for param in model.params() if param.kind is Float and not param.full_precision]
    devices = [param.device for param in params] or [x.device for _, x in leaves_of(inputs, (TensorSpec, Tensor))]
    device = devices[0] if devices else as_device(None)
    backend = device.backend
    return device.on(backend.with_autodiff()) if training and not backend.differentiates else device


def blanks_of(value: Any, device: Device, *, training: bool) -> Any:
    """Inputs with a tensor without values in place of each `TensorSpec`, tensor and NumPy array.

    Specs and arrays go to `device`. Tensors keep their device, except tensors of another engine, and in training.
    """

    def visit(part: Any, path: str) -> Any:
        if isinstance(part, TensorSpec):
            check_closed("summary", part)
            return blank(part.shape, part.kind, device)
        if isinstance(part, np.ndarray):
            array = cast("np.ndarray[Any, Any]", part)
            return blank(array.shape, kind_of_dtype(array.dtype), device)
        if isinstance(part, Tensor):
            tensor = cast("AnyTensor", part)
            stays = engine_of(tensor.backend) is engine_of(device.backend) and not training
            return blank(tensor.shape, tensor.kind, tensor.device if stays else device)
        return map_parts(visit, part, path)

    return visit(value, "")


def specs_of(value: Any) -> Any:
    """Results with a `TensorSpec` in place of each tensor."""

    def visit(part: Any, path: str) -> Any:
        if isinstance(part, Tensor):
            tensor = cast("AnyTensor", part)
            engine = engine_of(tensor.backend)
            return TensorSpec(tensor.shape, tensor.kind, tensor.device.on(engine))
        return map_parts(visit, part, path)

    return visit(value, "")


def bytes_of(tensor: AnyTensor) -> int:
    """The bytes of a tensor's elements."""
    return tensor.size * engine_of(tensor.backend).host_dtype(tensor.kind).itemsize


def first_states(optimizer: OptimizerAdaptor, model: Module) -> Iterator[tuple[str, Param, list[AnyTensor]]]:
    """Each trained parameter with the tensors, without values, of its state after the first step."""
    twin = optimizer.twin()
    twin.report(model)  # finds the groups, without a step
    for path, param in model.structure().named():
        if param.trained:
            leaves: list[Any] = []
            backend = abstract_of(blank((), Float, param.device).backend)
            tensor = Tensor.from_primitive(backend.blank(param.shape, param.kind, param.device), backend, Float)
            flatten(twin.init_state(tensor, twin.variant(param.id)), leaves)
            yield path, param, [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class Evaluation:
    """A model without values, run once and, for training, differentiated."""

    def __init__(self, model: Module) -> None:
        self.model = model
        self.calls: dict[str, Calls] = {}
        self.work = Work()
        self._timeline: list[tuple[int, Call | None]] = []
        self._parents: set[int] = set()

    def run(self, args: Any, kwargs: Any, *, training: bool) -> None:
        """Call the model once, with inputs that have no values."""
        with undisturbed(), counted(self.work):
            with observed(self.model, self._on_exit, on_enter=self._on_enter):
                outputs = cast("Callable[..., Any]", self.model)(*args, **kwargs)
            if training:
                self._differentiate(outputs)

    def _on_enter(self, call: Call) -> None:
        call.notes["before"] = self.work.products, self.work.others
        self._timeline.append((next_id(), call))
        if call.within is not None:
            self._parents.add(id(call.within))

    def _on_exit(self, call: Call) -> None:
        self._timeline.append((next_id(), call.within))
        record = self.calls.setdefault(call.path, Calls())
        record.count += 1
        if record.count == 1:
            record.outputs = specs_of(call.outputs)
        self._add(call, [record])
        if id(call) in self._parents:
            return
        inputs = {id(tensor.primitive) for tensor in tensors_of((call.args, call.kwargs))}
        size = sum(bytes_of(tensor) for tensor in tensors_of(call.outputs) if id(tensor.primitive) not in inputs)
        for path in _enclosing_paths(call):
            self.calls.setdefault(path, Calls()).activations += size

    def _add(self, call: Call, records: Iterable[Calls]) -> None:
        products, others = call.notes["before"]
        for record in records:
            record.work.products += self.work.products - products
            record.work.others += self.work.others - others

    # --- the backward pass, each of whose steps belongs to the call in which its node was made

    def _differentiate(self, outputs: Any) -> None:
        total: AnyTensor | None = None
        with counted(None):
            for tensor in tensors_of(outputs):
                if tensor.kind is Float and tensor.is_require_grad():
                    part = tensor.sum()
                    total = part if total is None else total + part
        if total is None:
            return
        self._attribute(total.backend.node_of(total.primitive))
        total.backward()

    def _attribute(self, root: Node) -> None:
        numbers = [number for number, _ in self._timeline]
        seen, stack = {root.id}, [root]
        while stack:
            node = stack.pop()
            position = bisect_right(numbers, node.id)
            call = self._timeline[position - 1][1] if position else None
            if node.vjp is not None and call is not None:
                node.vjp = self._counted(node.vjp, call)
            for parent in node.parents:
                if parent is not None and parent.id not in seen:
                    seen.add(parent.id)
                    stack.append(parent)

    def _counted(self, vjp: Callable[..., None], call: Call) -> Callable[..., None]:
        records = [self.calls[path] for path in _enclosing_paths(call)]

        def counted_vjp(node: Node, g: Any, cotangents: Any) -> None:
            call.notes["before"] = self.work.products, self.work.others
            vjp(node, g, cotangents)
            self._add(call, records)

        return counted_vjp


def _enclosing_paths(call: Call) -> set[str]:
    """The paths of a call and of the calls around it."""
    paths: set[str] = set()
    inner: Call | None = call
    while inner is not None:
        paths.add(inner.path)
        inner = inner.within
    return paths


@contextmanager
def undisturbed() -> Generator[None]:
    """Within this scope random streams and parameters do not change, and new tensors have no values.

    Compiled functions are called without compiling.
    """
    device = as_device(None)
    with (
        scope(tracing, object()),
        random.stream(Stream((0, 0))),
        default_device(device.on(abstracted(device.backend))),
        restoring_params(),
    ):
        yield
