"""Draws: one for the whole batch, with one row per example."""

from __future__ import annotations

from typing import Any

from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.parallel import RowGroup
from phlox.batching.build import RandomRule, Rule
from phlox.batching.frames import PerExample, frame_of
from phlox.batching.mapped import MappedOps


def _example_count(M: MappedOps) -> int | None:
    """The number of examples that have their own random numbers; None if all examples share them."""
    frame = frame_of(M)
    return None if frame is None or frame.randomness == "same" else frame.size


def _has_own_keys(M: MappedOps, state: Array) -> bool:
    """Does every example of this batch have its own key? Keys of an outer batch are handled by that batch."""
    return isinstance(state, PerExample) and state.backend.batched == M.batched


def _draw_rule(name: str) -> Rule:
    def rule(M: MappedOps, state: Array, shape: Shape, *options: Any) -> Array:
        draw = getattr(M.inner, name)
        has_own_keys, size = _has_own_keys(M, state), _example_count(M)
        if size is not None and not has_own_keys:
            return M.boxed(draw(state, (size, *shape), *options))
        # Numbers that all examples share, and draws with keys, are also shared by the examples of other processes.
        options = options[:-1] if isinstance(options[-1], RowGroup) else options
        if has_own_keys:
            return M.boxed(M.inner.stack([draw(key, shape, *options) for key in state.items]))
        return draw(state, shape, *options)

    return RandomRule(rule)


def _permutation(M: MappedOps, state: Array, n: int, device: Device) -> Array:
    """The argsort of random integers; equal integers, which are rare among 2**31, keep their order."""
    draw, size = M.inner.random_permutation, _example_count(M)
    if _has_own_keys(M, state):
        return M.boxed(M.inner.stack([draw(key, n, device) for key in state.items]))
    if size is None:
        return draw(state, n, device)
    words = M.inner.random_integers(state, (size, n), 0, 2**31 - 1, device)
    return M.boxed(M.inner.int_argsort(words, 1, False))


RANDOM: dict[str, Rule] = {
    **{name: _draw_rule(name) for name in ("random_uniform", "random_normal", "random_bernoulli", "random_integers")},
    "random_permutation": RandomRule(_permutation),
}
