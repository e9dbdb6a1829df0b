"""`px.compile(..., verify=True)`: what is right stays as it is, what is wrong is named before anything has changed.

Serves: phlox/debug/verifying.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, Torch, settings
from phlox.backend.torch.compiler import stored_graphs
from phlox.errors import CompileError
from phlox.testing import assert_close
from tests.backend.torch.compiler.test_fences import freed


class _Wrong(Jax):
    """JAX, but for a hyperbolic tangent in a program, and its derivative."""

    def float_tanh(self, x: Any) -> Any:
        y = super().float_tanh(x)
        return y + 0.01 if self.is_traced(x) else y


def _model(backend: Backend) -> nn.Sequential:
    layers = [nn.Linear(8, 16), nn.BatchNorm(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 4)]
    return nn.Sequential(layers).init(0).to_device(backend.device()).train()


def _step(model: Any, optimizer: Any, x: Any, rate: float) -> Any:
    loss = model(x).square().mean()
    return optimizer.step(rate, model, px.GradientsParams.from_grads(loss.backward(), model)), loss


def _trained(backend: Backend, compile: Callable[[Any], Any], sizes: tuple[int, ...] = (32, 32, 20, 32)) -> Any:
    """The losses and the model of a training step, whose batches have two sizes."""
    model, optimizer, step = _model(backend), optim.AdamWConfig().init(), compile(_step)
    rng = np.random.default_rng(0)
    px.random.seed(3)
    losses: list[float] = []
    for size in sizes:
        model, loss = step(model, optimizer, px.tensor(rng.normal(size=(size, 8)), device=backend), 0.01)
        losses.append(loss.item())
    return losses, model, optimizer


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=str)
def test_a_step_is_the_same_with_it(backend: Backend) -> None:
    """With dropout, running statistics, an optimizer and donation."""
    plain = _trained(backend, lambda fn: px.compile(fn, donate=("model", "optimizer")))
    found = _trained(backend, lambda fn: px.compile(fn, donate=("model", "optimizer"), verify=True))
    assert found[0] == plain[0]
    for one, other in zip(found[1].params(), plain[1].params(), strict=True):
        assert_close(one.val(), other.val())
    assert len(found[2].states) == len(plain[2].states) == 6


def test_it_happens_once_for_each_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from phlox.debug import verifying

    calls: list[str] = []
    verify = verifying.verify

    def counted(*arguments: Any) -> None:
        calls.append(arguments[0])
        verify(*arguments)

    monkeypatch.setattr(verifying, "verify", counted)
    _trained(Jax(), lambda fn: px.compile(fn, verify=True))
    assert calls == ["_step"] * 3  # the second call has an optimizer with states, the third another size
    monkeypatch.setattr(settings, "_applied", settings.read_environment({"PHLOX_VERIFY": "1"}))
    px.compile(lambda x: x + 1.0)(px.ones((2,), device=Jax()))
    px.compile(lambda x: x + 1.0, verify=False)(px.ones((2,), device=Jax()))
    px.compile(lambda x: x + 1.0)(px.ones((2,)))  # on NumPy there is no program
    px.compile(lambda x: x + 1.0)(np.ones((2,), np.float32))
    assert len(calls) == 4
    x = px.ones((2, 3), device=Jax())
    assert px.compile(lambda c, x: c + x.sum(), steps=2, over=("x",), verify=True)(1.0, x).tolist() == [4.0, 4.0]
    assert len(calls) == 5


def test_the_first_operation_that_differs_is_named() -> None:
    model, optimizer, x = (
        _model(_Wrong()),
        optim.AdamWConfig().init(),
        px.tensor(np.random.default_rng(0).normal(size=(4, 8)), device=_Wrong()),
    )
    px.random.seed(3)
    before = [param.val().numpy() for param in model.params()]
    with pytest.raises(CompileError) as told:
        px.compile(_step, donate=("model",), verify=True)(model, optimizer, x, 0.01)
    said = str(told.value)
    assert said.startswith("_step: compiled, ") and "the result[1]: " in said
    assert "The first operation that differs: `tanh` in `layers.2` (Tanh), at " in said
    assert "test_verifying.py" in said and "loss = model(x).square().mean()" in said
    # Nothing has changed: not what was to be donated, not the random numbers.
    for param, old in zip(model.params(), before, strict=True):
        np.testing.assert_array_equal(param.val().numpy(), old)
    assert not optimizer.states
    position = px.random.normal((2,)).tolist()
    px.random.seed(3)
    assert px.random.normal((2,)).tolist() == position


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
def test_what_a_compiler_makes_wrong_of_several_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    x = px.tensor(np.random.default_rng(0).normal(size=(4, 8)), device=Torch())
    monkeypatch.setattr(stored_graphs, "mended", nullcontext)  # so that Inductor is as it is
    with pytest.raises(CompileError) as told:
        px.compile(freed, verify=True)(x)
    said = str(told.value)
    assert "1 of 3 results differ" in said and "the result[1]: " in said and "32 of 32 elements" in said
    assert "The first operation that differs: `mul`, at " in said and "product = sines * both[: x.shape[0]]" in said
    assert "the compiler fuses several of them wrongly" in said


@pytest.mark.parametrize("call", [
    lambda x: (x - x.mean(0)).sum(0),  # nothing but rounding
    lambda x: (x * 1e6).softmax(-1),
    lambda x: x / 0.0 + px.zeros((3,), device=x.device),
    lambda x: {"none": None, "many": (x.sum(), x.argmax(), x > 0.0), "text": "as it is"},
])  # fmt: skip
@pytest.mark.parametrize("backend", [Jax(), Torch(), Jax(float="bf16")], ids=str)
def test_rounding_is_no_difference(backend: Backend, call: Any) -> None:
    x = px.tensor(np.random.default_rng(0).normal(size=(500, 3)), device=backend)
    px.compile(call, verify=True)(x)
