"""Every operation of the contract can be lowered for CUDA, forward and backward, by the branches that a GPU takes.

No GPU is needed: JAX lowers a program for a platform that is not there. XLA's own work, and values, need one.

Serves: src/phlox/backend/jax/{backend,attention,conv,linear,packed,tracer}.py
"""

# pyright: standard
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from phlox.models import GptConfig
from tests.backend.rows import FAMILIES, cases

QUICK = {"packed"}


def lower(family: str, backend: Any) -> None:
    """Lower the rows of a family."""
    for title, arrays, function in cases(family, backend, Autodiff(backend)):
        try:
            jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        except Exception as error:
            if "depends on the values" not in str(error):
                raise AssertionError(title) from error


def lower_training(backend: Any) -> None:
    """Lower the training step of a GPT with dropout, and of a network with convolutions."""
    lowered: list[Any] = []
    compile = Jax.compile

    def observed(self: Any, fn: Any, release: Any) -> Any:
        program: Any = compile(self, fn, release)

        def call(*arrays: Any) -> Any:
            lowered.append(program.trace(*arrays).lower(lowering_platforms=("cuda",)))
            return program(*arrays)

        return call

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss = nn.cross_entropy_loss(model(x), y)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(1e-3, model, grads), loss

    Jax.compile = observed
    device = Autodiff(backend).device()
    gpt = GptConfig(vocabulary=64, context=256, n_layers=1, d_model=64, n_heads=2, dropout=0.1).init(device)
    layers = [nn.Conv2d(3, 8, 3, device=device), nn.BatchNorm(8, device=device), nn.Relu(), nn.Flatten()]
    images = nn.Sequential([*layers, nn.Linear(8 * 6 * 6, 64, device=device)])
    for model, shape in ((gpt, (2, 256)), (images, (2, 3, 8, 8))):
        x = px.zeros(shape, device=device)
        labels = px.tensor(np.zeros(shape if model is gpt else shape[:1], np.int32), device=device)
        px.compile(step)(model.train(), optim.AdamWConfig().init(), labels if model is gpt else x, labels)
    assert len(lowered) == 2


@pytest.mark.parametrize(
    ("task", "element"),
    [
        pytest.param(task, element, marks=() if task in QUICK and element == "f32" else pytest.mark.full)
        for task in ("training", *FAMILIES)
        for element in ("f32", "bf16")
    ],
)
def test_programs_are_lowered_for_cuda(task: str, element: str) -> None:
    # In a process of its own: operations that were traced before would be those of a processor.
    command = [sys.executable, "-m", "tests.backend.jax.test_other_platforms", task, element]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[3],
                          env={**os.environ, "JAX_PLATFORMS": "cpu"})  # fmt: skip
    assert not done.returncode, done.stderr[-3000:]


if __name__ == "__main__":
    jax.default_backend = lambda: "gpu"
    chosen = Jax(float="bf16" if sys.argv[2] == "bf16" else "f32")
    if sys.argv[1] == "training":
        lower_training(chosen)
    else:
        lower(sys.argv[1], chosen)
