"""`OnnxModule`: a graph as a module, whose weights are parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from phlox.backend import Device, Float, Int, as_device
from phlox.errors import KindError, ModuleError, ShapeError
from phlox.interop.onnx.elements import HOST, NAMES, STRING, element_of_type, host, is_host, kind_of, moved
from phlox.interop.onnx.graph import MAX_ITERATIONS, Graph, Kept, Run
from phlox.module import Module, Param
from phlox.module.error_location import takes_arrays
from phlox.tensor import Tensor, tensor


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a model: its name, element type, and shape with names for open axes."""

    name: str
    element: int
    shape: tuple[int | str, ...] | None
    """None if the file does not give it."""
    container: str = "tensor"
    """tensor, sequence or optional."""

    def __str__(self) -> str:
        shape = "[...]" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        inner = f"{NAMES.get(self.element, '?')} {shape}"
        return f"{self.name}: {inner}" if self.container == "tensor" else f"{self.name}: {self.container} of {inner}"


def value_of(proto: Any) -> Value:
    """An input or output from its `ValueInfoProto`."""
    kind, container = proto.type, "tensor"
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        which = kind.WhichOneof("value")
        container = which.removesuffix("_type") if container != "optional" else container
        kind = getattr(kind, which).elem_type
    shape = None
    if kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.HasField("shape"):
        dims = kind.tensor_type.shape.dim
        shape = tuple(
            int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in dims
        )
    return Value(proto.name, element_of_type(proto.type), shape, container)


class Program:
    """The graph of a model without its parameters; copies of the model share it, unpickling rebuilds it from bytes."""

    __slots__ = ("graph", "inputs", "kept", "max_iterations", "opsets", "outputs", "paths", "source")

    def __init__(
        self,
        graph: Graph,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        opsets: Mapping[str, int],
        paths: tuple[str, ...],
        source: bytes,
        max_iterations: int = MAX_ITERATIONS,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.outputs = outputs
        self.opsets = dict(opsets)
        self.paths = paths
        self.source = source
        self.max_iterations = max_iterations
        self.kept = Kept()

    def __copy__(self) -> Program:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from phlox.interop.onnx.loading import program_from

        return program_from, (self.source, self.max_iterations)

    def __repr__(self) -> str:
        sets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(self.opsets.items()))
        counts = Counter(step.node.operator for step in self.graph.steps)
        common = ", ".join(f"{name} {count}" for name, count in counts.most_common(8))
        others = f", ... ({len(counts)} operators)" if len(counts) > 8 else ""
        return f"<{len(self.graph.steps)} nodes, opset {sets}: {common}{others}>"


class OnnxModule(Module):
    """The module of an ONNX file, see `phlox.interop.onnx.load`.

    Its weights are parameters, by the names of their initializers. Call it with its inputs in the order of the file, or
    by name, as tensors, NumPy arrays or Python numbers. Give sizes as numbers: their values are known while a function
    is compiled. A single output is returned alone, several as a dict by name.
    """

    program: Program

    def __init__(self, program: Program, params: Mapping[str, Param]) -> None:
        self.program = program
        for path, param in params.items():
            setattr(self, path, param)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs, with element types and shapes."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs, with element types and shapes if the file gives them."""
        return self.program.outputs

    @takes_arrays
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        program = self.program
        by_name = _by_name(program, inputs, named)
        weights = {path: param.val() for path, param in self.named_params()}
        device = _device_of(by_name, weights)
        values = [_checked(value, by_name.get(value.name), device) for value in program.inputs]
        while values and values[-1] is None:
            values.pop()
        outputs = program.graph.run(Run(weights, device, program.kept, program.max_iterations), values)
        results = [_as_output(output, device) for output in outputs]
        if len(results) == 1:
            return results[0]
        return {value.name: result for value, result in zip(program.outputs, results, strict=True)}

    def __repr__(self) -> str:
        lines = [f"OnnxModule({self.program!r})"]
        lines += [f"  input  {value}" for value in self.inputs]
        lines += [f"  output {value}" for value in self.outputs]
        params = list(self.named_params())
        for path, param in params[:40]:
            lines.append("  " + " ".join([path, str(list(param.shape)), *param.remarks()]))
        if len(params) > 40:
            lines.append(f"  ... and {len(params) - 40} more parameters")
        return "\n".join(lines)


def _by_name(program: Program, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    names = [value.name for value in program.inputs]
    takes = "; it takes " + ", ".join(map(str, program.inputs))
    if len(inputs) > len(names):
        raise ModuleError(f"the model takes {len(names)} inputs, got {len(inputs)}{takes}")
    by_name = dict(zip(names, inputs, strict=False))
    for name, value in named.items():
        if name not in names:
            raise ModuleError(f"the model has no input `{name}`{takes}")
        if name in by_name:
            raise ModuleError(f"the input `{name}` is given twice, by position and by name")
        by_name[name] = value
    optional = {
        value.name for value in program.inputs if value.container == "optional"
    } | program.graph.constants.keys()
    lacking = [name for name in names if name not in by_name and name not in optional | program.graph.weights.keys()]
    if lacking:
        raise ModuleError(f"the input `{lacking[0]}` is not given{takes}")
    return by_name


def _device_of(inputs: Mapping[str, Any], weights: Mapping[str, Tensor[Any, Any, Any]]) -> Device:
    for value in (*inputs.values(), *weights.values()):
        items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, Tensor):
                return cast("Tensor[Any, Any, Any]", item).device
    return as_device(None)


def _checked(value: Value, argument: Any, device: Device) -> Any:
    """An input in the form that the graph takes; errors say what does not fit."""
    if argument is None or value.element == STRING:
        return None if argument is None else np.asarray(argument, dtype=object)
    if value.container != "tensor" and isinstance(argument, (list, tuple)):
        return [_checked(Value(value.name, value.element, None), item, device) for item in cast("list[Any]", argument)]
    x: Any = argument
    if isinstance(argument, (bool, int, float)):
        x = host(np.asarray(argument, dtype=_python_type(value, argument)))
    elif not isinstance(argument, Tensor):
        x = tensor(argument, device=device)
    kind = kind_of(value.element, f"the input `{value.name}`") if value.element else x.kind
    if x.kind is not kind:
        remedy = f".{kind.name}()"
        raise KindError(
            f"the input `{value}` is {kind.__name__}, got a {x.kind.__name__} tensor; convert it with {remedy}"
        )
    if value.shape is not None:
        is_right_shape = x.ndim == len(value.shape) and all(
            isinstance(size, str) or size == actual for size, actual in zip(value.shape, x.shape, strict=True)
        )
        is_single = x.size == 1 and all(isinstance(size, str) or size == 1 for size in value.shape)
        if not is_right_shape and is_single and is_host(x):
            return x.reshape((1,) * len(value.shape))
        if not is_right_shape:
            raise ShapeError(f"the input `{value}` does not take a tensor of shape {x.shape}")
    return x


def _python_type(value: Value, number: float) -> type[Any]:
    if not value.element:
        return type(number)
    kind = kind_of(value.element, f"the input `{value.name}`")
    if kind is Float:
        return float
    if isinstance(number, float):
        return float  # the wrong kind: the caller raises the error
    return int if kind is Int else bool


def _as_output(value: Any, device: Device) -> Any:
    if isinstance(value, list):
        return [_as_output(item, device) for item in cast("list[Any]", value)]
    return moved(value, device, ends=False) if is_host(value) and device.backend is not HOST else value
