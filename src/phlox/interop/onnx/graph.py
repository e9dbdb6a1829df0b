"""A graph that is ready to run: steps in order, each an operator with the names of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from phlox.backend import Device
from phlox.errors import CompileError, ModuleError, UnsupportedError
from phlox.interop.onnx.elements import is_host, moved
from phlox.interop.onnx.node import Node, shapes_of
from phlox.interop.onnx.registry import Operator
from phlox.interop.onnx.wide import checked, on_host
from phlox.tensor import Tensor

Values = dict[str, Any]
MAX_ITERATIONS = 1_000_000
"""The most iterations that all loops of a model make in one call, by default."""
_LARGE = 1 << 20
"""Results that depend only on constants are kept up to this many elements."""


@dataclass(slots=True)
class Kept:
    """Values that are computed once: constants on a device, and results that depend only on constants."""

    on_device: dict[tuple[int, Device], tuple[Any, Any]] = field(default_factory=dict[Any, Any])
    folded: dict[int, tuple[Any, ...]] = field(default_factory=dict[int, "tuple[Any, ...]"])

    def on(self, constant: Any, device: Device) -> Any:
        """A constant on a device."""
        if device.backend.is_tracing():
            return moved(constant, device)  # a constant of the program that is traced, and of no other
        key = (id(constant), device)
        if key not in self.on_device:
            self.on_device[key] = (constant, moved(constant, device))
        return self.on_device[key][1]


@dataclass(slots=True)
class Run:
    """The state of one call of a model."""

    weights: Mapping[str, Tensor[Any, Any, Any]]
    """By path."""
    device: Device
    """The device for values that depend on no input."""
    kept: Kept
    most_iterations: int = MAX_ITERATIONS
    """The most iterations that all its loops together may make."""
    iterations: int = field(init=False)
    """How many of them are left."""

    def __post_init__(self) -> None:
        self.iterations = self.most_iterations


@dataclass(slots=True, eq=False)
class Step:
    """One node: `compute` of its operands becomes its results."""

    node: Node
    operator: Operator | None
    body: Graph | None = None
    """In place of an operator: the graph of a function."""
    constant: bool = False
    """Does it follow from constants alone?"""
    from_constants: frozenset[int] = frozenset()
    """The operands that are constants of the graph."""
    last_uses: tuple[str, ...] = ()
    """Values that nothing uses after this."""

    def __call__(self, run: Run, values: Values) -> None:
        """Compute it."""
        node = self.node
        results = run.kept.folded.get(id(self)) if self.constant else None
        if results is None:
            try:
                results = self._results(run, values)
            except Exception as error:
                operands = [values.get(name) for name in node.inputs if name]
                error.add_note(f"ONNX: at {node.described()}, given shapes {shapes_of(operands)}")
                raise
            if self.constant and all(_is_small(result) for result in results):
                run.kept.folded[id(self)] = results
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                values[name] = result
        for name in self.last_uses:
            values.pop(name, None)

    def _results(self, run: Run, values: Values) -> tuple[Any, ...]:
        node = self.node
        operands = [values[name] if name else None for name in node.inputs]
        if self.body is not None:
            return tuple(self.body.run(run, operands))
        operator = self.operator
        assert operator is not None
        if operator.own:
            computed = operator.compute(node, run, values, *operands)
        else:
            for position in operator.static:
                if position < len(operands) and isinstance(operands[position], Tensor):
                    operands[position] = known_values(node, position, operands[position])
            if not on_host(node, operands):
                operands = self._on_one_device(run, operands)
            computed = checked(node, operator.compute, operands, operator.compute(node, *operands))
        results = cast("tuple[Any, ...]", computed) if isinstance(computed, tuple) else (computed,)
        if len(results) < len(node.outputs) and any(node.outputs[len(results) :]):
            raise UnsupportedError(f"{node.described()}: its output `{node.outputs[len(results)]}` is not computed")
        return results

    def _on_one_device(self, run: Run, operands: list[Any]) -> list[Any]:
        """The operands on one device: host values move to the device of those that depend on inputs or parameters."""
        device = next((device for operand in operands if (device := _device_of(operand)) is not None), None)
        if device is None:
            return operands
        for index, value in enumerate(operands):
            if is_host(value):
                operands[index] = run.kept.on(value, device) if index in self.from_constants else moved(value, device)
            elif isinstance(value, list):
                items = cast("list[Any]", value)
                operands[index] = [moved(item, device) if is_host(item) else item for item in items]
        return operands


def _device_of(value: Any) -> Device | None:
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return next((device for item in items if (device := _device_of(item)) is not None), None)
    if not isinstance(value, Tensor):
        return None
    tensor = cast("Tensor[Any, Any, Any]", value)
    return None if is_host(tensor) else tensor.device


def _is_small(value: Any) -> bool:
    return not isinstance(value, list) and (value is None or value.size <= _LARGE)


def known_values(node: Node, position: int, value: Any) -> np.ndarray[Any, Any]:
    """The values of an operand that the shape of a result depends on."""
    if value.backend.is_traced(value.primitive) and not value.backend.batch_of(value.primitive):
        raise CompileError(
            f"{node.described()} needs the values of its input `{node.inputs[position]}`, which are unknown during "
            "tracing; give inputs that say sizes or choices as Python numbers, or do not compile the model"
        )
    return value.numpy()


@dataclass(slots=True, eq=False)
class Graph:
    """The steps of a graph in order, and their initial values.

    Attributes:
        inputs, outputs: names of values.
        steps: in an order in which each value is computed before it is used.
        constants: values of initializers that are no parameters, on the host.
        weights: names of values -> paths of parameters.
        captured: names of values of enclosing graphs that this graph, or a graph inside it, uses.
        output_types: element types.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    weights: dict[str, str] = field(default_factory=dict[str, str])
    captured: tuple[str, ...] = ()
    output_types: tuple[int, ...] = ()

    def run(self, run: Run, inputs: Sequence[Any], around: Mapping[str, Any] | None = None) -> list[Any]:
        """The outputs for these inputs; `around` has the values of the enclosing graph."""
        if len(inputs) > len(self.inputs):
            raise ModuleError(f"the graph `{self.name}` takes {len(self.inputs)} inputs, got {len(inputs)}")
        values: Values = {}
        if around is not None:
            for name in self.captured:
                values[name] = around[name]
        values.update(self.constants)
        for name, path in self.weights.items():
            values[name] = run.weights[path]
        values.update((name, None) for name in self.inputs[len(inputs) :] if name not in values)
        values.update(zip(self.inputs, inputs, strict=False))
        for step in self.steps:
            step(run, values)
        return [values[name] if name else None for name in self.outputs]
