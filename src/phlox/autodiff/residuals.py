"""Templates of the nodes of one step of a loop: the nodes without arrays, to be filled with the arrays of any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from phlox.autodiff.tape import Node, Vjp
from phlox.autodiff.tracers import is_free
from phlox.backend.contract import Backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array


class UnreachableArrays(Exception):
    """A node saves arrays that cannot be found, for example in a closure over an object of an unknown class."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A placeholder in a template for a saved array: its list, and its position there."""

    group: str
    number: int


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node with `Residual` in place of each array that it has saved."""

    id: int
    parents: tuple[int | None, ...]
    vjp: Vjp | None
    saved: Any

    def node(self, nodes: dict[int, Node], arrays: Mapping[str, Sequence[Array]]) -> Node:
        """The node with these arrays in it; `nodes` are the nodes that were created before, by their ids."""
        parents = [None if number is None else nodes.get(number) or end(number) for number in self.parents]
        return _new_node(self.id, tuple(parents), self.vjp, _fill(self.saved, arrays))


def end(node_id: int) -> Node:
    """A placeholder for a node at which the backward pass ends."""
    return _new_node(node_id, (), None, None)


def _new_node(node_id: int, parents: tuple[Node | None, ...], vjp: Vjp | None, saved: Any) -> Node:
    node = object.__new__(Node)
    node.id, node.parents, node.vjp, node.saved = node_id, parents, vjp, saved
    return node


class Saver:
    """Makes templates of nodes, and lists the arrays in them.

    `step` lists the arrays that differ from step to step, `outside` the arrays that are the same in all steps, and
    `entries` the indices of the `xs` whose entries are saved.
    """

    def __init__(self, inner: Backend, start: int) -> None:
        self._inner, self._start = inner, start
        self._program = inner.current_trace()
        self._engine = engine_of(inner)
        self._residuals: dict[int, tuple[Array, Callable[[], Residual]]] = {}
        self._seen: dict[int, Any] = {}
        self.step: list[Array] = []
        self.outside: list[Array] = []
        self.entries: list[int] = []

    def add_entry(self, x: Array, number: int) -> None:
        """Note that this array is the current entry of the x with this number."""
        self._note(x, lambda: _add_residual("entry", self.entries, number))

    def add_constant(self, x: Array, outside: Array) -> None:
        """Note that this array is the same in every step, with the array outside the loop."""
        self._note(x, lambda: _add_residual("outside", self.outside, outside))

    def _note(self, x: Array, residual: Callable[[], Residual]) -> None:
        self._residuals[id(x)] = x, residual

    def template_of(self, node: Node) -> NodeTemplate:
        """The template of a node; raises `UnreachableArrays` if there is none."""
        if not is_free(node.vjp, self._engine.is_traced, self._seen):
            raise UnreachableArrays
        numbers = tuple([None if parent is None else parent.id for parent in node.parents])
        return NodeTemplate(node.id, numbers, node.vjp, self._replace_arrays(node.saved))

    def _replace_arrays(self, saved: Any) -> Any:
        kind = cast("type[Any]", type(saved))
        if kind is tuple:
            return tuple([self._replace_arrays(x) for x in saved])
        if kind is list:
            return [self._replace_arrays(x) for x in saved]
        if kind is dict:
            return {key: self._replace_arrays(x) for key, x in saved.items()}
        if self._inner.is_traced(saved):
            return self._array(saved)
        if not is_free(saved, self._engine.is_traced, self._seen):
            raise UnreachableArrays
        return saved

    def _array(self, x: Array) -> Residual:
        entry = self._residuals.get(id(x))
        if entry is None:
            if self._is_outside(x):
                residual = _add_residual("outside", self.outside, x)
            elif getattr(self._inner.strip(x), "weak_type", False):
                raise UnreachableArrays  # a traced scalar would lose its weak type when the loop saves it
            else:
                residual = _add_residual("step", self.step, x)
        else:
            residual = entry[1]()
        self._note(x, lambda: residual)
        return residual

    def _is_outside(self, x: Array) -> bool:
        backend, value = self._inner, x
        while (lower := backend.without_tape()) is not None:
            node = backend.node_of(value)
            if node is not None and node.id >= self._start:
                return False
            value, backend = backend.value(value), lower
        return self._inner.trace_of(x) is not self._program


def _add_residual(group: str, arrays: list[Any], x: Any) -> Residual:
    arrays.append(x)
    return Residual(group, len(arrays) - 1)


def _fill(saved: Any, arrays: Mapping[str, Sequence[Array]]) -> Any:
    kind = cast("type[Any]", type(saved))
    if kind is Residual:
        return arrays[saved.group][saved.number]
    if kind is tuple:
        return tuple([_fill(x, arrays) for x in saved])
    if kind is list:
        return [_fill(x, arrays) for x in saved]
    if kind is dict:
        return {key: _fill(x, arrays) for key, x in saved.items()}
    return saved
