"""From a model and its inputs to a `Summary`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from phlox.backend import Float
from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.calls import FunctionLayer, named_modules, with_function_layers
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.optim.state.tree import flatten
from phlox.tensor import Tensor
from phlox.transform.summary.evaluate import (
    Calls,
    Evaluation,
    abstract_of,
    blank,
    blanks_of,
    bytes_of,
    place_of,
    without_values,
)
from phlox.transform.summary.table import Memory, Row, Summary, checked_columns


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
    places = list(structure.named())
    modules = list(named_modules(model))
    paths = {path for path, _ in modules}
    for path, module in modules:
        begin = f"{path}." if path else ""
        own = [param for name, param in places if name.startswith(begin)]
        tied = [(name, first) for name, first in structure.aliases.items() if name.startswith(begin)]
        known = calls.get(path, Calls())
        yield Row(
            path=path,
            name=_name(module),
            depth=_depth(path, paths),
            calls=known.count,
            outputs=known.outputs,
            parameters=sum(math.prod(param.shape) for param in own),
            trained=sum(math.prod(param.shape) for param in own if param.trained),
            tied=tuple((name, first) for name, first in tied if path == "" or not first.startswith(begin)),
            bytes=sum(map(_bytes, own)),
            products=known.work.products,
            flops=known.work.total,
            activations=known.activations,
        )


def _depth(path: str, paths: set[str]) -> int:
    parts = path.split(".") if path else []
    outer = sum(".".join(parts[:count]) in paths for count in range(1, len(parts)))
    return outer + 1 if path else 0


def _name(module: Module) -> str:
    if not isinstance(module, FunctionLayer):
        return type(module).__name__
    function: Any = module.function
    return str(getattr(function, "__name__", type(function).__name__))


def _bytes_of_states(optimizer: Any, model: Module) -> int | None:
    """The bytes of an optimizer's states after its first step; None if it updates all parameters at once."""
    if not isinstance(optimizer, Optimizer) and callable(getattr(optimizer, "init", None)):
        optimizer = optimizer.init()
    if not isinstance(optimizer, Optimizer):
        raise ModuleError(f"summary: optimizer is an optimizer or its config, got {type(optimizer).__name__}")
    if not isinstance(optimizer, OptimizerAdaptor):
        return None
    twin = optimizer.twin()
    twin.report(model)  # finds the groups, without a step
    total = 0
    for param in model.params():
        if not param.trained:
            continue
        backend = abstract_of(blank((), Float, param.device).backend)
        tensor = Tensor.from_primitive(backend.blank(param.shape, param.kind, param.device), backend, Float)
        leaves: list[Any] = []
        flatten(twin.init_state(tensor, twin.variant(param.id)), leaves)
        total += sum(bytes_of(cast("Any", leaf)) for leaf in leaves if isinstance(leaf, Tensor))
    return total
