"""Updates of optimizers on NumPy: one pass over memory, block by block."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Shape
from phlox.backend.contract.update import AdamScalars, Piece, ReusedBuffer, bundles, work_on
from phlox.backend.device import Device
from phlox.backend.numpy.blocks import LARGE, SMALL, SPREAD, Block, in_blocks, scratch

_LONG = 1 << 18
"""Elements in a block of Adam on several threads: shorter blocks fit the second-level cache, but wait for the
interpreter's lock for longer than that gains."""


_SHORT = 1 << 12
"""Up to so many elements, new memory costs less than finding memory that was used before."""


class _Owner(np.ndarray[Any, Any]):
    """Owns the buffer. A subclass, so that views of a lent array have that array as their base, and not this object."""


class HostMemory(ReusedBuffer):
    """See `ReusedBuffer`."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._owner = _Owner(shape, dtype)
        self._lent: weakref.ref[Any] | None = None
        self.flat = self._owner.view(np.ndarray).reshape(-1)

    def lend(self) -> Array:
        lent = self._owner.view(np.ndarray)
        self._lent = weakref.ref(lent)
        return lent

    def has_lent(self, x: Array) -> bool:
        return self._lent is not None and self._lent() is x

    def is_free(self) -> bool:
        return self._lent is None or self._lent() is None


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamScalars) -> tuple[Array, Array, Array]:
        old = x.reshape(-1), g.reshape(-1), m.reshape(-1), v.reshape(-1)
        shape: tuple[int, ...] = x.shape
        out: tuple[Block, Block, Block] = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(shape, x.dtype)
        new = out[0].reshape(-1), out[1].reshape(-1), out[2].reshape(-1)
        if x.size <= _SHORT:
            with np.errstate(all="ignore"):
                _adam(old, new, numbers, 0, x.size)
        else:
            in_blocks(lambda start, stop: _adam(old, new, numbers, start, stop), x.size, 1)
        return out

    def memory_like(self, x: Array, shape: Shape, device: Device) -> ReusedBuffer | None:
        return HostMemory(shape, x.dtype)

    def new_like(self, x: Array) -> Array:
        return np.empty(x.shape, x.dtype)

    def is_plain(self, x: Array) -> bool:
        return type(x) is np.ndarray

    def are_alike(self, x: Array, y: Array) -> bool:
        return type(x) is type(y) is np.ndarray and x.shape == y.shape

    def flat(self, x: Array) -> Array:
        return x.reshape(-1)

    def set_column(self, x: Array, column: int, entry: Array) -> Array:
        x[:, column] = entry
        return x

    def write_from(self, x: Array, values: Array, start: Array, axis: int, donated: bool) -> Array:
        out = x if donated else x.copy()
        if start.ndim:
            columns = cast("Any", start[:, None] + np.arange(values.shape[axis]))
            row, column = np.nonzero(columns < x.shape[axis])
            np.moveaxis(out, axis, 1)[row, columns[row, column]] = np.moveaxis(values, axis, 1)[row, column]
            return out
        first = int(start)
        before, count = (slice(None),) * axis, max(0, min(values.shape[axis], x.shape[axis] - first))
        out[(*before, slice(first, first + count))] = values[(*before, slice(0, count))]
        return out

    def kernel(self, name: str, numbers: NamedTuple) -> Callable[[Sequence[Piece]], object] | None:
        if not isinstance(numbers, AdamScalars) or self.float_element not in ("f32", "f64"):
            return None

        def update(pieces: Sequence[Piece]) -> None:
            def joined(old: list[Array]) -> list[Array]:
                new: list[Block] = [np.empty_like(old[k]) for k in (0, 2, 3)]
                _adam(old, new, numbers, 0, len(new[0]))
                return new

            def bundle(parts: Sequence[tuple[int, int, int]]) -> None:
                if len(parts) > 1:
                    work_on(parts, pieces, joined, np.concatenate, _unshared)
                    return
                number, start, stop = parts[0]
                _adam(*pieces[number], numbers, start, stop)

            _for_bundles(pieces, _LONG, bundle)

        return update

    def in_pieces(self, work: Callable[[list[Array]], list[Array]], pieces: Sequence[Piece]) -> None:
        _for_bundles(pieces, LARGE, lambda parts: work_on(parts, pieces, work, np.concatenate, _unshared))


def _unshared(result: Block, old: list[Block]) -> Block:
    shares = result.base is not None or any(result is array for array in old)
    return result.copy() if shares else result


def _for_bundles(pieces: Sequence[Piece], longest: int, work: Callable[[Sequence[tuple[int, int, int]]], None]) -> None:
    """`work(bundle)` for bundles of the pieces that fit the cache, on several threads if there is enough work.

    With several threads, bundles have up to `longest` elements.
    """
    sizes: list[int] = [piece.new[0].size for piece in pieces]
    parts = bundles(sizes, longest if sum(sizes) >= SPREAD else SMALL)

    def run(start: int, stop: int) -> None:
        for bundle in parts[start:stop]:
            work(bundle)

    in_blocks(run, len(parts), SPREAD if sum(sizes) >= SPREAD else 1)


def _adam(old: Sequence[Block], new: Sequence[Block], numbers: AdamScalars, start: int, stop: int) -> None:
    """The elements from `start` to `stop` of Adam's update."""
    lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2, _ = numbers
    part_of = itemgetter(slice(start, stop))
    x_old, g, m_old, v_old = map(part_of, old)
    x, m, v = map(part_of, new)
    part = np.empty_like(x) if stop - start <= _SHORT else scratch(x)
    if decay and not decoupled:
        g_sum = scratch(x, 1)
        np.multiply(x_old, decay, out=g_sum)
        g_sum += g
        g = g_sum
    np.multiply(g, 1.0 - beta_1, out=part)
    np.multiply(m_old, beta_1, out=m)
    m += part
    np.multiply(g, g, out=part)
    part *= 1.0 - beta_2
    np.multiply(v_old, beta_2, out=v)
    v += part
    # The root of the correction is factored out of the fraction, which saves a pass over memory.
    root = math.sqrt(correction_2)
    np.sqrt(v, out=part)
    part += epsilon * root
    np.divide(m, part, out=part)
    part *= lr / correction_1 * root
    if decay and decoupled:
        np.multiply(x_old, 1.0 - lr * decay, out=x)
        x -= part
    else:
        np.subtract(x_old, part, out=x)
