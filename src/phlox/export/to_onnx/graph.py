"""The graph while it is written: nodes in order, constants once, the sizes of open axes as values of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phlox.backend.tracing.dimension import Dimension, DimensionReal, Terms, terms_of
from phlox.errors import ExportError
from phlox.export.lines import line_of_caller
from phlox.host.signal_guard import scope

OPSETS = (18, 25)
"""The lowest and the highest version of the operator set that can be written."""

_WIDE = np.dtype(np.int64)


@dataclass(slots=True, eq=False)
class Node:
    """One operator of the graph."""

    op: str
    name: str
    inputs: list[str]
    """Names of values; empty for an optional one that is left out."""
    outputs: list[str]
    attributes: dict[str, Any]
    path: str
    """The layer that made it: `blocks.0.attention`, empty for the model itself."""
    line: str
    """The line of code in a layer or the user's program: `model.py:12`."""


@dataclass(slots=True)
class Interface:
    """An input or an output."""

    name: str
    element: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Graph:
    """The graph to write, for one version of the operator set; `outer` is the graph around the body of a loop."""

    opset: int
    outer: Graph | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    inputs: list[Interface] = field(default_factory=list[Interface])
    outputs: list[Interface] = field(default_factory=list[Interface])
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    """Host arrays by path."""
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    paths: list[str] = field(default_factory=list[str])
    """The layers that are being called, the innermost last."""
    axes: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """The input and axis from which the size of an open axis is read."""

    refusal: str | None = None
    """The first message of `refuse`."""

    def __post_init__(self) -> None:
        outer = self.outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.root: Graph = self if outer is None else outer.root
        self._results: dict[Any, list[str]] = {}
        self._name_counts: dict[str, int] = {} if outer is None else outer._name_counts
        self._homes: dict[str, Graph] = {} if outer is None else outer._homes
        self._shared: dict[Any, str] = {} if outer is None else outer._shared
        self.makers: dict[str, Node] = {} if outer is None else outer.makers
        if outer is not None:
            self.paths = outer.paths

    # --- names

    def fresh(self, name: str) -> str:
        """A name that is not used yet."""
        count = self._name_counts.get(name, 0)
        self._name_counts[name] = count + 1
        return self.fresh(f"{name}_{count}") if count else name

    def note_home(self, name: str) -> str:
        """Note that this graph makes a value of this name."""
        self._homes[name] = self
        return name

    def produced_here(self, name: str) -> bool:
        """Is this the name of a result of a node of this graph?"""
        return self._homes.get(name) is self and name in self.makers

    # --- nodes

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, /, **attributes: Any) -> list[str]:
        """The results of an operator, or the results of an equal node if there is one.

        In the body of a loop, a node that depends on nothing in the body is put outside of the body.
        """
        if any(isinstance(value, Graph) for value in attributes.values()):
            return self._add(op, list(inputs), outputs, attributes)  # a body may read anything that is made here
        homes = [self._homes.get(name) for name in inputs]
        home = max((graph for graph in homes if graph is not None), key=lambda graph: graph.depth, default=self.root)
        return home._add(op, list(inputs), outputs, attributes)

    def _add(self, op: str, inputs: list[str], outputs: int, attributes: dict[str, Any]) -> list[str]:
        key = (op, tuple(inputs), tuple(sorted((name, _hashable(value)) for name, value in attributes.items())))
        results = self._results.get(key)
        if results is not None and len(results) >= outputs:
            return results
        path = self.paths[-1] if self.paths else ""
        name = self.fresh(f"{path}/{op}" if path else op)
        names = [name, *[self.fresh(f"{name}:{index}") for index in range(1, outputs)]]
        self.nodes.append(Node(op, name, inputs, names, attributes, path, line_of_caller()))
        for output in names:
            self.note_home(output)
            self.makers[output] = self.nodes[-1]
        self._results[key] = names
        return names

    # --- constants

    def constant(self, value: Any, dtype: np.dtype[Any] | None = None) -> str:
        """The name of a constant; equal constants are stored once."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        name = self._shared.get(key)
        if name is None:
            kind = "shape" if array.dtype == _WIDE and array.ndim < 2 else "constant"
            text = "_".join(map(str, array.ravel().tolist())) if array.size < 6 and array.dtype.kind in "i" else ""
            name = self.fresh(f"{kind}_{text}".rstrip("_").replace("-", "m"))
            self._shared[key] = name
            self.root.constants[name] = array
        return name

    def integers(self, values: Iterable[int]) -> str:
        """A constant vector of 64-bit integers, the form of shapes and axes."""
        return self.constant(np.array([*map(int, values)], _WIDE))

    # --- sizes of open axes

    def size(self, size: int) -> str:
        """A size as a vector of one 64-bit integer."""
        return self._terms(terms_of(size))

    def scalar_size(self, size: int, dtype: np.dtype[Any], type_of: int) -> str:
        """A size as a scalar of this type."""
        if not isinstance(size, Dimension):
            return self.constant(np.array(size, dtype))
        scalar = self.add("Squeeze", [self.size(size), self.integers([0])])[0]
        return scalar if dtype == _WIDE else self.add("Cast", [scalar], to=type_of)[0]

    def vector(self, sizes: Sequence[int]) -> str:
        """Sizes as a vector."""
        parts: list[str] = []
        constants: list[int] = []
        for size in sizes:
            if isinstance(size, Dimension):
                parts += [self.integers(constants)] if constants else []
                constants = []
                parts.append(self.size(size))
            else:
                constants.append(size)
        parts += [self.integers(constants)] if constants or not parts else []
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=0)[0]

    def _terms(self, terms: Terms) -> str:
        total: str | None = None
        constant = sum(count for monomial, count in terms if not monomial)
        for monomial, count in terms:
            if not monomial:
                continue
            product = self._atom(monomial[0])
            for atom in monomial[1:]:
                product = self.add("Mul", [product, self._atom(atom)])[0]
            if count != 1:
                product = self.add("Mul", [product, self.integers([count])])[0]
            total = product if total is None else self.add("Add", [total, product])[0]
        if total is None:
            return self.integers([constant])
        return total if not constant else self.add("Add", [total, self.integers([constant])])[0]

    def _atom(self, atom: Any) -> str:
        if isinstance(atom, str):
            name, axis = self.root.axes[atom]
            return self.add("Shape", [name], start=axis, end=axis + 1)[0]
        operation, left, right = atom
        op = {"floordiv": "Div", "min": "Min", "max": "Max"}[operation]
        x, y = self._terms(left), self._terms(right)
        if op == "Div" and any(monomial for monomial, _ in right):  # the divisor may be the size of an empty axis
            y = self.add("Where", [self.add("Equal", [y, self.integers([0])])[0], self.integers([1]), y])[0]
        if op == "Div" and _needs_remainder(left):
            x = self.add("Sub", [x, self.add("Mod", [x, y])[0]])[0]
        return self.add(op, [x, y])[0]

    def real(self, value: DimensionReal, dtype: np.dtype[Any], type_of: int) -> str:
        """A number that depends on sizes, as a scalar of this type."""
        name, *operands = value.tree
        op = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow"}[name]
        names = [
            self.real(x, dtype, type_of)
            if isinstance(x, DimensionReal)
            else self.scalar_size(x, dtype, type_of)
            if isinstance(x, Dimension)
            else self.constant(np.array(x, dtype))
            for x in operands
        ]
        return self.add(op, names)[0]

    # --- where in the model

    def where(self, line: str | None = None) -> str:
        """The layer that is being called, and the line, for messages."""
        path, line = self.paths[-1] if self.paths else "", line_of_caller() if line is None else line
        layer = f"layer `{path}`" if path else "the model"
        return f"{layer} ({line})" if line else layer

    def refuse(self, reason: str) -> ExportError:
        """The error for an operation that a graph cannot have."""
        self.root.refusal = f"export.onnx: {self.where()}: {reason}"
        return ExportError(self.root.refusal)


_current: ContextVar[Graph | None] = ContextVar("phlox_onnx_graph", default=None)


def writing(graph: Graph) -> AbstractContextManager[Graph | None]:
    """A scope in which operations are written into this graph."""
    return scope(_current, graph)


def current() -> Graph:
    """The graph that is being written."""
    graph = _current.get()
    if graph is None:
        raise ExportError("export.onnx: a value of a graph is used outside of the export that made it")
    return graph


def _needs_remainder(dividend: Terms) -> bool:
    """Must the remainder be subtracted before a Div? Div rounds toward zero, and the dividend may be negative.

    A constant needs it too: it may be negative, and onnxruntime computes a / b as a * (1 / b), even for integers.
    """
    return any(monomial and count < 0 for monomial, count in dividend) or not any(monomial for monomial, _ in dividend)


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))  # pyright: ignore[reportUnknownArgumentType]
    return id(value) if isinstance(value, Graph) else value
