"""What is not looked at costs nothing: after a look, calls execute the instructions that they did before.

Serves: phlox/tensor/observing.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from benchmarks.guard.counting import count
from phlox import nn, optim
from phlox.backend import Jax, NumPy
from phlox.module.calls import _patched
from phlox.tensor.observing import observed_operations

X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)


def model() -> Any:
    return nn.Sequential([nn.Linear(8, 8), nn.Gelu(), nn.Linear(8, 2)]).init(0, "numpy")


def looks(one: Any) -> None:
    px.debug.find_nan(one, X)
    px.debug.compare(one, [X], ["numpy", "jax"])
    px.debug.profile(one, X, calls=1)
    with px.debug.capture(one, "layers.*"):
        one(px.tensor(X))


def paths() -> dict[str, Callable[[], object]]:
    """What is counted: an operation, a call of a model, a step, and a warm compiled call."""
    one, x = model(), px.tensor(X)
    trained, optimizer = model().train(), optim.AdamWConfig().init()
    _, grads = px.value_and_grad(lambda m: m(x).sum())(trained)
    there, there_x = model().to_device(Jax().device()), px.tensor(X, device=Jax())
    compiled = px.compile(lambda m, x: m(x))
    return {
        "operation": lambda: x + x,
        "call": lambda: one(x),
        "step": lambda: optimizer.step(1e-3, trained, grads),
        "compiled": lambda: compiled(there, there_x),
    }


@pytest.mark.full
def test_after_a_look_everything_takes_the_instructions_that_it_took() -> None:
    counted = paths()
    before = {name: count(run).instructions for name, run in counted.items()}
    looks(model())
    looks(model().train())
    assert not _patched
    assert {name: count(run).instructions for name, run in counted.items()} == before


def test_another_thread_is_not_observed() -> None:
    seen: list[str] = []
    others: list[Any] = []
    with observed_operations(lambda ops, name, arguments, result: seen.append(name)):
        other = threading.Thread(target=lambda: others.append((px.ones((2,)) * 3.0).tolist()))
        other.start()
        other.join()
        px.ones((2,)).exp()
        with observed_operations(lambda ops, name, arguments, result: seen.append(f"inner {name}")):
            px.ones((2,)).sin()
    px.ones((2,)).cos()
    assert others == [[3.0, 3.0]] and seen == ["exp", "sin", "inner sin"]
    assert NumPy() is px.ones((2,)).backend
