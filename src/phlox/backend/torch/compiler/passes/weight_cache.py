"""A cache of values derived from weights, such as packed filters: computed once, until the weights change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.tracer import makes_plain_tensors

_Derived = TypeVar("_Derived")


class _Entry(NamedTuple, Generic[_Derived]):
    of: list[weakref.ref[torch.Tensor]]
    versions: list[int]
    value: _Derived


class WeightCache(Generic[_Derived]):
    """Calls a function of weights, and again only for other weights, or after one of them was written to.

    Results are cached by the identity of the weights, and removed when one of the weights is deleted.

    >>> doubled = WeightCache(lambda weight: weight * 2)
    >>> weight = torch.ones(2)
    >>> doubled(weight) is doubled(weight)
    True
    """

    def __init__(self, make: Callable[..., _Derived]) -> None:
        self._make = make
        self._entries: dict[tuple[int, ...], _Entry[_Derived]] = {}

    def __call__(self, *weights: torch.Tensor) -> _Derived:
        # Tensors of inference mode do not count writes, and a value computed during a trace is a part of that trace:
        # neither is cached.
        versions = compat.versions_of(weights)
        if versions is None or not makes_plain_tensors():
            return self._make(*weights)
        key = tuple(map(id, weights))
        entry = self._entries.get(key)
        if entry is not None and entry.versions == versions and all([ref() is x for ref, x in zip(entry.of, weights)]):  # noqa: B905, C419
            return entry.value

        def forget(_: object) -> None:
            self._entries.pop(key, None)

        with torch.no_grad():
            value = self._make(*weights)
        self._entries[key] = _Entry([weakref.ref(weight, forget) for weight in weights], versions, value)
        return value

    def __len__(self) -> int:
        return len(self._entries)
