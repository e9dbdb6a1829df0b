"""Optimizers in notebooks: hyper-parameters, groups and states, which stay packed, in memory and unread.

Serves: phlox/optim/pages.py
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.optim.pages import _entries
from phlox.record import load
from tests.markup import Markup, read

HOSTILE = "<script>\u202e"


def stepped(optimizer: Any, backend: Backend, *, compiled: bool = False, size: int = 8) -> tuple[Any, Any]:
    """The model and the optimizer after one step."""
    model = nn.Sequential([nn.Linear(4, size), nn.Linear(size, 1)]).init(0, Autodiff(backend)).train()

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        grads = optim.GradientsParams.from_grads(model(x).sum().backward(), model)
        return optimizer.step(0.1, model, grads)

    run = px.compile(step) if compiled else step
    return run(model, optimizer, px.ones((2, 4), device=Autodiff(backend))), optimizer


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Torch(float="bf16")], ids=repr)
def test_an_optimizer(backend: Backend, compiled: bool) -> None:
    groups = [
        optim.Group("**.bias", weight_decay=0.0, name=HOSTILE),
        optim.Group("layers.1.weight", lr_factor=0.5, optimizer=optim.SgdConfig(momentum=0.9)),
    ]
    optimizer = optim.AdamWConfig(beta_1=0.85).init(groups=groups, grad_clipping=optim.GradientClipping.norm(1.0))
    assert "0 states" in read(optimizer).text
    _, optimizer = stepped(optimizer, backend, compiled=compiled)
    packed = optimizer._packed
    found = read(optimizer)
    assert optimizer._packed is packed, "looking takes nothing apart"
    assert found.texts[0] == "AdamW" and "4 states" in found.text
    assert ["beta_1", "0.85"] in found.rows and [
        "grad_clipping",
        "GradientClipping(kind='norm', limit=1.0)",
    ] in found.rows
    assert ["'**.bias'", "<script>\\u202e", "1", "", "weight_decay=0.0"] in found.rows
    # Of the kernel of the first layer and both biases: 32 + 8 + 1 elements.
    assert ["moment_1", "float32", "3", "164 B"] in found.rows and ["velocity", "float32", "1", "32 B"] in found.rows
    assert ["time", "integer", "3", ""] in found.rows
    assert ("master" in found.text.replace("master_weights", "")) == (backend.float_element == "bf16")


def test_states_in_memory_of_the_optimizer_stay_there() -> None:
    _, optimizer = stepped(optim.AdamWConfig().init(donate=True), NumPy(), size=300_000)
    slots = dict(optimizer._slots)
    assert slots, "large models are stepped in memory of the optimizer's own"
    assert ["moment_1", "float32", "4", "7.20 MB"] in read(optimizer).rows
    assert optimizer._slots == slots


def test_loaded_states_stay_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = stepped(optim.AdamWConfig().init(), NumPy())
    path = px.record.save(optimizer.into_record(), tmp_path / "state")
    other = optim.AdamWConfig().init()
    other.load_record(load(path))
    monkeypatch.setattr("phlox.record.LazyTensor.read", lambda self: pytest.fail("read"))
    found = read(other)
    assert ["moment_1", "float32, not read yet", "4", "196 B"] in found.rows


@pytest.mark.parametrize("make", [
    lambda: optim.SgdConfig().init(), lambda: optim.MuonConfig().init(), lambda: optim.AdafactorConfig().init(),
    lambda: optim.ScheduleFreeAdamWConfig().init(), lambda: optim.LionConfig().init(skip_nonfinite=True),
])  # fmt: skip
def test_other_optimizers(make: Any) -> None:
    _, optimizer = stepped(make(), NumPy())
    assert "4 states" in read(optimizer).text and sum(size for *_, size in _entries(optimizer)) >= 0


def test_lbfgs_and_optimizers_of_ones_own() -> None:
    assert "Lbfgs" in read(optim.LbfgsConfig().init()).text

    class SignSgd(optim.SimpleOptimizer):
        def __init__(self) -> None:
            self.scale = HOSTILE

        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            return tensor - grad.sign() * lr, state

    _, optimizer = stepped(optim.OptimizerAdaptor(SignSgd()), NumPy())
    assert "SignSgd" in read(optimizer).text and "4 states" in read(optimizer).text


def test_optax() -> None:
    optax = pytest.importorskip("optax")
    _, optimizer = stepped(optim.OptaxAdaptor(optax.adam(0.1)), Jax())
    assert "OptaxAdaptor" in read(optimizer).text


def test_an_optimizer_whose_step_was_cut_short() -> None:
    _, optimizer = stepped(optim.AdamWConfig().init(), NumPy())
    optimizer.donate_states()
    assert "a step was cut short" in read(optimizer).badges


def test_within_a_program() -> None:
    found: list[str] = []

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        grads = optim.GradientsParams.from_grads(model(x).sum().backward(), model)
        model = optimizer.step(0.1, model, grads)
        found.append(optimizer._repr_html_())
        return model

    model = nn.Linear(3, 2).init(0, Autodiff(Jax())).train()
    px.compile(step)(model, optim.AdamWConfig().init(), px.ones((1, 3), device=Autodiff(Jax())))
    assert found and all(not Markup(text).is_fallback and "moment_1" in text for text in found)


def test_what_becomes_of_states() -> None:
    model, optimizer = stepped(optim.AdamWConfig().init(), NumPy())
    found = read(optimizer.report(model))
    assert "ok" in found.badges and "kept: 4" in found.text and ["layers.0.weight"] in found.rows
    found = read(optimizer.report(nn.Linear(2, 1).init(0)))
    assert "not ok" in found.badges and "to start anew: 2" in found.text
    assert "states of parameters that are not in the module (`forget` drops them): 4" in found.text
