"""Modules, parameters, gradients and summaries in notebooks: trees that fold, and tables; deferred values stay so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

import numpy as np

from phlox.backend import Bool
from phlox.backend.contract.backend import engine_of
from phlox.host.html import (
    Cell,
    badge,
    bounded,
    counted,
    escape,
    facts,
    fold,
    fragment,
    header,
    paragraph,
    representation,
    short,
    table,
)
from phlox.host.units import size as bytes_text
from phlox.module.fields import Fields, fields_of
from phlox.module.gradients import GradientsParams
from phlox.module.param import Param
from phlox.module.summary import LEFT, TITLES, Row, Summary, cells, remarks, totals
from phlox.tensor import Tensor
from phlox.tensor.html import READ, body, kind_text, nbytes, shape_text
from phlox.tensor.tensor import element_of, state_of

_MOST = 400
"""So many modules of a tree are shown."""
_ALIKE = 4
"""From this number of consecutive equal modules on, only the first and the count are shown."""
_USED_UP = "donated and used up"
"""The text for a donated parameter."""
_OPEN = 2
"""The tree is open to this depth."""


def html_of_module(module: Fields) -> str:
    """The representation of a module."""
    return representation(module, _module)


def html_of_param(param: Param) -> str:
    """The representation of a parameter."""
    return representation(param, _param)


def html_of_gradients(gradients: GradientsParams) -> str:
    """The representation of gradients by parameter."""
    return representation(gradients, _gradients)


# --- modules


@dataclass
class _Node:
    """One module in the tree."""

    name: str
    """Within the module around."""
    path: str
    cls: str
    mode: str
    options: list[str]
    """Its hyper-parameters and other static fields."""
    params: list[tuple[str, ...]]
    """Name, shape, element type, number of elements, remarks."""
    children: list[_Node] = field(default_factory=list["_Node"])
    count: int = 0
    """The elements of all parameters in it, tied ones counted where they stand first."""
    trained: int = 0
    bytes: int = 0
    devices: dict[str, None] = field(default_factory=dict[str, None])

    def signature(self) -> tuple[Any, ...]:
        """A key that is equal for modules that are shown the same."""
        below = tuple((child.name, child.signature()) for child in self.children)
        return self.cls, self.mode, tuple(self.options), tuple(self.params), self.count, self.trained, below


class _Walk:
    """Walks over the fields without checks, so that an invalid module is shown too."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        """The paths of parameters and modules by identity."""
        self.kept: list[Any] = []  # so that identities stay theirs

    def node(self, module: Fields, name: str, path: str, around: Any) -> _Node:
        cls = type(module).__name__
        if id(module) in self.seen:
            first = self.seen[id(module)] or "the root"
            return _Node(name, path, cls, "", [f"the same module as {first}"], [])
        self.seen[id(module)] = path
        self.kept.append(module)
        fields = fields_of(module)
        training = fields.get("training")
        mode = "" if training is None or training == around else "training" if training else "inference"
        node = _Node(name, path, cls, mode, [], [])
        for key, value in fields.items():
            if key == "training":
                continue
            found = list(_parts(value, str(key)))
            if not found:
                node.options.append(f"{key}={_option(value)}")
            for place, part in found:
                below = f"{path}.{place}" if path else place
                if isinstance(part, Param):
                    self.add(node, part, place, below)
                else:
                    child = self.node(part, place, below, training)
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
            # An engine does not know where an array was that it has lost.
            node.devices[param.backend.name if _USED_UP in remarks else str(param.device)] = None
        node.params.append((name, shape_text(param.shape), _element(param), f"{count:,}", ", ".join(remarks)))


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The modules and parameters of a field, with their paths within the module."""
    if isinstance(value, (Fields, Param)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from _parts(part, f"{name}.{number}")
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _parts(part, f"{name}.{key}")


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


def _module(module: Fields) -> str:
    node = _Walk().node(module, "", "", None)
    fixed = node.count - node.trained
    trained = "" if not node.count else "all trained" if not fixed else f"{node.trained:,} trained"
    said = (counted(node.count, "parameter"), trained, bytes_text(node.bytes), ", ".join(node.devices)[:60])
    head = header(node.cls, *(said if node.count else ()), badges=[(node.mode, "")] if node.mode else [])
    return fold(f"{head} {_options(node)}", _inside(node, 1, [_MOST]), is_open=True)


def _options(node: _Node) -> str:
    return f'<code class="soft">{escape(", ".join(node.options))}</code>' if node.options else ""


def _inside(node: _Node, depth: int, left: list[int]) -> str:
    """The parameters and the modules of a module; `left` counts how many modules may still be shown."""
    own = ""
    if node.params:
        rows = [[Cell(name, code=True), *rest[:3], Cell(rest[3], kind="soft")] for name, *rest in node.params]
        own = table(["parameter", "shape", "type", "elements", ""], rows, left={0, 1, 2, 4})
    lines: list[str] = []
    for _, group in groupby(node.children, lambda child: (child.name.rpartition(".")[0], child.signature())):
        same = list(group)
        shown = same[:1] if len(same) >= _ALIKE and same[0].name.rpartition(".")[2].isdecimal() else same
        for child in shown:
            if left[0] <= 0:
                lines.append("")
                continue
            left[0] -= 1
            lines.append(_child(child, depth, left))
        if len(shown) < len(same):
            lines.append(paragraph(f"{same[1].path} to {same[-1].path}: {len(same) - 1} more like it"))
    hidden = lines.count("")
    return own + "".join(lines) + (paragraph(f"and {hidden:,} more modules") if hidden else "")


def _child(node: _Node, depth: int, left: list[int]) -> str:
    count = f'<span class="soft">· {node.count:,}</span>' if node.count else ""
    marks = badge(node.mode) if node.mode else ""
    if node.count and not node.trained:
        marks += badge("not trained")
    elif node.trained < node.count:
        marks += badge("in part trained")
    line = f"<code>{escape(node.path)}</code> <b>{escape(node.cls)}</b> {count} {marks} {_options(node)}"
    return fold(line, _inside(node, depth + 1, left), is_open=depth < _OPEN)


# --- parameters and gradients


def _param(param: Param) -> str:
    marks = [(remark, "") for remark in param.remarks()]
    if param.trained:
        marks.insert(0, ("trained", "good"))
    known = param.is_initialized and not param.is_deferred
    if known and _USED_UP not in param.remarks():
        return body(param.val(), name="Param", badges=marks)
    shape = shape_text(param.shape) if param.has_shape else ""
    head = header("Param", f"{param.kind.__name__} {_element(param)}", shape, badges=marks)
    how: Any = getattr(param._deferred, "initializer", None)  # pyright: ignore[reportPrivateUsage]
    return f"<div>{head}</div>{paragraph(f'to be made by {short(how)} when it is needed') if how is not None else ''}"


def _gradients(gradients: GradientsParams) -> str:
    tensors = dict(gradients.items())
    total = sum(math.prod(tensor.shape) for tensor in tensors.values())
    known = total <= READ and all(
        not state_of(x.backend, x.primitive) and not engine_of(x.backend).is_tracing() for x in tensors.values()
    )
    rows: list[list[str | Cell]] = []
    squares = 0.0
    for id, tensor in tensors.items():
        row: list[str | Cell] = [Cell(id[:8], code=True, title=id), shape_text(tensor.shape), kind_text(tensor)]
        if known:
            found = tensor.numpy().astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(np.square(found).sum())
                squares += square
                norm, largest = math.sqrt(square), float(np.abs(found).max(initial=0.0))
            kind = "" if math.isfinite(largest) else "bad"
            row += [Cell(f"{norm:.4g}", kind=kind), Cell(f"{largest:.4g}", kind=kind)]
        rows.append(row)
    size = sum(nbytes(tensor) for tensor in tensors.values())
    norm = f"norm {math.sqrt(squares):.4g}" if known and tensors else ""
    head = header("GradientsParams", f"of {counted(len(tensors), 'parameter')}", bytes_text(size), norm)
    heads = ["id of the parameter", "shape", "type", *(["norm", "largest"] if known else [])]
    return f"<div>{head}</div>{bounded(heads, rows, left=3)}"


def html_of_summary(summary: Summary) -> str:
    """A table of the layers with its totals."""
    names = ("path", "class", *summary.columns)
    head = {"path": "layer", "class": "class", **TITLES}
    rows = [_summary_row(summary, row, names) for row in summary.shown()]
    left = {place for place, name in enumerate(names) if name in LEFT}
    notes = "".join(map(paragraph, remarks(summary)))
    return fragment(table([head[name] for name in names], rows, left=left) + facts(totals(summary)) + notes)


def _summary_row(summary: Summary, row: Row, names: tuple[str, ...]) -> list[Cell]:
    shown = cells(summary, row)
    return [Cell(shown[n], code=n == "path", indent=row.depth if n == "path" else 0) for n in names]
