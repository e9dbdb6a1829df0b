"""The distribution that tokens are drawn from, against that of transformers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.models.generation.sampling import filtered, sampling_of

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

OPTIONS: dict[str, tuple[Any, str]] = {
    "top_k": (7, "TopKLogitsWarper"), "top_p": (0.8, "TopPLogitsWarper"), "min_p": (0.15, "MinPLogitsWarper"),
    "typical_p": (0.6, "TypicalLogitsWarper"),
}  # fmt: skip


MODES = [
    pytest.param(NumPy(), False, id="numpy"),
    pytest.param(Jax(), True, id="jax"),
    pytest.param(Torch(), False, id="torch"),
    pytest.param(Torch(), True, id="torch-compiled", marks=pytest.mark.full),  # its compiler takes its time
]


@pytest.mark.parametrize(("backend", "compile"), MODES)
def test_the_distribution_of_transformers(backend: Backend, compile: bool) -> None:
    """With each option and each pair, at two temperatures, also where a token is banned."""
    logits = np.random.default_rng(0).normal(size=(6, 23), scale=2.0).astype(np.float32)
    logits[:3, 5] = -np.inf
    ours: Any = px.tensor(logits, device=backend)
    for size, temperature in itertools.product((1, 2), (1.0, 1.6)):
        for names in itertools.combinations(OPTIONS, size):
            values = [OPTIONS[name][0] for name in names]
            rule = sampling_of(
                "", temperature, **{"top_k": None, "top_p": None} | dict(zip(names, values, strict=True))
            )
            found = (px.compile(filtered) if compile else filtered)(ours, *rule, temperature).softmax(-1).numpy()
            expected = torch.tensor(logits) / temperature
            for name, value in zip(names, values, strict=True):
                expected = getattr(transformers, OPTIONS[name][1])(value)(None, expected)
            probabilities = expected.softmax(-1).numpy()
            assert ((found > 0) == (probabilities > 0)).all(), names
            np.testing.assert_allclose(found, probabilities, rtol=1e-5, err_msg=str(names))
            assert (found == 0).sum(-1).min() > 1
