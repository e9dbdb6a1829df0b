"""What a node must have, found when it is loaded: operands, results, attributes, and subgraphs that fit together."""

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
        schema: what ONNX says of its operator; None where it does not know it. Then the parameters of our function
            count.
        operator: ours.
        absent: names of inputs of the function around that were not given.
    """
    given = ["" if name in absent else name for name in node.inputs]
    checks = _by_schema(node, given, proto, schema) if schema is not None else _by_function(given, operator)
    return next(checks, "")


def problem_of_graphs(node: Node, absent: AbstractSet[str] = frozenset()) -> str:
    """What is wrong between a node and its subgraphs; "" if nothing is."""
    check = _CHECKS.get(node.operator) if node.graphs and not node.domain else None
    given = ["" if name in absent else name for name in node.inputs]
    return "" if check is None else next(check(node, given), "")


def _by_schema(node: Node, given: Sequence[str], proto: Any, schema: Any) -> Iterator[str]:
    places = [int(_plain(place.option)) for place in schema.inputs]
    names = [place.name for place in schema.inputs]
    if len(given) < schema.min_input:
        yield f"has {_counted(len(given), 'input')}, and needs at least {schema.min_input} ({_listed(names)})"
    if len(given) > schema.max_input:
        yield f"has {_counted(len(given), 'input')}, and takes at most {schema.max_input} ({_listed(names)})"
    for place, name in enumerate(given):
        is_needed = places[place] == _SINGLE if place < len(places) else False
        if not name and is_needed:
            yield f"lacks its input {place + 1} ({names[place]})"
        if not name and places[min(place, len(places) - 1)] == _VARIADIC and node.operator not in ("Loop", "Scan"):
            yield f"has an empty name as its input {place + 1}, one of several ({names[-1]})"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        takes = f"{schema.min_output} to {schema.max_output}"
        yield f"has {_counted(len(node.outputs), 'output')}, and makes {takes}"
    types = {one.name: int(one.type) for one in proto.attribute}
    for name, wanted in schema.attributes.items():
        kind = types.get(name)
        expected = int(_plain(wanted.type))
        if kind is None and wanted.required:
            what = "the graph" if expected == _GRAPH else "the attribute"
            yield f"lacks {what} `{name}`"
        if kind and kind != expected:
            yield f"has an attribute `{name}` that is no {wanted.type.name.lower()}"


def _by_function(given: Sequence[str], operator: Operator | None) -> Iterator[str]:
    if operator is None:
        return
    least, most = operands_of(operator.compute, own=operator.own)
    if len(given) < least:
        yield f"has {_counted(len(given), 'input')}, and needs at least {least}"
    if most is not None and len(given) > most:
        yield f"has {_counted(len(given), 'input')}, and takes at most {most}"
    for place, name in enumerate(given[:least]):
        if not name:
            yield f"lacks its input {place + 1}"


def _plain(value: Any) -> Any:
    """The number of an enumeration, which some versions of onnx have as a number."""
    return getattr(value, "value", value)


def operands_of(compute: Callable[..., Any], *, own: bool = False) -> tuple[int, int | None]:
    """How many operands a function of the table needs, and how many it takes; None for any number.

    >>> operands_of(lambda node, x, bias=None: x)
    (1, 2)
    """
    try:
        parameters = list(inspect.signature(compute).parameters.values())
    except (TypeError, ValueError):  # a builtin, which does not tell
        return 0, None
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    rest = 3 if own else 1
    least = sum(one.default is one.empty for one in places) - rest
    is_open = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return max(least, 0), None if is_open else len(places) - rest


# --- subgraphs


def _of_if(node: Node, given: Sequence[str]) -> Iterator[str]:
    for name, branch in node.graphs.items():
        yield from _fits(name, branch, 0, len(node.outputs))


def _of_loop(node: Node, given: Sequence[str]) -> Iterator[str]:
    if not any(given[:2]):
        yield "has neither a number of iterations nor a condition, so it would never end"
    yield from _fits("body", node.graphs["body"], len(given), 1 + max(len(node.outputs), len(given) - 2))


def _of_scan(node: Node, given: Sequence[str]) -> Iterator[str]:
    operands = len(given) - (node.version < 9)
    count = node.get("num_scan_inputs")
    if not 1 <= count <= operands:
        yield f"has num_scan_inputs={count}, and {_counted(operands, 'input')}"
    body = node.graphs["body"]
    yield from _fits("body", body, operands, max(len(node.outputs), operands - count))
    results = len(body.outputs) - (operands - count)
    for name, length in {
        "scan_input_axes": count, "scan_input_directions": count, "directions": count,
        "scan_output_axes": results, "scan_output_directions": results,
    }.items():  # fmt: skip
        if len(node.get(name, ())) not in (0, length):
            yield f"has {len(node.get(name))} {name}, and {length} are needed"


_CHECKS: Mapping[str, Callable[[Node, Sequence[str]], Iterator[str]]] = {
    "If": _of_if, "Loop": _of_loop, "Scan": _of_scan,
}  # fmt: skip


def _fits(name: str, graph: Graph, inputs: int, outputs: int) -> Iterator[str]:
    if len(graph.inputs) != inputs:
        yield f"gives its graph `{name}` {_counted(inputs, 'input')}, and that takes {len(graph.inputs)}"
    if len(graph.outputs) < outputs:
        yield f"needs {_counted(outputs, 'output')} of its graph `{name}`, and that makes {len(graph.outputs)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
