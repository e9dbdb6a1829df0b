"""Updates of optimizers on NumPy: one pass over memory, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import AdamNumbers, Moved
from phlox.backend.numpy.blocks import LARGE, SMALL, SPREAD, Block, in_blocks, scratch

_LEAST = 1 << 15
"""Elements: what is handed from thread to thread is at least of this size."""


class _Job(NamedTuple):
    """One tensor, flat: what it is, and where what it becomes goes, which may be the same memory."""

    old: tuple[Block, Block, Block, Block]
    new: tuple[Block, Block, Block]
    numbers: AdamNumbers


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamNumbers) -> tuple[Array, Array, Array]:
        old = _flat(x), _flat(g), _flat(m), _flat(v)
        new = np.empty_like(old[0]), np.empty_like(old[2]), np.empty_like(old[3])
        job = _Job(old, new, numbers)
        in_blocks(lambda start, stop: _adam(job, start, stop), x.size, 1)
        shape: tuple[int, ...] = x.shape
        return new[0].reshape(shape), new[1].reshape(shape), new[2].reshape(shape)

    def adam_updates(
        self,
        xs: Sequence[Array],
        gs: Sequence[Array],
        ms: Sequence[Array],
        vs: Sequence[Array],
        numbers: Sequence[AdamNumbers],
        own: Sequence[bool],
    ) -> tuple[list[Moved], Callable[[], object]]:
        if self.float_element not in ("f32", "f64"):
            return super().adam_updates(xs, gs, ms, vs, numbers, own)
        jobs: list[_Job] = []
        made: list[Moved] = []
        for x, g, m, v, number, mine in zip(xs, gs, ms, vs, numbers, own, strict=True):
            mine = mine and _is_plain(m) and _is_plain(v)
            to_x, to_m, to_v = np.empty(x.shape, x.dtype), m, v
            if not mine:
                to_m, to_v = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
            made.append((to_x, to_m, to_v))
            new = to_x.reshape(-1), to_m.reshape(-1), to_v.reshape(-1)
            jobs.append(_Job((_flat(x), _flat(g), _flat(m), _flat(v)), new, number))
        return made, lambda: _adam_all(jobs)


def _flat(x: Any) -> Block:
    return np.ascontiguousarray(x).reshape(-1)


def _is_plain(x: Any) -> bool:
    return type(x) is np.ndarray and x.flags.c_contiguous and x.flags.writeable


def _adam_all(jobs: Sequence[_Job]) -> None:
    """All jobs in blocks: long ones divided, short ones together."""
    total = sum(job.new[0].size for job in jobs)
    longest = LARGE if total >= SPREAD else SMALL
    bundles: list[list[tuple[_Job, int, int]]] = []
    open_, filled = list[tuple[_Job, int, int]](), 0
    for job in jobs:
        size = job.new[0].size
        if size >= _LEAST:
            parts = -(-size // longest)
            step = -(-size // parts)
            bundles += [[(job, start, min(start + step, size))] for start in range(0, size, step)]
            continue
        open_.append((job, 0, size))
        filled += size
        if filled >= _LEAST:
            bundles.append(open_)
            open_, filled = [], 0
    bundles.append(open_)

    def work(start: int, stop: int) -> None:
        for bundle in bundles[start:stop]:
            for part in bundle:
                _adam(*part)

    in_blocks(work, len(bundles), longest if total >= SPREAD else 1)


def _adam(job: _Job, start: int, stop: int) -> None:
    """The elements from `start` to `stop` of Adam's update."""
    lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2, _ = job.numbers
    here = slice(start, stop)
    x_old, g, m_old, v_old = (array[here] for array in job.old)
    x, m, v = (array[here] for array in job.new)
    part = scratch(x)
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
    # The root of the correction is taken out of the fraction, which saves a pass.
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
