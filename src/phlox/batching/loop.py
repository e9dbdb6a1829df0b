"""Loops: one over the examples, for functions without a batched form, and `scan` for all examples at once."""

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
        raise UnsupportedError("this operation runs once per example inside phlox.vmap, but the batch has no examples")
    results = [fn(*[_example(M, x, index) for x in arrays]) for index in range(size)]
    return _stack_results(M, results)


def _example(M: MappedOps, x: Array, index: int) -> Array:
    if type(x) is not M.box:
        return x
    shape = M.inner.shape(x.value)
    return M.inner.index(x.value, (index, *[slice(0, size, 1) for size in shape[1:]]))


def _stack_results(M: MappedOps, results: list[Any]) -> Any:
    """The results of all examples, arrays or nested containers of them, as batched ones."""
    first = results[0]
    if isinstance(first, (tuple, list)):
        parts = [_stack_results(M, list(part)) for part in zip(*results, strict=True)]
        return type(cast("list[Any]", first))(parts)
    if isinstance(first, dict):
        return {key: _stack_results(M, [result[key] for result in results]) for key in cast("dict[Any, Any]", first)}
    shapes = {M.inner.shape(result) for result in results}
    if len(shapes) > 1:
        raise UnsupportedError(
            f"the shape of the result depends on the example inside phlox.vmap: {', '.join(map(str, shapes))}; "
            "use phlox.where(mask, x, other) or x.masked_fill(mask, value)"
        )
    return M.boxed(M.inner.concat([M.inner.reshape(result, (1, *M.inner.shape(result))) for result in results], 0))


class _BatchedCarry(Exception):
    """Raised if a part of the carry that all examples share at the start differs between them after a step."""

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
        except _BatchedCarry as batched:
            for index, size in batched.sizes.items():
                start[index] = M.boxed(M.spread(start[index], size))


def _scan(
    M: MappedOps, body: Body, start: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """As `scan`; raises `_BatchedCarry` if a part of the carry gets a batch axis that it did not have at the start."""
    sizes = [M.size([x]) if type(x) is M.box else None for x in start]
    in_carry, in_xs = [size is not None for size in sizes], [type(x) is M.box for x in xs]
    in_ys: list[bool] = []  # set when the body runs

    def step(state: tuple[Array, ...], entries: tuple[Array, ...]) -> tuple[list[Array], list[Array]]:
        new_carry, ys = body(_box_all(M, state, in_carry), _box_all(M, entries, in_xs))
        wider = {i: M.size([x]) for i, x in enumerate(new_carry) if type(x) is M.box and not in_carry[i]}
        if wider:
            raise _BatchedCarry(wider)
        in_ys[:] = [type(y) is M.box for y in ys]
        inside = [x if size is None else M.spread(x, size) for x, size in zip(new_carry, sizes, strict=True)]
        return inside, _values(M, ys)

    inner_xs = [M.moved(x.value, 1, 0) if type(x) is M.box else x for x in xs]
    state, outputs = M.inner.scan(step, _values(M, start), inner_xs, length, reverse=reverse)
    ys = [M.moved(y, 1, 0) if flag else y for y, flag in zip(outputs, in_ys, strict=True)]
    return _box_all(M, state, in_carry), _box_all(M, ys, in_ys)


def _values(M: MappedOps, arrays: Sequence[Array]) -> list[Array]:
    return [x.value if type(x) is M.box else x for x in arrays]


def _box_all(M: MappedOps, values: Sequence[Array], flags: list[bool]) -> tuple[Array, ...]:
    return tuple([M.boxed(x) if flag else x for x, flag in zip(values, flags, strict=True)])
