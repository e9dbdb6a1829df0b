"""`Module.summary`, which is implemented on a floor above, and its result: a table and its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phlox.backend.registry import load
from phlox.errors import ModuleError
from phlox.host.units import amount, size
from phlox.module.fields import Fields

COLUMNS = ("output", "parameters", "trained", "flops", "memory")
"""All columns besides the layer's path and class, which are always shown."""


class Summarized(Fields):
    """Base class with the method `summary`."""

    __slots__ = ()

    def summary(
        self,
        *inputs: Any,
        training: bool = False,
        optimizer: Any = None,
        depth: int | None = None,
        collapse: bool = True,
        columns: Sequence[str] | None = None,
        **named: Any,
    ) -> Summary:
        """A table of this module's layers: their outputs, parameters, FLOPs and memory. `print` it.

        Nothing is computed, on any backend: deferred parameters stay deferred, and random streams and running
        statistics do not change. The row of a module includes all modules in it, over all calls.

        FLOPs are counted from the operations, also in your own layers. In a product, an addition and a multiplication
        count as two. Any other operation counts as one for each element of its result, or of its input if it reduces.

        Args:
            inputs, named: the arguments of a call: `phlox.TensorSpec`s, tensors and NumPy arrays, in lists, tuples and
                dicts, and any other values. Specs and arrays are on the module's device. Without arguments, the table
                has only the parameters.
            training: count the FLOPs of a forward pass in training and of its backward pass.
            optimizer: an optimizer or its config, whose state is counted as memory; unknown for L-BFGS and Optax.
            depth: how deep the table goes; with 1, it has the modules in this one, but not the modules in those.
            collapse: show consecutive equal modules (`blocks.0`, `blocks.1`, ...) as one row.
            columns: which of "output", "parameters", "trained", "flops", "memory" to show, and in which order.

        Raises `UnsupportedError` if the module reads the value of a tensor, and `ModuleError` for an unknown column.

        >>> import phlox as px
        >>> from phlox import nn
        >>> model = nn.Sequential([nn.Linear(64, 32), nn.Relu(), nn.Linear(32, 10)])
        >>> print(model.summary(px.TensorSpec((1, 64)), columns=["output", "parameters", "flops"]))
        layer        class       output   parameters  FLOPs
        ---------------------------------------------------
        (the model)  Sequential  (1, 10)       2,410  4.8 k
        layers.0     Linear      (1, 32)       2,080  4.1 k
        layers.1     Relu        (1, 32)                 32
        layers.2     Linear      (1, 10)         330    650
        ---------------------------------------------------
        parameters: 2,410, all trained
        FLOPs: 4.8 k forward, 4.7 k of them in products
        memory: parameters 9.4 KiB + activations 296 B = 9.7 KiB
        """
        summarize = load("phlox.transform.summary:summarize")  # the floor above, by its location
        options = {"optimizer": optimizer, "depth": depth, "collapse": collapse, "columns": columns}
        return summarize(self, inputs, named, training=training, **options)


@dataclass(frozen=True, slots=True)
class Row:
    """One module, including all modules in it, over all its calls."""

    path: str
    """`layers.0`; the model itself is the empty string."""
    name: str
    """The name of its class, or of the function if it is one."""
    depth: int
    """The number of modules around it."""
    calls: int
    """The number of calls."""
    outputs: Any
    """The result of the first call, with a `TensorSpec` in place of each tensor; None if it is not called."""
    output: str
    """The shapes in `outputs`, as text."""
    parameters: int
    """The number of elements of its parameters, without those tied to an earlier parameter outside of it."""
    trained: int
    """The number of these elements that are trained."""
    tied: tuple[tuple[str, str], ...]
    """Paths of the parameters that are not counted, with the paths that they are tied to."""
    bytes: int
    """The bytes of the counted parameters."""
    products: int
    """Floating-point operations of matrix products and convolutions."""
    flops: int
    """All floating-point operations."""
    activations: int
    """The bytes of the results of the modules in it that call no other module, or of its own results."""
    repeats: int = 1
    """The number of equal modules that this row represents; more than one only if rows are collapsed."""
    span: str = ""
    """The paths of a collapsed row: `blocks.0-11`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of the model, in bytes; None means unknown."""

    parameters: int
    activations: int | None
    """An estimate for one call: the results of all modules that call no other module.

    Operations in a layer may save more for the backward pass, and results that share memory are counted too.
    """
    gradients: int | None
    """The gradients of trained parameters; None without `training`."""
    optimizer: int | None
    """The state of the given optimizer after its first step."""

    @property
    def total(self) -> int:
        """The sum of the known parts."""
        return sum(part or 0 for part in (self.parameters, self.activations, self.gradients, self.optimizer))


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of `Module.summary`: print it, or show it in a notebook."""

    rows: list[Row]
    """Every module, the model first, in the order of declaration."""
    parameters: int
    """The number of elements of all parameters; tied ones count once."""
    trained: int
    """The number of these elements that are trained."""
    flops: int | None
    """Floating-point operations of one call; with `training`, of its forward and backward pass. None without inputs."""
    products: int | None
    """The part of `flops` in matrix products and convolutions."""
    memory: Memory
    training: bool
    depth: int | None
    collapse: bool
    columns: tuple[str, ...]

    def shown(self) -> list[Row]:
        """The rows that are shown: none deeper than `depth`, and consecutive equal modules as one if `collapse`."""
        rows = [row for row in self.rows if self.depth is None or row.depth <= self.depth]
        return collapsed(rows) if self.collapse else rows

    def row(self, path: str) -> Row:
        """The row of a path; raises `ModuleError` if there is none."""
        for row in self.rows:
            if row.path == path:
                return row
        raise ModuleError(f"summary: there is no module `{path}`; there are {', '.join(r.path for r in self.rows[1:])}")

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        return str(self)

    def to_html(self) -> str:
        """The table as self-contained HTML, for light and dark pages."""
        from phlox.module.html import html_of_summary

        return html_of_summary(self)

    def _repr_html_(self) -> str:
        return self.to_html()


def checked_columns(columns: Sequence[str] | None, *, evaluated: bool) -> tuple[str, ...]:
    """The columns in the given order; by default all that have content."""
    if columns is None:
        return COLUMNS if evaluated else ("parameters", "trained", "memory")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise ModuleError(f"summary: there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return names


# --- equal blocks as one


@dataclass(slots=True)
class _Block:
    """A row with those of the modules in it."""

    row: Row
    inside: list[_Block]

    def likeness(self) -> tuple[Any, ...]:
        """A key that is equal for blocks that are shown as one."""
        row = self.row
        numbers = row.calls, row.parameters, row.trained, row.products, row.flops, row.activations, row.bytes
        outputs = repr(row.outputs)
        within = tuple([(_key(block.row.path, row.path), block.likeness()) for block in self.inside])
        return row.name, numbers, outputs, bool(row.tied), within

    def rows(self) -> list[Row]:
        """The row and those inside, equal neighbours as one."""
        return [self.row, *_folded(self.inside)]


def _key(path: str, outer: str) -> str:
    return path[len(outer) + 1 :] if outer else path


def collapsed(rows: Sequence[Row]) -> list[Row]:
    """The rows, with consecutive equal ones whose paths differ only in the last number as one."""
    stack: list[_Block] = []
    roots: list[_Block] = []
    for row in rows:
        block = _Block(row, [])
        while stack and stack[-1].row.depth >= row.depth:
            stack.pop()
        (stack[-1].inside if stack else roots).append(block)
        stack.append(block)
    return _folded(roots)


def _folded(blocks: Sequence[_Block]) -> list[Row]:
    found: list[Row] = []
    place = 0
    while place < len(blocks):
        first = blocks[place]
        likeness = first.likeness()
        stem, _, number = first.row.path.rpartition(".")
        count = 1
        while number.isdigit() and place + count < len(blocks):
            other = blocks[place + count]
            if other.row.path != f"{stem}.{int(number) + count}" or other.likeness() != likeness:
                break
            count += 1
        row, *inside = first.rows()
        if count > 1:
            row = replace(row, repeats=count, span=f"{stem}.{number}-{int(number) + count - 1}")
        found += [row, *inside]
        place += count
    return found


# --- the text

TITLES = {
    "output": "output", "parameters": "parameters", "trained": "trained", "flops": "FLOPs", "memory": "memory",
}  # fmt: skip
LEFT = frozenset({"path", "class", "output", "trained"})
"""Columns of words, which are set flush left."""


def trained(row: Row) -> str:
    """Are its parameters trained?"""
    if not row.parameters:
        return ""
    return "yes" if row.trained == row.parameters else "in part" if row.trained else "no"


def _parameters(row: Row) -> str:
    counted = f"{row.parameters:,}" if row.parameters else ""
    return counted or ("tied" if row.tied else "")


def cells(summary: Summary, row: Row) -> dict[str, str]:
    """The cells of a row, by column."""
    called = row.calls > 0
    evaluated = summary.flops is not None
    where = row.span or row.path or "(the model)"
    every: dict[str, Callable[[], str]] = {
        "path": lambda: f"{where}  x{row.repeats}" if row.repeats > 1 else where,
        "class": lambda: f"{row.name} x{row.calls}" if row.calls > 1 else row.name,
        "output": lambda: row.output if called else "not called" if evaluated else "",
        "parameters": lambda: _parameters(row),
        "trained": lambda: trained(row),
        "flops": lambda: amount(row.flops) if row.flops else "",
        "memory": lambda: size(row.bytes + row.activations) if row.bytes + row.activations else "",
    }
    return {name: every[name]() for name in ("path", "class", *summary.columns)}


def totals(summary: Summary) -> list[tuple[str, str]]:
    """The lines below the table."""
    memory = summary.memory
    fixed = summary.parameters - summary.trained
    parts = f"{summary.parameters:,}" + (f", of which {fixed:,} are not trained" if fixed else ", all trained")
    found = [("parameters", parts if summary.parameters else "none")]
    if summary.flops is not None and summary.products is not None:
        passes = "forward and backward" if summary.training else "forward"
        share = f", {amount(summary.products)} of them in products" if summary.products else ""
        found.append(("FLOPs", f"{amount(summary.flops)} {passes}{share}"))
    named = (
        ("parameters", memory.parameters),
        ("activations", memory.activations),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
    )
    listed = [f"{name} {size(number)}" for name, number in named if number is not None]
    whole = f" = {size(memory.total)}" if len(listed) > 1 else ""
    found.append(("memory", " + ".join(listed) + whole))
    return found


def remarks(summary: Summary) -> list[str]:
    """The explanations of the marks that are used in the table."""
    rows = summary.shown()
    found: list[str] = []
    tied = {pair for row in summary.rows for pair in row.tied}
    found += [f"tied, and counted once: {path} = {first}" for path, first in sorted(tied)]
    if any(row.repeats > 1 for row in rows):
        found.append("a path with x2 stands for two equal modules; the numbers are of one of them")
    if any(row.calls > 1 for row in rows):
        found.append("a class with x2 is called twice; the FLOPs are of all calls")
    return found


def text(summary: Summary) -> str:
    """The table with its totals."""
    head = {"path": "layer", "class": "class", **TITLES}
    names = ("path", "class", *summary.columns)
    lines = [{name: head[name] for name in names}, *[cells(summary, row) for row in summary.shown()]]
    widths = {name: max(len(line[name]) for line in lines) for name in names}

    def joined(line: dict[str, str]) -> str:
        cut = [line[name].ljust(widths[name]) if name in LEFT else line[name].rjust(widths[name]) for name in names]
        return "  ".join(cut).rstrip()

    rule = "-" * (sum(widths.values()) + 2 * (len(names) - 1))
    below = [f"{name}: {what}" for name, what in totals(summary)]
    return "\n".join([joined(lines[0]), rule, *map(joined, lines[1:]), rule, *below, *remarks(summary)])
