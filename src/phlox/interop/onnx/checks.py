"""Checks of a node when it is loaded: its operands, results and attributes, and whether its subgraphs fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from phlox.interop.onnx.graph import Graph
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Operator

_GRAPH = 5
_SINGLE, _VARIADIC = 0, 2


def problem_of(
    node: Node, proto: Any, schema: Any, operator: Operator | None, absent: AbstractSet[str] = frozenset()
) -> str:
    """What is wrong with a node, as the end of a sentence; "" if nothing is.

    Args:
        node: the node.
        proto: its `NodeProto`, with attributes of all kinds.
        schema: ONNX's schema of the operator; None if ONNX does not know it. Then the parameters of our function
            decide.
        operator: our implementation of the operator, if there is one.
        absent: names of inputs of the enclosing function that were not given.
    """
    operands = ["" if name in absent else name for name in node.inputs]
    checks = _by_schema(node, operands, proto, schema) if schema is not None else _by_function(operands, operator)
    return next(checks, "")


def problem_of_graphs(node: Node, absent: AbstractSet[str] = frozenset()) -> str:
    """What is wrong between a node and its subgraphs; "" if nothing is."""
    check = _CHECKS.get(node.operator) if node.graphs and not node.domain else None
    operands = ["" if name in absent else name for name in node.inputs]
    return "" if check is None else next(check(node, operands), "")


def _by_schema(node: Node, operands: Sequence[str], proto: Any, schema: Any) -> Iterator[str]:
    options = [int(_plain(parameter.option)) for parameter in schema.inputs]
    names = [parameter.name for parameter in schema.inputs]
    if len(operands) < schema.min_input:
        yield f"has {_counted(len(operands), 'input')}, and needs at least {schema.min_input} ({_listed(names)})"
    if len(operands) > schema.max_input:
        yield f"has {_counted(len(operands), 'input')}, and takes at most {schema.max_input} ({_listed(names)})"
    for position, name in enumerate(operands):
        is_needed = options[position] == _SINGLE if position < len(options) else False
        if not name and is_needed:
            yield f"lacks its input {position + 1} ({names[position]})"
        if not name and options[min(position, len(options) - 1)] == _VARIADIC and node.operator not in ("Loop", "Scan"):
            yield f"has an empty name as its input {position + 1}, one of several ({names[-1]})"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        takes = f"{schema.min_output} to {schema.max_output}"
        yield f"has {_counted(len(node.outputs), 'output')}, and makes {takes}"
    types = {attribute.name: int(attribute.type) for attribute in proto.attribute}
    for name, attribute in schema.attributes.items():
        kind = types.get(name)
        expected = int(_plain(attribute.type))
        if kind is None and attribute.required:
            noun = "the graph" if expected == _GRAPH else "the attribute"
            yield f"lacks {noun} `{name}`"
        if kind and kind != expected:
            yield f"has an attribute `{name}` that is no {attribute.type.name.lower()}"


def _by_function(operands: Sequence[str], operator: Operator | None) -> Iterator[str]:
    if operator is None:
        return
    least, most = operands_of(operator.compute, own=operator.own)
    if len(operands) < least:
        yield f"has {_counted(len(operands), 'input')}, and needs at least {least}"
    if most is not None and len(operands) > most:
        yield f"has {_counted(len(operands), 'input')}, and takes at most {most}"
    for position, name in enumerate(operands[:least]):
        if not name:
            yield f"lacks its input {position + 1}"


def _plain(value: Any) -> Any:
    """The value of a member of an enumeration; some versions of onnx give the number itself."""
    return getattr(value, "value", value)


def operands_of(compute: Callable[..., Any], *, own: bool = False) -> tuple[int, int | None]:
    """How many operands a function of the table needs, and how many it takes; None for any number.

    >>> operands_of(lambda node, x, bias=None: x)
    (1, 2)
    """
    try:
        params = list(inspect.signature(compute).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return 0, None
    positional = [param for param in params if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    leading = 3 if own else 1
    least = sum(param.default is param.empty for param in positional) - leading
    is_open = any(param.kind is param.VAR_POSITIONAL for param in params)
    return max(least, 0), None if is_open else len(positional) - leading


# --- subgraphs


def _of_if(node: Node, operands: Sequence[str]) -> Iterator[str]:
    for name, branch in node.graphs.items():
        yield from _check_sizes(name, branch, 0, len(node.outputs))


def _of_loop(node: Node, operands: Sequence[str]) -> Iterator[str]:
    if not any(operands[:2]):
        yield "has neither a number of iterations nor a condition, so it would never end"
    yield from _check_sizes("body", node.graphs["body"], len(operands), 1 + max(len(node.outputs), len(operands) - 2))


def _of_scan(node: Node, operands: Sequence[str]) -> Iterator[str]:
    n_operands = len(operands) - (node.version < 9)
    count = node.get("num_scan_inputs")
    if not 1 <= count <= n_operands:
        yield f"has num_scan_inputs={count}, and {_counted(n_operands, 'input')}"
    body = node.graphs["body"]
    yield from _check_sizes("body", body, n_operands, max(len(node.outputs), n_operands - count))
    results = len(body.outputs) - (n_operands - count)
    for name, length in {
        "scan_input_axes": count, "scan_input_directions": count, "directions": count,
        "scan_output_axes": results, "scan_output_directions": results,
    }.items():  # fmt: skip
        if len(node.get(name, ())) not in (0, length):
            yield f"has {len(node.get(name))} {name}, and {length} are needed"


_CHECKS: Mapping[str, Callable[[Node, Sequence[str]], Iterator[str]]] = {
    "If": _of_if, "Loop": _of_loop, "Scan": _of_scan,
}  # fmt: skip


def _check_sizes(name: str, graph: Graph, inputs: int, outputs: int) -> Iterator[str]:
    if len(graph.inputs) != inputs:
        yield f"passes {_counted(inputs, 'input')} to its graph `{name}`, which takes {len(graph.inputs)}"
    if len(graph.outputs) < outputs:
        yield f"needs {_counted(outputs, 'output')} of its graph `{name}`, which makes {len(graph.outputs)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
