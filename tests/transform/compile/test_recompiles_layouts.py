"""What is compiled again because arrays lie on devices in another way is counted and explained."""

from __future__ import annotations

from unittest.mock import patch

import pytest

import phlox as px
from phlox.backend import Jax
from tests.simulated_devices import check_on_devices

SCRIPT = """
import re, warnings
import numpy as np, jax, phlox as px
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
device = Autodiff(Jax()).device()
def put(tree, *spec):
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))

# --- an argument
double = px.compile(lambda x: x * 2.0)
x = px.ones((8, 16), device=Jax())
with px.debug.explain_recompiles() as found:
    for spec in (("data",), ("data", None), (("data",),), ("model",), (), ("data",), ("model",)):
        double(put(x, *spec))
assert double.traces == 1 and double.compilations == 3, (double.traces, double.compilations)
assert [one.number for one in found] == [2, 3]
assert str(found[0]).startswith(
    "<lambda> is compiled for the 2nd time: x was cut ('data', None) on data=2, model=4 and is cut ('model', None) on "
    "data=2, model=4 (every layout needs a program of its own"
), found[0]
assert "x was cut ('model', None) on data=2, model=4 and is whole on" in str(found[1])

# --- where it is traced, too: from one device to several; and NumPy arrays, which lie nowhere
with px.debug.explain_recompiles() as found:
    triple = px.compile(lambda x: x * 3.0)
    triple(x), triple(np.ones((8, 16), np.float32)), triple(x), triple(put(x, "data"))
assert triple.compilations == 2 and "x was whole on cpu:0 alone and is cut ('data', None)" in str(found[0]), found

# --- a step whose model, and with it the optimizer's state, changes its layout
def step(model, optimizer, x):
    loss = model(x).square().mean()
    return optimizer.step(0.01, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss

def sharded(model, spec):
    def cut(path, p):
        leaf = jax.device_put(p.leaf, NamedSharding(mesh, P(*spec) if p.leaf.ndim == 2 else P()))
        return p.holding(px.Tensor.from_primitive(leaf, p.backend, p.kind))
    return model.map(cut)

for donate in ((), ("model", "optimizer")):
    layers = [nn.Linear(8, 8, bias=False, device=device) for _ in range(2)]
    model = sharded(nn.Sequential(layers).init(0), (None, "model"))
    optimizer, run = optim.AdamWConfig().init(), px.compile(step, donate=donate)
    batch = put(px.ones((8, 8), device=device), "data")
    with px.debug.explain_recompiles() as found:
        for _ in range(3):
            model, _ = run(model, optimizer, batch)
        assert run.compilations == run.traces == 1 and not found, found
        assert all(p.leaf.sharding.spec == P(None, "model") for p in model.params())
        model = sharded(model, ())
        for _ in range(2):
            model, _ = run(model, optimizer, batch)
            assert all(p.leaf.sharding.is_fully_replicated for p in model.params()), "the layout of the first trace"
    assert run.traces == run.compilations == 2, (run.traces, run.compilations)
    changes = [str(change).split(" (every")[0] for change in found[0].changes]
    before, after = "was cut (None, 'model') on data=2, model=4", "and is whole on data=2, model=4"
    assert changes == [f"model.layers.{n}.weight {before} {after}" for n in (0, 1)], changes

# --- many are warned of
many = px.compile(lambda x: x + 1.0)
meshes = [jax.sharding.Mesh(np.roll(jax.devices(), k).reshape(s), tuple(n), axis_types=(AxisType.Auto,) * len(s))
          for k in range(8) for s, n in (((8,), "a"), ((2, 4), "ab"), ((4, 2), "ab"), ((2, 2, 2), "abc"))]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for one in meshes:
        for spec in (("a",), (None, "a")):
            many(jax.device_put(x, NamedSharding(one, P(*spec))))
assert many.compilations == 64, many.compilations
assert [str(one.message)[:44] for one in caught] == ["<lambda> has been compiled 64 times, and eve"], caught
"""


@pytest.mark.full
def test_other_layouts() -> None:
    check_on_devices(8, SCRIPT)


def test_one_device_is_spared_the_look() -> None:
    x, double = px.ones((3,), device=Jax()), px.compile(lambda x: x * 2.0)
    double(x)
    with (
        patch("phlox.backend.jax.compat.programs_of", side_effect=AssertionError),
        patch("phlox.transform.compile.executable.layouts_of", side_effect=AssertionError),
    ):
        double(x)
        double(px.ones((4,), device=Jax()))
    assert double.compilations == double.traces == 2
