"""`Module.summary`, which is implemented on a floor above, and its result: rows and totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from phlox.backend.registry import load
from phlox.errors import ModuleError
from phlox.host.text import Report
from phlox.module.fields import Fields

if TYPE_CHECKING:
    from phlox.host.page import Page

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
        layer        class       output   parameters   FLOPs
        (the model)  Sequential  (1, 10)       2,410  4.81 k
          layers.0   Linear      (1, 32)       2,080  4.13 k
          layers.1   Relu        (1, 32)                  32
          layers.2   Linear      (1, 10)         330     650
        <BLANKLINE>
        parameters  2,410, all trained
        FLOPs       4.81 k forward, 4.74 k of them in products
        memory      parameters 9.64 kB + activations 296 B = 9.94 kB
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


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Report):
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

    def _page(self) -> Page:
        from phlox.module.pages import page_of_summary

        return page_of_summary(self)

    def to_html(self) -> str:
        """The table as self-contained HTML, for light and dark pages."""
        return self._repr_html_()


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
        children = tuple([(_key(block.row.path, row.path), block.likeness()) for block in self.children])
        return row.name, numbers, outputs, bool(row.tied), children

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
