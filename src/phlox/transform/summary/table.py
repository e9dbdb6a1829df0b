"""`Summary`: the table of `Module.summary`, with its rows and totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from phlox.errors import ModuleError

COLUMNS = ("output", "parameters", "trained", "flops", "memory")
"""All columns besides the layer's path and class, which are always shown."""


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
        from phlox.transform.summary.text import text

        return text(self)

    def __repr__(self) -> str:
        return str(self)

    def to_html(self) -> str:
        """The table as self-contained HTML, for light and dark pages."""
        from phlox.transform.summary.html import html

        return html(self)

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
    """A row, and the blocks of the modules in it."""

    row: Row
    children: list[_Block]

    def likeness(self) -> tuple[Any, ...]:
        """A key that is equal for blocks that are shown as one."""
        row = self.row
        numbers = row.calls, row.parameters, row.trained, row.products, row.flops, row.activations, row.bytes
        outputs = repr(row.outputs)
        within = tuple([(_key(block.row.path, row.path), block.likeness()) for block in self.children])
        return row.name, numbers, outputs, bool(row.tied), within

    def rows(self) -> list[Row]:
        """The row and the rows inside it, with equal neighbours as one."""
        return [self.row, *_fold(self.children)]


def _key(path: str, outer: str) -> str:
    return path[len(outer) + 1 :] if outer else path


def collapsed(rows: Sequence[Row]) -> list[Row]:
    """The rows; consecutive equal rows whose paths differ only in the last number become one."""
    stack: list[_Block] = []
    roots: list[_Block] = []
    for row in rows:
        block = _Block(row, [])
        while stack and stack[-1].row.depth >= row.depth:
            stack.pop()
        (stack[-1].children if stack else roots).append(block)
        stack.append(block)
    return _fold(roots)


def _fold(blocks: Sequence[_Block]) -> list[Row]:
    rows: list[Row] = []
    position = 0
    while position < len(blocks):
        first = blocks[position]
        likeness = first.likeness()
        stem, _, number = first.row.path.rpartition(".")
        count = 1
        while number.isdigit() and position + count < len(blocks):
            other = blocks[position + count]
            if other.row.path != f"{stem}.{int(number) + count}" or other.likeness() != likeness:
                break
            count += 1
        row, *nested = first.rows()
        if count > 1:
            row = replace(row, repeats=count, span=f"{stem}.{number}-{int(number) + count - 1}")
        rows += [row, *nested]
        position += count
    return rows
