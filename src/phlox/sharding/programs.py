"""Compiled functions of arrays in slices: the program of a process takes and returns the slices of that process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from phlox.backend.contract.types import Array
from phlox.backend.pytree import PyTreeNode, node_of, register_node
from phlox.sharding.slices import Cut, Slice

if TYPE_CHECKING:
    from phlox.sharding.decorator import Sharded


class _Outcome:
    """The result of a function, with the arrays of this process. Its structure says which of them are slices."""

    __slots__ = ("arrays", "cuts", "node", "structure")

    def __init__(self, arrays: Sequence[Array], node: PyTreeNode, structure: Any, cuts: tuple[Cut | None, ...]) -> None:
        self.arrays, self.node, self.structure, self.cuts = arrays, node, structure, cuts


def _flatten(outcome: _Outcome) -> tuple[Sequence[Array], Any]:
    return outcome.arrays, (outcome.node, outcome.structure, outcome.cuts)


def _unflatten(structure: Any, arrays: Any) -> _Outcome:
    return _Outcome(arrays, *structure)


register_node(PyTreeNode(_Outcome, _flatten, _unflatten))


def compiled(S: Sharded, fn: Callable[[Any, Any], Any], release: Callable[[], object]) -> Callable[[Any, Any], Any]:
    """See `CompilingOps.compile`: a program of the inner backend for each way in which arguments are cut."""
    inner, programs = S.inner, dict[Hashable, Callable[[Any, Any], Any]]()

    def body(cuts: tuple[Any, Any], donated: Any, kept: Any) -> _Outcome:
        result = fn(_to_slices(S, cuts[0], donated), _to_slices(S, cuts[1], kept))
        node = node_of(cast("type[Any]", type(result)))
        leaves, structure = node.flatten(result)
        arrays = list(leaves)
        return _Outcome([_local_arrays(x) for x in arrays], node, structure, tuple([_cuts_of(x) for x in arrays]))

    def run(donated: Any, kept: Any) -> Any:
        cuts = _cuts_of(donated), _cuts_of(kept)
        program = programs.get(cuts)
        if program is None:
            program = programs[cuts] = inner.compile(partial(body, cuts), release)
        outcome: _Outcome = program(_local_arrays(donated), _local_arrays(kept))
        arrays = [_to_slices(S, cut, x) for cut, x in zip(outcome.cuts, outcome.arrays, strict=True)]
        return outcome.node.unflatten(outcome.structure, arrays)

    return run


def _cuts_of(value: Any) -> Any:
    """The cuts of the arrays in lists and tuples; None for a value without slices."""
    if type(value) is Slice:
        return value.cut
    if isinstance(value, (list, tuple)):
        cuts = tuple([_cuts_of(part) for part in cast("Sequence[Any]", value)])
        return None if all(cut is None for cut in cuts) else cuts
    return None


def _local_arrays(value: Any) -> Any:
    if type(value) is Slice:
        return value.value
    if isinstance(value, (list, tuple)):
        parts = [_local_arrays(part) for part in cast("Sequence[Any]", value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _to_slices(S: Sharded, cut: Any, value: Any) -> Any:
    if cut is None:
        return value
    if isinstance(cut, Cut):
        return _slice(S, cut, value)
    parts = [_to_slices(S, inner_cut, part) for inner_cut, part in zip(cut, value, strict=True)]
    return tuple(parts) if isinstance(value, tuple) else parts


def _slice(S: Sharded, cut: Cut, value: Array) -> Slice:
    return Slice(value, cut, cut.whole(S.inner.shape(value)))
