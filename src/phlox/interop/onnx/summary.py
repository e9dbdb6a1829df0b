"""What is in an ONNX model, without making a module of it."""

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
    """A model: what it takes and returns, its operators with repetition, those that are not known, its initializers."""

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
        counts = {one: self.operators.count(one) for one in sorted(set(self.operators))}
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
            "initializers": [asdict(one) for one in initializers],
        }


def summary_of(proto: Any, tensors: Tensors) -> OnnxSummary:
    """What a `ModelProto` says of itself; no values are read."""
    import_all()
    opsets = {(one.domain or "ai.onnx"): int(one.version) for one in proto.opset_import}
    local = {(one.domain, one.name) for one in proto.functions}
    operators: list[str] = []
    unknown: set[str] = set()
    for node in _nodes(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        called = f"{domain}.{node.op_type}" if domain else node.op_type
        operators.append(called)
        version = opsets.get(domain or "ai.onnx", 0)
        known = node.op_type == "Constant" or (node.domain, node.op_type) in local
        known = known or TABLE.find(domain, node.op_type, version) is not None
        if not known and not _is_function(node.op_type, domain, version):
            unknown.add(called)
    shown = [value for value in proto.graph.input if value.name not in {one.name for one in proto.graph.initializer}]
    return OnnxSummary(
        int(proto.ir_version),
        f"{proto.producer_name} {proto.producer_version}".strip(),
        opsets,
        [str(value_of(one)) for one in shown],
        [str(value_of(one)) for one in proto.graph.output],
        operators,
        unknown,
        [_initializer(one, tensors) for one in proto.graph.initializer],
    )


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                yield from _nodes(inner)


def _is_function(name: str, domain: str, version: int) -> bool:
    """Does ONNX define the operator by others?"""
    try:
        schema = onnx().defs.get_schema(name, max(version, 1), domain)
    except Exception:  # of a class of its own
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _initializer(proto: Any, tensors: Tensors) -> InitializerSummary:
    shape = tuple(int(size) for size in proto.dims)
    bits = tensors.bits_of(proto.data_type)
    return InitializerSummary(
        proto.name, shape, NAMES.get(proto.data_type, str(proto.data_type)), -(-math.prod(shape) * bits // 8)
    )
