"""A cache of values derived from weights, such as packed filters: computed once, until the weights change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.tracer import makes_plain_tensors

_Made = TypeVar("_Made")


class _Entry(NamedTuple, Generic[_Made]):
    of: list[weakref.ref[torch.Tensor]]
    versions: list[int]
    value: _Made


class WeightCache(Generic[_Made]):
    """Calls a function of weights, and again only for others, or when one of them was written to.

    What it gave is known by who the weights are, and goes with the first of them that does.

    >>> doubled = WeightCache(lambda weight: weight * 2)
    >>> weight = torch.ones(2)
    >>> doubled(weight) is doubled(weight)
    True
    """

    def __init__(self, make: Callable[..., _Made]) -> None:
        self._make = make
        self._entries: dict[tuple[int, ...], _Entry[_Made]] = {}

    def __call__(self, *weights: torch.Tensor) -> _Made:
        # Those of inference mode do not count how often they are written to; what is made of any while somebody traces
        # is a part of that trace.
        versions = compat.versions_of(weights)
        if versions is None or not makes_plain_tensors():
            return self._make(*weights)
        key = tuple(map(id, weights))
        known = self._entries.get(key)
        if known is not None and known.versions == versions and all([ref() is x for ref, x in zip(known.of, weights)]):  # noqa: B905, C419
            return known.value

        def forget(_: object) -> None:
            self._entries.pop(key, None)

        with torch.no_grad():
            value = self._make(*weights)
        self._entries[key] = _Entry([weakref.ref(weight, forget) for weight in weights], versions, value)
        return value

    def __len__(self) -> int:
        return len(self._entries)
