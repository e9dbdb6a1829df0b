"""Operators with subgraphs: choices and loops, which run in Python, and are unrolled where a function is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from phlox.errors import RangeError, UnsupportedError
from phlox.interop.onnx.elements import host, is_host, moved
from phlox.interop.onnx.graph import Run, known_values
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, stack

X = Tensor[Any, Any, Any]
Values = dict[str, Any]


def _if(node: Node, run: Run, values: Values, condition: X) -> tuple[Any, ...]:
    chosen = bool(known_values(node, 0, condition).reshape(()))
    graph = node.graphs["then_branch" if chosen else "else_branch"]
    return tuple(graph.run(run, [], values))


def _stacked(items: list[Any], axis: int = 0) -> X:
    """Results of all steps as one tensor."""
    if not items:
        return host(np.zeros((0,)))
    device = next((item.device for item in items if not is_host(item)), None)
    if device is not None:
        items = [moved(item, device) if is_host(item) else item for item in items]
    return stack(items, axis)


def _loop(node: Node, run: Run, values: Values, trips: Any = None, condition: Any = None, *carried: Any) -> Any:
    body = node.graphs["body"]
    count = None if trips is None else int(known_values(node, 0, trips).reshape(()))
    state = list(carried)
    kept: list[list[Any]] = [[] for _ in body.outputs[1 + len(state) :]]
    going = condition is None or bool(known_values(node, 1, condition).reshape(()))
    iteration = 0
    keep_going: Any = host(np.asarray(True)) if condition is None else condition
    while going and (count is None or iteration < count):
        run.iterations -= 1
        if run.iterations < 0:
            raise RangeError(
                f"{node.described()} goes on after {iteration:,} iterations, and a call of this model makes no more "
                f"than {run.most_iterations:,} in all its loops; if it needs them, give load(..., max_iterations=...)"
            )
        keep_going, *outputs = body.run(run, [host(np.asarray(iteration, np.int64)), keep_going, *state], values)
        state, outputs_of_step = outputs[: len(state)], outputs[len(state) :]
        for items, item in zip(kept, outputs_of_step, strict=True):
            items.append(item)
        going = bool(known_values(node, 1, keep_going).reshape(()))
        iteration += 1
    return (*state, *(_stacked(items) for items in kept))


def _scan(node: Node, run: Run, values: Values, *operands: Any) -> Any:
    body, count = node.graphs["body"], node.get("num_scan_inputs")
    state, inputs = list(operands[:-count]), operands[-count:]
    axes = node.get("scan_input_axes") or [0] * count
    backwards = node.get("scan_input_directions") or [0] * count
    lengths = {x.shape[axis] for x, axis in zip(inputs, axes, strict=True)}
    if len(lengths) != 1:
        raise RangeError(f"{node.described()}: its inputs have {sorted(lengths)} steps; they must have equally many")
    (length,) = lengths
    outputs = len(body.outputs) - len(state)
    kept: list[list[Any]] = [[] for _ in range(outputs)]
    for step in range(length):
        parts: list[Any] = []
        for x, axis, back in zip(inputs, axes, backwards, strict=True):
            index = length - 1 - step if back else step
            parts.append(x[(*(slice(None),) * (axis % x.ndim), index)])
        results = body.run(run, [*state, *parts], values)
        state = results[: len(state)]
        for items, item in zip(kept, results[len(state) :], strict=True):
            items.append(item)
    out_axes = node.get("scan_output_axes") or [0] * outputs
    reverse = node.get("scan_output_directions") or [0] * outputs
    joined = [
        _stacked(items[::-1] if back else items, axis)
        for items, axis, back in zip(kept, out_axes, reverse, strict=True)
    ]
    return (*state, *joined)


operators({"If": _if, "Loop": _loop}, own=True)


def _scan_8(node: Node, run: Run, values: Values, lengths: Any, *operands: Any) -> Any:
    """Opset 8: the first axis is a batch, and each example is scanned separately."""
    if lengths is not None:
        raise UnsupportedError(f"{node.described()}: lengths of sequences are not supported; convert it to opset 9")
    attributes = {"num_scan_inputs": node.get("num_scan_inputs"), "scan_input_directions": node.get("directions")}
    newer = replace(node, attributes=attributes)
    rows = [_scan(newer, run, values, *(x[example] for x in operands)) for example in range(operands[0].shape[0])]
    return tuple(_stacked([row[output] for row in rows]) for output in range(len(rows[0])))


operators({"Scan": _scan_8}, own=True, since=8)
operators({"Scan": _scan}, own=True, since=9)
