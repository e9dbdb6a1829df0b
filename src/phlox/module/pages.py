"""Modules, parameters and gradients in notebooks: a tree that folds, and tables; deferred values stay deferred."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

import numpy as np

from phlox.backend import Bool
from phlox.backend.contract.backend import engine_of
from phlox.host.page import MOST_ROWS, Cell, Page, Part, Table, facts
from phlox.host.text import amount, count, short, size
from phlox.module.display import parts_of
from phlox.module.fields import Fields, fields_of
from phlox.module.gradients import GradientsParams
from phlox.module.param import Param
from phlox.module.summary import Row, Summary
from phlox.tensor import Tensor
from phlox.tensor.pages import READ, kind_text, nbytes, page_of_tensor, shape_text
from phlox.tensor.tensor import element_of, state_of

_MOST = 400
"""The most modules of a tree that are shown."""
_ALIKE = 4
"""From this number of consecutive equal modules on, only the first and the count are shown."""
_USED_UP = "donated and used up"
"""The text for a donated parameter."""
_OPEN = 2
"""The tree is open to this depth."""


# --- modules


@dataclass
class _Node:
    """One module in the tree."""

    name: str
    """The name within the outer module."""
    path: str
    cls: str
    mode: str
    options: list[str]
    """Its hyper-parameters and other static fields."""
    params: list[tuple[str, ...]]
    """Name, shape, element type, number of elements, remarks."""
    children: list[_Node] = field(default_factory=list["_Node"])
    count: int = 0
    """The elements of all parameters in it; tied parameters are counted at their first path."""
    trained: int = 0
    bytes: int = 0
    devices: dict[str, None] = field(default_factory=dict[str, None])

    def signature(self) -> tuple[Any, ...]:
        """A key that is equal for modules that look the same."""
        children = tuple((child.name, child.signature()) for child in self.children)
        return self.cls, self.mode, tuple(self.options), tuple(self.params), self.count, self.trained, children


class _Walk:
    """Walks over the fields without checks, so that an invalid module is shown too."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        """The paths of parameters and modules by identity."""
        self.kept: list[Any] = []  # kept alive, so that no other object gets their identity

    def node(self, module: Fields, name: str, path: str, outer_mode: Any) -> _Node:
        cls = type(module).__name__
        if id(module) in self.seen:
            first = self.seen[id(module)] or "the root"
            return _Node(name, path, cls, "", [f"the same module as {first}"], [])
        self.seen[id(module)] = path
        self.kept.append(module)
        fields = fields_of(module)
        training = fields.get("training")
        mode = "" if training is None or training == outer_mode else "training" if training else "inference"
        node = _Node(name, path, cls, mode, [], [])
        for key, value in fields.items():
            if key == "training":
                continue
            parts = list(parts_of(value, str(key)))
            if not parts:
                node.options.append(f"{key}={_option(value)}")
            for part_name, part in parts:
                part_path = f"{path}.{part_name}" if path else part_name
                if isinstance(part, Param):
                    self.add(node, part, part_name, part_path)
                else:
                    child = self.node(part, part_name, part_path, training)
                    node.children.append(child)
                    node.count, node.trained = node.count + child.count, node.trained + child.trained
                    node.bytes += child.bytes
                    node.devices |= child.devices
        return node

    def add(self, node: _Node, param: Param, name: str, path: str) -> None:
        remarks = param.remarks()
        if not param.has_shape:
            node.params.append((name, "", "", "", ", ".join(remarks)))
            return
        count = math.prod(param.shape)
        if id(param) in self.seen:
            remarks.append(f"tied to {self.seen[id(param)]}")
        else:
            self.seen[id(param)] = path
            node.count, node.trained = node.count + count, node.trained + count * bool(param.trained)
            node.bytes += count * param.backend.host_dtype(param.kind).itemsize
            # An engine does not know the device of an array that it has lost.
            node.devices[param.backend.name if _USED_UP in remarks else str(param.device)] = None
        node.params.append((name, shape_text(param.shape), _element(param), f"{count:,}", ", ".join(remarks)))


def _option(value: Any) -> str:
    if isinstance(value, Tensor):
        tensor = cast("Tensor[Any, Any, Any]", value)
        return f"Tensor {kind_text(tensor)} {shape_text(tensor.shape)}"
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return f"array {array.dtype} {shape_text(array.shape)}"
    return short(value)


def _element(param: Param) -> str:
    return "bool" if param.kind is Bool else element_of(param.backend, param.kind)


def page_of_module(module: Fields) -> Page:
    """The tree of a module."""
    node = _Walk().node(module, "", "", None)
    fixed = node.count - node.trained
    trained = "all trained" if not fixed else f"{node.trained:,} trained"
    facts_ = [count(node.count, "parameter"), trained, size(node.bytes), ", ".join(node.devices)[:60]]
    badges = [(node.mode, "")] if node.mode else []
    page = Page(
        node.cls, facts_ if node.count else [], _inside(node, 1, [_MOST]), badges, is_open=True,
        code=", ".join(node.options),
    )  # fmt: skip
    return Page("", parts=[page])


def _inside(node: _Node, depth: int, left: list[int]) -> list[Part]:
    """The parameters and the modules of a module; `left` is the number of modules that may still be shown."""
    rows = [[Cell(name, code=True), *columns[:3], Cell(columns[3], kind="soft")] for name, *columns in node.params]
    parts: list[Part] = [Table(["parameter", "shape", "type", "elements", ""], rows, {0, 1, 2, 4})]
    hidden = 0
    for _, group in groupby(node.children, lambda child: (child.name.rpartition(".")[0], child.signature())):
        equal = list(group)
        shown = equal[:1] if len(equal) >= _ALIKE and equal[0].name.rpartition(".")[2].isdecimal() else equal
        for child in shown:
            if left[0] <= 0:
                hidden += 1
                continue
            left[0] -= 1
            parts.append(_child(child, depth, left))
        if len(shown) < len(equal):
            parts.append(f"{equal[1].path} to {equal[-1].path}: {len(equal) - 1} more like it")
    return [*parts, f"and {hidden:,} more modules" if hidden else ""]


def _child(node: _Node, depth: int, left: list[int]) -> Page:
    badges = [(node.mode, "")] if node.mode else []
    if node.trained < node.count:
        badges.append(("in part trained" if node.trained else "not trained", ""))
    return Page(
        node.cls, [f"{node.count:,}"] if node.count else [], _inside(node, depth + 1, left), badges,
        is_open=depth < _OPEN, path=node.path, code=", ".join(node.options),
    )  # fmt: skip


# --- parameters and gradients


def page_of_param(param: Param) -> Page:
    """A parameter, and its values if they are known."""
    marks = [(remark, "") for remark in param.remarks()]
    if param.trained:
        marks.insert(0, ("trained", "good"))
    has_values = param.is_initialized and not param.is_deferred
    if has_values and _USED_UP not in param.remarks():
        return page_of_tensor(param.val(), name="Param", badges=marks)
    shape = shape_text(param.shape) if param.has_shape else ""
    initializer: Any = getattr(param._deferred, "initializer", None)  # pyright: ignore[reportPrivateUsage]
    note = "" if initializer is None else f"to be created by {short(initializer)} when it is needed"
    return Page("Param", [f"{param.kind.__name__} {_element(param)}", shape], [note], marks)


def page_of_gradients(gradients: GradientsParams) -> Page:
    """Gradients by parameter."""
    tensors = dict(gradients.items())
    total = sum(math.prod(tensor.shape) for tensor in tensors.values())
    has_values = total <= READ and all(
        not state_of(x.backend, x.primitive) and not engine_of(x.backend).is_tracing() for x in tensors.values()
    )
    rows: list[list[str | Cell]] = []
    squares = 0.0
    for id, tensor in tensors.items():
        row: list[str | Cell] = [Cell(id[:8], code=True, title=id), shape_text(tensor.shape), kind_text(tensor)]
        if has_values:
            values = tensor.numpy().astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(np.square(values).sum())
                squares += square
                norm, largest = math.sqrt(square), float(np.abs(values).max(initial=0.0))
            kind = "" if math.isfinite(largest) else "bad"
            row += [Cell(f"{norm:.4g}", kind=kind), Cell(f"{largest:.4g}", kind=kind)]
        rows.append(row)
    bytes_text = size(sum(nbytes(tensor) for tensor in tensors.values()))
    norm = f"norm {math.sqrt(squares):.4g}" if has_values and tensors else ""
    heads = ["id of the parameter", "shape", "type", *(["norm", "largest"] if has_values else [])]
    table = Table(heads, rows, 3, MOST_ROWS)
    return Page("GradientsParams", [f"of {count(len(tensors), 'parameter')}", bytes_text, norm], [table])


# --- the summary of a model

_TITLES = {"path": "layer", "flops": "FLOPs"}
_LEFT = frozenset({"path", "class", "output", "trained"})
"""Columns of words, which are set flush left."""


def _trained(row: Row) -> str:
    """Are its parameters trained?"""
    if not row.parameters:
        return ""
    return "yes" if row.trained == row.parameters else "in part" if row.trained else "no"


def _cells(summary: Summary, row: Row) -> dict[str, str | Cell]:
    """The cells of a row, by column."""
    where = row.span or row.path or "(the model)"
    where = f"{where}  x{row.repeats}" if row.repeats > 1 else where
    memory = row.bytes + row.activations
    return {
        "path": Cell(where, code=True, indent=row.depth),
        "class": f"{row.name} x{row.calls}" if row.calls > 1 else row.name,
        "output": row.output or ("" if row.calls or summary.flops is None else "not called"),
        "parameters": f"{row.parameters:,}" if row.parameters else "tied" if row.tied else "",
        "trained": _trained(row),
        "flops": amount(row.flops) if row.flops else "",
        "memory": size(memory) if memory else "",
    }


def _totals(summary: Summary) -> list[tuple[str, str]]:
    """The lines below the table."""
    memory = summary.memory
    fixed = summary.parameters - summary.trained
    parts = f"{summary.parameters:,}, {f'of which {fixed:,} are not trained' if fixed else 'all trained'}"
    lines = [("parameters", parts if summary.parameters else "none")]
    if summary.flops is not None and summary.products is not None:
        passes = "forward and backward" if summary.training else "forward"
        share = f", {amount(summary.products)} of them in products" if summary.products else ""
        lines.append(("FLOPs", f"{amount(summary.flops)} {passes}{share}"))
    named = (
        ("parameters", memory.parameters),
        ("activations", memory.activations),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
    )
    listed = [f"{name} {size(number)}" for name, number in named if number is not None]
    total = f" = {size(memory.total)}" if len(listed) > 1 else ""
    lines.append(("memory", " + ".join(listed) + total))
    return lines


def _remarks(summary: Summary) -> list[str]:
    """The explanations of the marks that are used in the table."""
    rows = summary.shown()
    lines: list[str] = []
    tied = {pair for row in summary.rows for pair in row.tied}
    lines += [f"tied, and counted once: {path} = {first}" for path, first in sorted(tied)]
    if any(row.repeats > 1 for row in rows):
        lines.append("a path with x2 represents two equal modules; the numbers are for one of them")
    if any(row.calls > 1 for row in rows):
        lines.append("a class with x2 is called twice; the FLOPs are of all calls")
    return lines


def page_of_summary(summary: Summary) -> Page:
    """The table with its totals."""
    names = ("path", "class", *summary.columns)
    rows = [[cells[name] for name in names] for cells in (_cells(summary, row) for row in summary.shown())]
    left = {column for column, name in enumerate(names) if name in _LEFT}
    table = Table([_TITLES.get(name, name) for name in names], rows, left)
    return Page("", parts=[table, facts(_totals(summary)), *_remarks(summary)])
