"""The element types of results, by the schemas of ONNX; tensors have only three kinds, but casts need the types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phlox.interop.onnx.elements import BY_NAME, FLOAT, UINT8

_BY_ATTRIBUTE: dict[str, tuple[str, int | None]] = {
    "Cast": ("to", None), "EyeLike": ("dtype", None), "RandomNormal": ("dtype", FLOAT), "BitCast": ("to", None),
    "RandomUniform": ("dtype", FLOAT), "RandomNormalLike": ("dtype", None), "RandomUniformLike": ("dtype", None),
    "Multinomial": ("dtype", 6), "Bernoulli": ("dtype", None), "HannWindow": ("output_datatype", FLOAT),
    "HammingWindow": ("output_datatype", FLOAT), "BlackmanWindow": ("output_datatype", FLOAT),
    "MelWeightMatrix": ("output_datatype", FLOAT), "SequenceEmpty": ("dtype", FLOAT),
}  # fmt: skip
"""Operators whose result type is an attribute, with its default; None is the type of the first input."""


def element_of(text: str) -> int:
    """The element type of `tensor(float)`, `seq(tensor(int64))` and the like."""
    inner = text[text.rfind("(") + 1 :].rstrip(")")
    return BY_NAME.get(inner, 0)


def types_of_results(
    operator: str, schema: Any, attributes: Mapping[str, Any], inputs: Sequence[int], count: int
) -> tuple[int, ...]:
    """The element types of the results of a node without subgraphs; 0 if the schema does not give them."""
    first = next(iter(inputs), 0)
    if operator in _BY_ATTRIBUTE:
        name, default = _BY_ATTRIBUTE[operator]
        return (int(attributes.get(name, 0)) or default or first,) * count
    if operator == "ConstantOfShape":
        return (_element_of_value(attributes.get("value")),)
    if operator == "CastLike":
        return (inputs[1],)
    if operator == "QuantizeLinear":
        return (int(attributes.get("output_dtype", 0)) or (inputs[2] if len(inputs) > 2 else 0) or UINT8,)
    if operator == "DequantizeLinear":
        return (int(attributes.get("output_dtype", 0)) or inputs[1],)
    if operator.startswith(("Sequence", "SplitToSequence", "ConcatFromSequence", "Optional")) and operator not in (
        "SequenceLength",
        "OptionalHasElement",
    ):
        return (first,) * count
    if schema is None:
        return (first,) * count
    return tuple(_by_schema(schema, output, inputs, first) for output in range(count))


def _element_of_value(value: Any) -> int:
    if value is None:
        return FLOAT
    name = str(value.dtype.name)
    return BY_NAME.get(_NAMES_IN_NUMPY.get(name, name), FLOAT)


_NAMES_IN_NUMPY = {"float32": "float", "float64": "double"}


def _by_schema(schema: Any, output: int, inputs: Sequence[int], first: int) -> int:
    formal = schema.outputs[min(output, len(schema.outputs) - 1)]
    if "(" in formal.type_str:
        return element_of(formal.type_str)
    for index, element in enumerate(inputs):
        parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
        if parameter.type_str == formal.type_str and element:
            return element
    for constraint in schema.type_constraints:
        if constraint.type_param_str == formal.type_str and len(constraint.allowed_type_strs) == 1:
            return element_of(constraint.allowed_type_strs[0])
    return first
