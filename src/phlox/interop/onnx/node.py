"""`Node`: an operator in a graph, with its attributes and the element types of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.interop.onnx.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node of a graph.

    Attributes:
        operator: its operator, as ONNX calls it.
        domain: of the operator set; "" for ONNX's own.
        version: of the operator set.
        name: of the node; may be empty.
        inputs, outputs: names of values; "" for an absent optional one.
        attributes: numbers, texts, arrays and lists of these.
        input_types, output_types: element types, 0 where unknown.
        graphs: the subgraphs among the attributes.
    """

    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    input_types: tuple[int, ...] = ()
    output_types: tuple[int, ...] = ()
    graphs: Mapping[str, Graph] = field(default_factory=dict[str, "Graph"])

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def type_of(self, operand: int) -> int:
        """The element type of an operand; 0 where it is unknown or absent."""
        return self.input_types[operand] if operand < len(self.input_types) else 0

    @property
    def element(self) -> int:
        """The element type of the first result."""
        return self.output_types[0] if self.output_types else 0

    def wants(self, output: int) -> bool:
        """Is this output used?"""
        return output < len(self.outputs) and bool(self.outputs[output])

    def described(self) -> str:
        """The name of the node in error messages."""
        whole = f"{self.domain}.{self.operator}" if self.domain else self.operator
        name = f"`{self.name}`" if self.name else f"that makes `{next(filter(None, self.outputs), '')}`"
        return f"node {name} ({whole}, opset {self.version})"


def shapes_of(values: Sequence[Any]) -> str:
    """The shapes of operands, for a note at an error."""
    return ", ".join(str(getattr(value, "shape", type(value).__name__)) for value in values)
