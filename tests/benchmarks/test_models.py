"""The models of the benchmarks compute the same in Phlox, plain JAX and PyTorch; here they are tiny.

Serves: benchmarks/libraries/, benchmarks/models/
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.libraries import with_jax, with_phlox, with_torch
from benchmarks.workloads import Workload

WORKLOADS = [
    Workload("mlp", "MLP", "mlp", {"widths": (6, 8, 4), "batch": 5}),
    Workload("gpt", "GPT", "gpt", {"layers": 1, "width": 16, "heads": 2, "context": 8, "batch": 2, "vocabulary": 11}),
    # With less than 8 channels PyTorch's own model writes past its memory (oneDNN#6035).
    Workload("cnn", "CNN", "cnn", {"batch": 2, "image": 8, "stages": (8, 16), "blocks": 1}),
    Workload(
        "lstm",
        "LSTM",
        "lstm",
        {"batch": 2, "steps": 4, "vocabulary": 7, "embedding": 6, "width": 8, "layers": 2},
    ),
]
OTHERS: list[tuple[Any, str]] = [(with_phlox, "torch"), (with_phlox, "numpy eager"), (with_jax, ""), (with_torch, "")]


@pytest.mark.every(4)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_all_make_the_same_steps_and_predictions(workload: Workload) -> None:
    ours = with_phlox.Contestant(workload, "jax")
    outputs, losses = ours.outputs(), ours.losses(4)
    assert losses[-1] < losses[0]
    for library, variant in OTHERS:
        other = library.Contestant(workload, variant or _first_variant(library))
        np.testing.assert_allclose(other.outputs(), outputs, rtol=1e-3, atol=1e-4, err_msg=library.__name__)
        np.testing.assert_allclose(other.losses(4), losses, rtol=1e-3, err_msg=f"{library.__name__} {variant}")


def _first_variant(library: Any) -> str:
    return "eager" if library is with_torch else ""


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_sizes_decide_the_work(workload: Workload) -> None:
    maths, sizes = workload.maths, workload.sizes
    x, y = maths.batch(sizes)
    assert maths.example(sizes).shape == (1, *x.shape[1:])
    assert len(x) == len(y)
    doubled = maths.Sizes(**{**workload.options, "batch": 2 * workload.options["batch"]})
    assert maths.flops(doubled) == 2 * maths.flops(sizes) > 0
    assert all(value.dtype == np.float32 for value in maths.weights(sizes).values())
