"""A cache of keys and values as a value: what is written where. tests/nn/test_multi_head_attention.py has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)


def floats(values: Any, device: Any) -> px.Tensor:
    return px.tensor(values, device=device).float()


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("compile", [False, True])
def test_what_reaches_beyond_the_end_of_a_cache_is_dropped(compile: bool, backend: Backend) -> None:
    if compile and isinstance(backend, Torch):
        pytest.skip("its compiler takes long, and the operations are those of the others")
    x, values = RNG.normal(size=(1, 2, 4, 3)), RNG.normal(size=(1, 2, 3, 3))
    for count in (1, 3):
        for place in (0, 2, 3, 4, 5):
            expected = np.concatenate([x, np.zeros((1, 2, 8, 3))], 2)
            expected[:, :, place : place + count] = values[:, :, :count]
            start = nn.KeyValueCache(floats(x, backend), floats(x, backend), px.tensor(place, device=backend))
            new = floats(values[:, :, :count], backend)
            run: Any = px.compile(nn.KeyValueCache.append) if compile else nn.KeyValueCache.append
            found = run(start, new, new)
            np.testing.assert_allclose(found.value.numpy(), expected[:, :, :4], rtol=1e-6)
            np.testing.assert_allclose(start.value.numpy(), x, rtol=1e-6)  # which has not been written to
