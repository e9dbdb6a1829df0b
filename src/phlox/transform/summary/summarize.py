"""From a model and its inputs to a `Summary`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from phlox.backend import Float
from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.calls import depth_of, layer_name, named_modules, outer_paths, with_function_layers
from phlox.module.reparameterization import Reparameterization
from phlox.module.summary import Memory, Row, Summary, checked_columns
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.transform.eval_shape import TensorSpec
from phlox.transform.summary.evaluate import (
    Calls,
    Evaluation,
    blank,
    blanks_of,
    bytes_of,
    first_states,
    place_of,
    without_values,
)
from phlox.transform.tree import parts_of

_LONGEST = 44
"""The most letters of an output."""


def summarize(
    model: Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
    *,
    training: bool,
    optimizer: Any,
    depth: int | None,
    collapse: bool,
    columns: Sequence[str] | None,
) -> Summary:
    """See `Module.summary`."""
    given = bool(inputs or named)
    chosen = checked_columns(columns, evaluated=given)
    view = with_function_layers(model)
    if training:
        view = view.train()
    evaluation = Evaluation(without_values(view))
    if given:
        place = place_of(view, (inputs, named), training=training)
        args, kwargs = blanks_of((inputs, named), place, training=training)
        evaluation.run(args, kwargs, training=training)
    rows = list(_rows(view, evaluation.calls))
    root = rows[0]
    gradients = sum(_bytes(param) for param in view.params() if param.trained)
    memory = Memory(
        parameters=root.bytes,
        activations=root.activations if given else None,
        gradients=gradients if training or optimizer is not None else None,
        optimizer=None if optimizer is None else _bytes_of_states(optimizer, view),
    )
    return Summary(
        rows=rows,
        parameters=root.parameters,
        trained=root.trained,
        flops=evaluation.work.total if given else None,
        products=evaluation.work.products if given else None,
        memory=memory,
        training=training,
        depth=depth,
        collapse=collapse,
        columns=chosen,
    )


def _bytes(param: Param) -> int:
    return bytes_of(blank(param.shape, param.kind, param.device))


def _rows(model: Module, calls: dict[str, Calls]) -> Iterator[Row]:
    structure = model.structure()
    params_in: defaultdict[str, list[Param]] = defaultdict(list)
    tied_in: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, param in structure.named():
        for outer in outer_paths(name):
            params_in[outer].append(param)
    for alias in structure.aliases.items():
        for outer in outer_paths(alias[0]):
            tied_in[outer].append(alias)
    modules = dict(named_modules(model))
    computed = {path for path, module in modules.items() if isinstance(module, Reparameterization)}
    modules = {path: module for path, module in modules.items() if computed.isdisjoint(outer_paths(path))}
    paths = modules.keys()
    for path, module in modules.items():
        begin = f"{path}." if path else ""
        own = params_in[path]
        known = calls.get(path, Calls())
        yield Row(
            path=path,
            name=layer_name(module),
            depth=depth_of(path, paths),
            calls=known.count,
            outputs=known.outputs,
            output=str(module.shape) if isinstance(module, Reparameterization) else _output(known.outputs),
            parameters=sum(math.prod(param.shape) for param in own),
            trained=sum(math.prod(param.shape) for param in own if param.trained),
            tied=tuple((name, first) for name, first in tied_in[path] if path == "" or not first.startswith(begin)),
            bytes=sum(map(_bytes, own)),
            products=known.work.products,
            flops=known.work.total,
            activations=known.activations,
        )


def _output(value: Any) -> str:
    """The shapes of a result: `(1, 10)`, with the kind if it is not Float."""
    found: list[str] = []

    def visit(part: Any) -> None:
        if isinstance(part, TensorSpec):
            found.append(str(part.shape) if part.kind is Float else f"{part.shape} {part.kind.__name__}")
        else:
            for _, one in parts_of(part) or ():
                visit(one)

    visit(value)
    text = ", ".join(found) if found else "" if value is None else type(value).__name__
    if len(text) <= _LONGEST:
        return text
    return f"{found[0][: _LONGEST - 12]}, and {len(found) - 1} more" if len(found) > 1 else f"{text[: _LONGEST - 3]}..."


def _bytes_of_states(optimizer: Any, model: Module) -> int | None:
    """The bytes of an optimizer's states after its first step; None if it updates all parameters at once."""
    if not isinstance(optimizer, Optimizer) and callable(getattr(optimizer, "init", None)):
        optimizer = optimizer.init()
    if not isinstance(optimizer, Optimizer):
        raise ModuleError(f"summary: optimizer is an optimizer or its config, got {type(optimizer).__name__}")
    if not isinstance(optimizer, OptimizerAdaptor):
        return None
    return sum(bytes_of(tensor) for *_, tensors in first_states(optimizer, model) for tensor in tensors)
