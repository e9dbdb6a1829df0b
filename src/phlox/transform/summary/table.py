"""`Summary`: the table itself, its rows and totals, for programs as for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from phlox.errors import ModuleError

COLUMNS = ("output", "parameters", "trained", "flops", "memory")
"""All columns beside the layer's path and class, which are always there."""


@dataclass(frozen=True, slots=True)
class Row:
    """One module, with all modules in it, over all its calls."""

    path: str
    """`layers.0`; the model itself is the empty string."""
    name: str
    """Its class; of a function among layers, the function's name."""
    depth: int
    """In how many modules it stands."""
    calls: int
    """How often it was called."""
    outputs: Any
    """What the first call returns, a `TensorSpec` in place of each tensor; None where it is not called."""
    parameters: int
    """The elements of its parameters, but for those that are tied to a parameter outside of it that stands earlier."""
    trained: int
    """Those of them that are trained."""
    tied: tuple[tuple[str, str], ...]
    """Its parameters that are not counted, and those that they are tied to, by path."""
    bytes: int
    """Of its parameters, as they are counted."""
    products: int
    """Floating-point operations of matrix products and convolutions."""
    flops: int
    """All floating-point operations."""
    activations: int
    """Bytes of the results of the modules in it that call no other, or of its own."""
    repeats: int = 1
    """How many equal rows this one stands for; more than one only where rows are collapsed."""
    span: str = ""
    """Of several, the paths of all: `blocks.0-11`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the model takes, in bytes; None is not known."""

    parameters: int
    activations: int | None
    """Of one call: the results of all modules that call no other module, which the backward pass may need.

    That is an estimate: operations within a layer may keep more, and a result that shares memory counts too.
    """
    gradients: int | None
    """Of trained parameters; None unless `training` was asked for."""
    optimizer: int | None
    """The state of the optimizer that was given, after its first step."""

    @property
    def total(self) -> int:
        """The sum of what is known."""
        return sum(part or 0 for part in (self.parameters, self.activations, self.gradients, self.optimizer))


@dataclass(frozen=True, slots=True)
class Summary:
    """What `Module.summary` has found: print it, or look at it in a notebook."""

    rows: list[Row]
    """Every module, the model first, in the order of declaration."""
    parameters: int
    """The elements of all parameters, tied ones counted once."""
    trained: int
    """Those of them that are trained."""
    flops: int | None
    """Floating-point operations of one call; with `training`, of its forward and backward pass. None without inputs."""
    products: int | None
    """Those of them in matrix products and convolutions."""
    memory: Memory
    training: bool
    depth: int | None
    collapse: bool
    columns: tuple[str, ...]

    def shown(self) -> list[Row]:
        """The rows of the table: none deeper than `depth`, and equal neighbours as one if `collapse`."""
        rows = [row for row in self.rows if self.depth is None or row.depth <= self.depth]
        return collapsed(rows) if self.collapse else rows

    def row(self, path: str) -> Row:
        """The row of a path; `ModuleError` where there is none."""
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
        """The table as a piece of HTML, for light and dark pages, that needs nothing else."""
        from phlox.transform.summary.html import html

        return html(self)

    def _repr_html_(self) -> str:
        return self.to_html()


def checked_columns(columns: Sequence[str] | None, *, evaluated: bool) -> tuple[str, ...]:
    """The columns in the order given; all that say something unless given."""
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
        """What is equal for blocks that are shown as one."""
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
    """The rows with equal neighbours, which differ in the last number of their path alone, as one."""
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
