"""A metric beside its reference: whole, in uneven batches, in shards, on several engines."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.metrics import Metric

ENGINES = [NumPy(), Torch(), Autodiff(NumPy())]
"""Eagerly; on JAX, where each operation of each shape is compiled, metrics are tried in a compiled update."""
CUTS = (0, 1, 1, 8, 20)
"""Where rows are cut into batches, of which one is empty and the last is the rest."""


def batches(arrays: Sequence[Any], cuts: Sequence[int] = CUTS) -> list[list[Any]]:
    """The rows of arrays, cut."""
    stops = [*cuts[1:], len(arrays[0])]
    return [[array[a:b] for array in arrays] for a, b in zip(cuts, stops, strict=True)]


def on(device: Any, arrays: Sequence[Any]) -> list[Any]:
    return [px.tensor(array, device=device) if isinstance(array, np.ndarray) else array for array in arrays]


def streamed(metric: Metric, arrays: Sequence[Any], weights: Any, device: Any) -> Any:
    """The state after uneven batches."""
    given = [*arrays] if weights is None else [*arrays, weights]
    state = metric.init()
    for batch in batches(given):
        *args, w = [*on(device, batch), None] if weights is None else on(device, batch)
        state = metric.update(state, *args, weights=w)
    return state


def agrees(
    metric: Metric, arrays: Sequence[Any], want: Any, *, weights: Any = None, rtol: float = 2e-6, merged: float = 1e-12
) -> None:
    """Is the metric `want`, whichever way its rows come?"""
    whole = metric.compute(metric.measure(*arrays, weights=weights))
    np.testing.assert_allclose(whole, want, rtol=rtol, atol=1e-7, err_msg=repr(metric))
    for device in ENGINES:
        state = streamed(metric, arrays, weights, device)
        np.testing.assert_allclose(metric.compute(state), whole, rtol=rtol, atol=1e-7, err_msg=f"{metric} {device}")
    a, b, c = (
        metric.measure(*part[: len(arrays)], weights=None if weights is None else part[-1])
        for part in batches([*arrays, *([] if weights is None else [weights])], (0, 7, 15))
    )
    left, right = metric.merge(metric.merge(a, b), c), metric.merge(a, metric.merge(b, c))
    sent = pickle.loads(pickle.dumps(left))  # noqa: S301
    for state in (left, right, sent):
        np.testing.assert_allclose(metric.compute(state), whole, rtol=merged, atol=1e-12)


def compiled_agrees(backend: Any, metric: Metric, arrays: Sequence[Any], weights: Any = None) -> None:
    """Is a compiled update what NumPy gives eagerly, traced once, from a state that is on the device?"""
    device = backend.device()
    args = on(device, arrays)
    w = None if weights is None else px.tensor(weights, device=device)
    if metric.gathers:
        measure = px.compile(lambda args, w: metric.measure(*args, weights=w))
        state = metric.merge(measure(args, w), measure(args, w))
        assert measure.traces == 1
    else:
        update = px.compile(lambda state, args, w: metric.update(state, *args, weights=w))
        state = update(update(metric.init(device), args, w), args, w)
        assert update.traces == 1
    twice = metric.update(metric.measure(*arrays, weights=weights), *arrays, weights=weights)
    np.testing.assert_allclose(metric.compute(state), metric.compute(twice), rtol=2e-6, atol=1e-7)


each_compiler = pytest.mark.parametrize("backend", [Torch(), Autodiff(Jax())], ids=repr)


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's programs run operation by operation, and so start at once."""
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")
