"""The nodes of one turn of a loop, taken apart into arrays and what can be made again around others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from phlox.autodiff.tape import Node, Vjp
from phlox.autodiff.tracers import is_free
from phlox.backend.contract import Backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array


class Hidden(Exception):
    """A node keeps arrays where they cannot be reached."""


@dataclass(frozen=True, slots=True)
class Residual:
    """The place of an array that a node has saved: which list, and where in it."""

    group: str
    number: int


@dataclass(frozen=True, slots=True)
class Made:
    """A node that can be made again: what it has saved, with `Residual` in place of arrays."""

    id: int
    parents: tuple[int | None, ...]
    push: Vjp | None
    saved: Any

    def node(self, nodes: dict[int, Node], arrays: Mapping[str, Sequence[Array]]) -> Node:
        """The node around these arrays; `nodes` are those before it."""
        parents = [None if number is None else nodes.get(number) or end(number) for number in self.parents]
        return _node(self.id, tuple(parents), self.push, _filled(self.saved, arrays))


def end(number: int) -> Node:
    """What stands for a node that is not walked back from."""
    return _node(number, (), None, None)


def _node(number: int, parents: tuple[Node | None, ...], push: Vjp | None, saved: Any) -> Node:
    made = object.__new__(Node)
    made.id, made.parents, made.push, made.saved = number, parents, push, saved
    return made


class Saver:
    """Takes nodes apart. `turn` gathers arrays of every turn, `outside` those that are the same in each.

    `entries` are those of the loop's own that are saved, by number.
    """

    def __init__(self, inner: Backend, start: int) -> None:
        self._inner, self._start = inner, start
        self._program = inner.program()
        self._engine = engine_of(inner)
        self._known: dict[int, tuple[Array, Callable[[], Residual]]] = {}
        self._seen: dict[int, Any] = {}
        self.turn: list[Array] = []
        self.outside: list[Array] = []
        self.entries: list[int] = []

    def know_entry(self, x: Array, number: int) -> None:
        """This array is an entry of an array that the loop runs along."""
        self._know(x, lambda: _residual("entry", self.entries, number))

    def know_same(self, x: Array, outside: Array) -> None:
        """This array is, in every turn, one from outside."""
        self._know(x, lambda: _residual("outside", self.outside, outside))

    def _know(self, x: Array, keep: Callable[[], Residual]) -> None:
        self._known[id(x)] = x, keep

    def take_apart(self, node: Node) -> Made:
        """A node in a form that can be made again; `Hidden` where it cannot."""
        if not is_free(node.push, self._engine.is_traced, self._seen):
            raise Hidden
        numbers = tuple([None if parent is None else parent.id for parent in node.parents])
        return Made(node.id, numbers, node.push, self._packed(node.saved))

    def _packed(self, saved: Any) -> Any:
        kind = cast("type[Any]", type(saved))
        if kind is tuple:
            return tuple([self._packed(x) for x in saved])
        if kind is list:
            return [self._packed(x) for x in saved]
        if kind is dict:
            return {key: self._packed(x) for key, x in saved.items()}
        if self._inner.is_traced(saved):
            return self._array(saved)
        if not is_free(saved, self._engine.is_traced, self._seen):
            raise Hidden
        return saved

    def _array(self, x: Array) -> Residual:
        known = self._known.get(id(x))
        if known is None:
            if self._is_outside(x):
                keep = _residual("outside", self.outside, x)
            elif getattr(self._inner.strip(x), "weak_type", False):
                raise Hidden  # a number, which takes on the type of what it meets; an entry of an array would not
            else:
                keep = _residual("turn", self.turn, x)
        else:
            keep = known[1]()
        self._know(x, lambda: keep)
        return keep

    def _is_outside(self, x: Array) -> bool:
        backend, value = self._inner, x
        while (lower := backend.without_tape()) is not None:
            node = backend.node_of(value)
            if node is not None and node.id >= self._start:
                return False
            value, backend = backend.value(value), lower
        return self._inner.program_of(x) is not self._program


def _residual(group: str, arrays: list[Any], x: Any) -> Residual:
    arrays.append(x)
    return Residual(group, len(arrays) - 1)


def _filled(saved: Any, arrays: Mapping[str, Sequence[Array]]) -> Any:
    kind = cast("type[Any]", type(saved))
    if kind is Residual:
        return arrays[saved.group][saved.number]
    if kind is tuple:
        return tuple([_filled(x, arrays) for x in saved])
    if kind is list:
        return [_filled(x, arrays) for x in saved]
    if kind is dict:
        return {key: _filled(x, arrays) for key, x in saved.items()}
    return saved
