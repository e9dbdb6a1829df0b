"""Draws: one for the whole batch, with one row per example."""

from __future__ import annotations

from typing import Any

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.parallel import RowGroup
from phlox.batching.build import RandomRule, Rule
from phlox.batching.frames import PerExample, frame_of
from phlox.batching.mapped import MappedOps


def _rows(M: MappedOps) -> int | None:
    """The number of examples that have random numbers of their own; None where all have the same."""
    frame = frame_of(M)
    return None if frame is None or frame.randomness == "same" else frame.size


def _is_own(M: MappedOps, state: Array) -> bool:
    """Has every example of this batch a key of its own? Those of a batch around it are left to that."""
    return isinstance(state, PerExample) and state.backend.batched == M.batched


def _shaped(name: str) -> Rule:
    def rule(M: MappedOps, state: Array, shape: Shape, *options: Any) -> Array:
        draw = getattr(M.inner, name)
        own, size = _is_own(M, state), _rows(M)
        if size is not None and not own:
            return M.boxed(draw(state, (size, *shape), *options))
        # What all examples share, those of other processes share too; likewise draws on keys.
        options = options[:-1] if isinstance(options[-1], RowGroup) else options
        if own:
            return M.boxed(M.inner.stack([draw(one, shape, *options) for one in state.items]))
        return draw(state, shape, *options)

    return RandomRule(rule)


def _permutation(M: MappedOps, state: Array, n: int, device: Device) -> Array:
    """The argsort of random integers; equal ones, which are rare among 2**31, stay in order."""
    draw, size = M.inner.random_permutation, _rows(M)
    if _is_own(M, state):
        return M.boxed(M.inner.stack([draw(one, n, device) for one in state.items]))
    if size is None:
        return draw(state, n, device)
    words = M.inner.random_integers(state, (size, n), 0, 2**31 - 1, device)
    return M.boxed(M.inner.int_argsort(words, 1, False))


RANDOM: dict[str, Rule] = {
    **{name: _shaped(name) for name in ("random_uniform", "random_normal", "random_bernoulli", "random_integers")},
    "random_permutation": RandomRule(_permutation),
}
