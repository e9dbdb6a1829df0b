"""Training on eight devices that one processor plays: the losses are those of one device, and no array moves twice.

Serves: benchmarks/devices.py
"""

from __future__ import annotations

import pytest

from tests.simulated_devices import check_on_devices

PROGRAM = """
import faulthandler
faulthandler.dump_traceback_later(600, exit=True)
import jax, numpy as np
from benchmarks.devices import DEVICES, REPLICATED, SHARDED, SUBJECT, check, phlox_and_jax
from benchmarks.libraries import with_phlox
from benchmarks.workloads import Workload

assert len(jax.devices()) == DEVICES
workload = Workload("mlp", "MLP", "mlp", {"widths": (16, 512, 8), "batch": 16})
expected = with_phlox.Contestant(workload, "jax").losses(5)
for parameters, cut in ((REPLICATED, 0), (SHARDED, 2)):
    made = phlox_and_jax(workload, parameters)
    check(made)
    ours = phlox_and_jax(workload, parameters)[SUBJECT]
    placed = [leaf.sharding for leaf in jax.tree.leaves(ours.model)]
    assert sum(not one.is_fully_replicated for one in placed) == cut, (parameters, placed)
    np.testing.assert_allclose(ours.losses(5), expected, rtol=1e-4)
    assert all(len(leaf.sharding.device_set) == DEVICES for leaf in jax.tree.leaves(ours.model))
"""


PLACES = """
import faulthandler
faulthandler.dump_traceback_later(600, exit=True)
import jax, numpy as np, phlox as px
from benchmarks.devices import REPLICATED, SHARDED, placed
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

texts, compile = [], Jax.compile

def observed(self, fn, release):
    run = compile(self, fn, release)

    def call(*arrays):
        texts.append(run.lower(*arrays).compile().as_text())
        return run(*arrays)

    return call

Jax.compile = observed
device = Autodiff(Jax()).device()
layers = [nn.Linear(64, 64, device=device), nn.Linear(64, 128, device=device), nn.Linear(128, 64, device=device)]
model = nn.Sequential(layers).init(0)
x = px.random.normal((256, 64), device=device)

def step(model, optimizer, x):
    loss = model(x).square().mean()
    return optimizer.step(0.01, model, px.GradientsParams.from_grads(loss.backward(), model)), loss

def train(step, state, batch, optimizer):
    now, losses = state(model), []
    for _ in range(3):
        now, loss = step(now, optimizer, batch(x))
        losses.append(loss.item())
    for param in now.params():
        for moment in optimizer.states[param.id].values():
            if isinstance(moment, px.Tensor) and moment.shape == param.shape:
                assert moment.primitive.sharding == param.leaf.sharding, param.shape
    assert [a.sharding for a in jax.tree.leaves(now)] == [a.sharding for a in jax.tree.leaves(state(model))]
    return losses

for parameters, gathered in ((REPLICATED, 0), (SHARDED, 3)):
    state, batch = placed(parameters)
    for config in (optim.AdamWConfig(), optim.AdafactorConfig()):
        expected = train(step, lambda tree: tree, lambda tree: tree, config.init())
        np.testing.assert_allclose(train(step, state, batch, config.init()), expected, rtol=1e-4)
        texts.clear()
        losses = train(px.compile(step), state, batch, config.init())
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        if isinstance(config, optim.AdamWConfig):
            # Each weight once, for the way there and the way back.
            assert [text.count(" all-gather(") for text in texts] == [gathered] * 3, parameters
"""


ATTENTION = """
import faulthandler
faulthandler.dump_traceback_later(600, exit=True)
import jax, numpy as np, phlox as px
from benchmarks.devices import REPLICATED, SHARDED, placed
from phlox import nn
from phlox.backend import Autodiff, Jax

device = Autodiff(Jax()).device()
x, other = (px.random.normal((16, 8, 64), device=device) for _ in range(2))


class Product(px.Module):
    def __init__(self):
        self.weight = px.Param.deferred((64, 64), nn.initializer.XavierUniform(), fans=(64, 64), device=device)

    def __call__(self, x):
        return (x @ self.weight.val()).square() @ self.weight.val()


def gradients(model, *x):
    loss = model(*x).square().mean()
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    return loss, [grads.get(param.id) for param in model.params()]


# A model, and how often weights are gathered: of three projections of one input all at once.
plain, grouped = nn.MultiHeadAttention(64, 4, device=device), nn.MultiHeadAttention(64, 4, n_kv_heads=2, device=device)
bare = nn.MultiHeadAttention(64, 4, bias=False, causal=True, device=device)
cases = [(plain, (x,), 2), (grouped, (x,), 2), (bare, (x,), 2), (plain, (x, other), 4), (Product(), (x,), 1)]
for model, inputs, gathers in cases:
    model = model.init(0)
    loss, expected = gradients(model, *inputs)
    for parameters in (REPLICATED, SHARDED):
        state, batch = placed(parameters)
        there, arrays = state(model), [batch(one) for one in inputs]
        found_loss, found = px.compile(gradients)(there, *arrays)
        np.testing.assert_allclose(found_loss.item(), loss.item(), rtol=1e-5)
        for mine, one in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine.numpy(), one.numpy(), rtol=1e-3, atol=1e-6)
        flat = jax.jit(lambda model, *x: [g.primitive for g in gradients(model, *x)[1]])
        text = flat.lower(there, *arrays).compile().as_text()
        assert text.count(" all-gather(") == gathers * (parameters == SHARDED), (model, parameters)
"""


@pytest.mark.full
@pytest.mark.parametrize("program", [PROGRAM, PLACES, ATTENTION], ids=["losses", "places", "attention"])
def test_a_step_on_eight_devices_is_that_on_one(program: str) -> None:
    check_on_devices(8, program)
