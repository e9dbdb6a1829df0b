"""Runs a model on values of a graph."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.dimension import Dimension, is_open
from phlox.errors import ExportError, IndexRangeError, PhloxError, RangeError, ShapeError
from phlox.export.arguments import Arguments, Input
from phlox.export.lines import line_of_error
from phlox.export.to_onnx.engine import OnnxEngine, Value
from phlox.export.to_onnx.graph import Graph, Interface, writing
from phlox.export.tracing import undisturbed
from phlox.host.signal_guard import scope
from phlox.module import Module, Param
from phlox.module.calls import observed, with_function_layers
from phlox.optim.optimizer import tracing
from phlox.tensor import Tensor
from phlox.transform.summary.evaluate import with_values
from phlox.transform.tree import AnyTensor, leaves_of


class UnfitSizes(ExportError):
    """The model does not take these sizes, or any."""


Results: TypeAlias = list[tuple[str, AnyTensor]]
"""The outputs of a traced model: their paths in the returned value, and the tensors."""


def host_parameters(model: Module) -> dict[str, np.ndarray[Any, Any]]:
    """The values of all parameters by path, without a copy on the NumPy backend."""
    values: dict[str, np.ndarray[Any, Any]] = {}
    for path, param in model.structure().named():
        tensor = param.val()
        values[path] = tensor.backend.to_host(tensor.backend.strip(tensor.primitive))
    return values


def trace(
    model: Module, arguments: Arguments, sizes: Mapping[str, int], device: Device, opset: int, params: dict[str, Any]
) -> tuple[Graph, Results]:
    """The graph of a call with open axes of these sizes; `ExportError` names the layer that cannot be exported."""
    graph = Graph(opset)
    dimensions = {name: Dimension.named(name, size) for name, size in sizes.items()}
    with writing(graph):
        values = iter([_input(graph, entry, dimensions, device) for entry in arguments.inputs])
        args, kwargs = arguments.filled(lambda one: next(values))
        twin = with_function_layers(_with_values(model, graph, params))
        try:
            with (
                _undisturbed(device),
                observed(twin, lambda call: graph.paths.pop(), on_enter=lambda call: graph.paths.append(call.path)),
            ):
                outputs = cast("Callable[..., Any]", twin)(*args, **kwargs)
        except Exception as error:
            if graph.refusal is not None:
                raise ExportError(graph.refusal) from error
            if not isinstance(error, (PhloxError, ValueError)):
                raise
            of_sizes = isinstance(error, (ShapeError, RangeError, IndexRangeError)) or not isinstance(error, PhloxError)
            kind = UnfitSizes if of_sizes else ExportError
            raise kind(f"export.onnx: {graph.where(line_of_error(error))}: {error}") from error
        results = list(leaves_of(outputs, Tensor))
        if not results:
            raise ExportError(f"export.onnx: {type(model).__name__} returned no tensor, but {type(outputs).__name__}")
        graph.outputs = [_output(tensor) for _, tensor in results]
    return graph, results


def _input(graph: Graph, entry: Input, sizes: Mapping[str, Dimension], device: Device) -> AnyTensor:
    engine = OnnxEngine(engine_of(device.backend))
    shape = tuple([sizes[cast(Any, entry)] if isinstance(entry, str) else entry for entry in entry.spec.shape])
    for axis, name in entry.spec.open_axes.items():
        graph.axes.setdefault(name, (entry.name, axis))
    graph.fresh(entry.name)
    graph.inputs.append(Interface(entry.name, engine.element_name(entry.spec.kind), shape))
    value = engine.named(entry.name, shape, entry.spec.kind, device.on(engine))
    return Tensor.from_primitive(value, engine, entry.spec.kind)


def _output(tensor: AnyTensor) -> Interface:
    engine = engine_of_values(tensor)
    name = engine.name_of(tensor.backend.strip(tensor.primitive))
    return Interface(name, engine.element_name(tensor.kind), tensor.shape)


def engine_of_values(tensor: AnyTensor) -> OnnxEngine:
    """The engine inside the decorators of a tensor's backend; a new one if the tensor is a constant of an engine."""
    below = tensor.backend
    while not isinstance(below, OnnxEngine):
        if below.inner is None:
            return OnnxEngine(below)
        below = below.inner
    return below


def _with_values(model: Module, graph: Graph, parameters: Mapping[str, Any]) -> Module:
    """The model with values of the graph for its parameters."""

    def value_of(path: str, param: Param) -> tuple[Value, OnnxEngine]:
        engine = OnnxEngine(engine_of(param.backend))
        graph.parameters[path] = parameters[path]
        graph.fresh(path)
        return engine.named(path, param.shape, param.kind, param.device.on(engine)), engine

    return with_values(model, value_of)


@contextmanager
def _undisturbed(device: Device) -> Generator[None]:
    """As `undisturbed`, on values of a graph; compiled functions run uncompiled."""
    engine = OnnxEngine(engine_of(device.backend))
    with scope(tracing, object()), undisturbed(device.on(engine)):
        yield


def difference(first_graph: Graph, second_graph: Graph) -> str | None:
    """The first difference of two traces with different sizes, which shows a fixed size; None if there is none."""
    for first, second in zip(_every(first_graph), _every(second_graph), strict=False):
        alike = (first.op, first.inputs, _settings(first)) == (second.op, second.inputs, _settings(second))
        values = [(first_graph.constants.get(a), second_graph.constants.get(a)) for a in first.inputs] if alike else []
        if not alike or any(a is not None and not _equal(a, b) for a, b in values if b is not None):
            layer = f"layer `{first.path}`" if first.path else "the model"
            return f"{layer} ({first.line}), where {first.op} is made"
    if sum(1 for _ in _every(first_graph)) != sum(1 for _ in _every(second_graph)):
        last = max((first_graph, second_graph), key=lambda graph: len(graph.nodes)).nodes[-1]
        return f"layer `{last.path}` ({last.line}), where a loop runs over it"
    for index, (first, second) in enumerate(zip(first_graph.outputs, second_graph.outputs, strict=True)):
        pairs = zip(first.shape, second.shape, strict=False)
        if len(first.shape) != len(second.shape) or any(a != b and not is_open(a) for a, b in pairs):
            return f"output {index}, whose shape is {first.shape} and {second.shape}"
    return None


def _equal(a: Any, b: Any) -> bool:
    """Are two constants equal? NaN is equal to itself."""
    floats = np.asarray(a).dtype.kind in "fV"  # V: bfloat16
    return np.array_equal(*(np.asarray(x, np.float64) if floats else x for x in (a, b)), equal_nan=floats)


def _every(graph: Graph) -> Iterable[Any]:
    for node in graph.nodes:
        for value in node.attributes.values():
            if isinstance(value, Graph):
                yield from _every(value)
        yield node


def _settings(node: Any) -> dict[str, Any]:
    return {name: value for name, value in node.attributes.items() if not isinstance(value, Graph)}
