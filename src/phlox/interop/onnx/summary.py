"""The contents of an ONNX model, without making a module of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phlox.interop.onnx.elements import NAMES
from phlox.interop.onnx.module import value_of
from phlox.interop.onnx.operators import import_all
from phlox.interop.onnx.reading import Tensors, onnx
from phlox.interop.onnx.registry import TABLE


@dataclass(frozen=True, slots=True)
class InitializerSummary:
    """An initializer: its name, shape, element type and size."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class OnnxSummary:
    """A model: its inputs and outputs, its operators with repetitions, the unknown ones, and its initializers."""

    ir_version: int
    producer: str
    opsets: dict[str, int]
    inputs: list[str]
    outputs: list[str]
    operators: list[str]
    unknown: set[str]
    initializers: list[InitializerSummary]

    def as_json(self, path: str, initializers: Sequence[InitializerSummary]) -> dict[str, Any]:
        """The same as plain values."""
        counts = {name: self.operators.count(name) for name in sorted(set(self.operators))}
        return {
            "file": path,
            "format": "onnx",
            "ir_version": self.ir_version,
            "producer": self.producer,
            "opsets": self.opsets,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "operators": counts,
            "unknown": sorted(self.unknown),
            "initializers": [asdict(initializer) for initializer in initializers],
        }


def summary_of(proto: Any, tensors: Tensors) -> OnnxSummary:
    """The summary of a `ModelProto`; no values are read."""
    import_all()
    opsets = {(opset.domain or "ai.onnx"): int(opset.version) for opset in proto.opset_import}
    local = {(function.domain, function.name) for function in proto.functions}
    operators: list[str] = []
    unknown: set[str] = set()
    for node in _nodes(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        called = f"{domain}.{node.op_type}" if domain else node.op_type
        operators.append(called)
        version = opsets.get(domain or "ai.onnx", 0)
        is_known = node.op_type == "Constant" or (node.domain, node.op_type) in local
        is_known = is_known or TABLE.find(domain, node.op_type, version) is not None
        if not is_known and not _is_function(node.op_type, domain, version):
            unknown.add(called)
    shown = [value for value in proto.graph.input if value.name not in {t.name for t in proto.graph.initializer}]
    return OnnxSummary(
        int(proto.ir_version),
        f"{proto.producer_name} {proto.producer_version}".strip(),
        opsets,
        [str(value_of(value)) for value in shown],
        [str(value_of(value)) for value in proto.graph.output],
        operators,
        unknown,
        [_initializer(initializer, tensors) for initializer in proto.graph.initializer],
    )


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                yield from _nodes(inner)


def _is_function(name: str, domain: str, version: int) -> bool:
    """Does ONNX define the operator as a function of other operators?"""
    try:
        schema = onnx().defs.get_schema(name, max(version, 1), domain)
    except Exception:  # its class has moved between versions of onnx
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _initializer(proto: Any, tensors: Tensors) -> InitializerSummary:
    shape = tuple(int(size) for size in proto.dims)
    bits = tensors.bits_of(proto.data_type)
    return InitializerSummary(
        proto.name, shape, NAMES.get(proto.data_type, str(proto.data_type)), -(-math.prod(shape) * bits // 8)
    )
