"""Loops: over the examples, for functions without a batched form; and `scan` for all examples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from phlox.backend.contract.types import Array
from phlox.batching.mapped import MappedOps
from phlox.errors import UnsupportedError

Body: TypeAlias = Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]]
"""`(carry, x) -> (carry, y)`, a step of a loop."""


def each(M: MappedOps, fn: Callable[..., Any], arrays: Sequence[Array]) -> Any:
    """Call `fn` with the inner arrays of every example, and return the results, one or several, as a batch.

    Without a mapped array it is called once. Raises `UnsupportedError` if the shapes of results differ.
    """
    if not any(type(x) is M.box for x in arrays):
        return fn(*arrays)
    size = M.size(arrays)
    if size == 0:
        raise UnsupportedError("this goes from example to example inside phlox.vmap, and there is none in the batch")
    found = [fn(*[_example(M, x, number) for x in arrays]) for number in range(size)]
    return _stacked_results(M, found)


def _example(M: MappedOps, x: Array, number: int) -> Array:
    if type(x) is not M.box:
        return x
    shape = M.inner.shape(x.value)
    return M.inner.index(x.value, (number, *[slice(0, size, 1) for size in shape[1:]]))


def _stacked_results(M: MappedOps, found: list[Any]) -> Any:
    """The results of all examples, arrays or nested containers of them, as batched ones."""
    first = found[0]
    if isinstance(first, (tuple, list)):
        parts = [_stacked_results(M, list(part)) for part in zip(*found, strict=True)]
        return type(cast("list[Any]", first))(parts)
    if isinstance(first, dict):
        return {key: _stacked_results(M, [one[key] for one in found]) for key in cast("dict[Any, Any]", first)}
    shapes = {M.inner.shape(one) for one in found}
    if len(shapes) > 1:
        raise UnsupportedError(
            f"the shape of the result depends on the example inside phlox.vmap: {', '.join(map(str, shapes))}; "
            "use phlox.where(mask, x, other) or x.masked_fill(mask, value)"
        )
    return M.boxed(M.inner.concat([M.inner.reshape(one, (1, *M.inner.shape(one))) for one in found], 0))


class _BatchedCarry(Exception):
    """Some of the carry, the same for all examples at the start, differs between them after a step."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes


def scan(
    M: MappedOps, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """`Backend.scan` as one loop of the inner backend, over arrays of all examples."""
    start = list(carry)
    while True:
        try:
            return _scan(M, body, start, xs, length, reverse)
        except _BatchedCarry as found:
            for place, size in found.sizes.items():
                start[place] = M.boxed(M.spread(start[place], size))


def _scan(
    M: MappedOps, body: Body, start: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """As `scan`; raises `_BatchedCarry` if some of the carry gets a batch axis that it had not at the start."""
    sizes = [M.size([x]) if type(x) is M.box else None for x in start]
    in_carry, in_xs = [size is not None for size in sizes], [type(x) is M.box for x in xs]
    in_ys: list[bool] = []  # set when the body runs

    def step(state: tuple[Array, ...], one: tuple[Array, ...]) -> tuple[list[Array], list[Array]]:
        after, ys = body(_boxed(M, state, in_carry), _boxed(M, one, in_xs))
        wider = {i: M.size([x]) for i, x in enumerate(after) if type(x) is M.box and not in_carry[i]}
        if wider:
            raise _BatchedCarry(wider)
        in_ys[:] = [type(y) is M.box for y in ys]
        inside = [x if size is None else M.spread(x, size) for x, size in zip(after, sizes, strict=True)]
        return inside, _values(M, ys)

    along = [M.moved(x.value, 1, 0) if type(x) is M.box else x for x in xs]
    state, found = M.inner.scan(step, _values(M, start), along, length, reverse=reverse)
    ys = [M.moved(y, 1, 0) if flag else y for y, flag in zip(found, in_ys, strict=True)]
    return _boxed(M, state, in_carry), _boxed(M, ys, in_ys)


def _values(M: MappedOps, arrays: Sequence[Array]) -> list[Array]:
    return [x.value if type(x) is M.box else x for x in arrays]


def _boxed(M: MappedOps, values: Sequence[Array], flags: list[bool]) -> tuple[Array, ...]:
    return tuple([M.boxed(x) if flag else x for x, flag in zip(values, flags, strict=True)])
