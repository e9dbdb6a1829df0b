"""Modules whose arrays are spread over several devices."""

from __future__ import annotations

import pytest

from tests.simulated_devices import check_on_devices

PROGRAM = """
import jax, numpy as np, phlox as px
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from phlox import nn
from phlox.backend import Jax

device = Jax().device("cpu:0")
model = nn.Sequential([nn.Linear(4, 8, device=device), px.lift(jax.nn.relu), nn.Linear(8, 4, device=device)]).init(0)
x = px.random.normal((8, 4), device=device)
expected = model(x).numpy()
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("data"))
sharded, batch = jax.device_put(model, rows), jax.device_put(x, rows)
assert all(len(leaf.sharding.device_set) == 4 for leaf in jax.tree.leaves(sharded))
assert sharded.layers[0].weight.device == device and sharded.layers[0].weight.shape == (4, 8)
assert repr(sharded) == repr(model) and "cpu:0" in repr(sharded.layers[0].weight)

run = jax.jit(lambda m, x: m(x), out_shardings=rows)
out = run(sharded, batch)
np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)
assert len(out.primitive.sharding.device_set) == 4
differentiate = jax.jit(jax.grad(lambda m, x: m(x).square().mean().primitive))
gradient, plain = differentiate(sharded, batch), differentiate(model, x)
for mine, other in zip(gradient.params(), plain.params(), strict=True):
    np.testing.assert_allclose(mine.val().numpy(), other.val().numpy(), rtol=1e-4, atol=1e-6)

for view in (sharded.train(), sharded.valid(tape=True), sharded.freeze()):
    assert len(view.layers[0].weight.leaf.sharding.device_set) == 4
for moved in (sharded.to_device(Jax().device("cpu:1")), sharded.to_device("numpy")):
    np.testing.assert_array_equal(moved.layers[2].weight.val().numpy(), model.layers[2].weight.val().numpy())
assert len(sharded.to_device(Jax().device("cpu:1")).layers[0].weight.leaf.sharding.device_set) == 1
restored = nn.Sequential([nn.Linear(4, 8), px.lift(jax.nn.relu), nn.Linear(8, 4)]).load_record(sharded.into_record())
np.testing.assert_allclose(restored.to_device(device)(x).numpy(), expected, rtol=1e-5, atol=1e-6)
"""


def test_sharded_modules() -> None:
    check_on_devices(4, PROGRAM)


TRAINED = """
import sys
import jax, numpy as np, phlox as px
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

name, axis = sys.argv[1:]
device = Autodiff(Jax()).device("cpu:0")
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
spread = NamedSharding(mesh, PartitionSpec("data" if axis == "rows" else None))
config = getattr(optim, name + "Config")()
x, y = px.random.normal((8, 4), device=device), px.random.normal((8, 4), device=device)


def step(model, optimizer, x, y):
    loss = (model(x) - y).square().mean()
    return optimizer.step(0.1, model, px.GradientsParams.from_grads(loss.backward(), model)), loss


def trained(place):
    run = px.compile(step)
    model = place(nn.Sequential([nn.Linear(4, 8, device=device), nn.Linear(8, 4, device=device)]).init(0))
    optimizer, losses = config.init(), []
    for turn in range(6):
        if turn == 3:  # from a record on
            kept = optimizer.into_record()
            optimizer = config.init()
            optimizer.load_record(kept)
        model, loss = run(model, optimizer, place(x), place(y))
        losses.append(loss.item())
    return model, losses


model, losses = trained(lambda tree: jax.device_put(tree, spread))
_, expected = trained(lambda tree: tree)
np.testing.assert_allclose(losses, expected, rtol=1e-4)
assert losses[-1] < losses[0]
assert all(len(leaf.sharding.device_set) == 4 for leaf in jax.tree.leaves(model))
"""


ASIDE = """
import jax, numpy as np, phlox as px, pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from phlox import nn
from phlox.backend import Autodiff, Jax
from phlox.errors import DeviceError

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
device = Autodiff(Jax()).device("cpu:0")


class Model(px.Module):
    def __init__(self):
        rotary = nn.RotaryEncodingConfig(4)
        self.attention = nn.MultiHeadAttention(8, 2, causal=True, dropout=0.3, rotary=rotary, device=device)
        self.lstm = nn.Lstm(8, 8, device=device)
        self.drop = nn.Dropout(0.5)

    def __call__(self, x):
        return self.drop(self.lstm(self.attention(x))[0])


def gradients(model, x):
    with px.random.stream(3):
        loss = model(x).square().mean()
    grads = px.GradientsParams.from_grads(loss.backward(), model)
    return [loss.item()] + [grads.get(param.id).numpy() for param in model.params()]


# In eager training, what is made on the way (masks, angles, first states) is where the arrays are.
model, x = Model().init(0), px.random.normal((8, 4, 8), device=device)
expected = gradients(model, x)
for place in (rows, whole):
    for mine, other in zip(gradients(jax.device_put(model, place), jax.device_put(x, rows)), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)

# Its device is that of one device and the sharding, and what is made on it is cut alike, if its sizes allow it.
shards = jax.device_put(x, rows)
alike, whole = px.ones((8, 4, 8), device=shards.device), px.ones((3,), device=shards.device)
assert shards.device == x.device and repr(shards.device) == repr(x.device)
assert alike.primitive.sharding.is_equivalent_to(shards.primitive.sharding, 3)
assert whole.primitive.sharding.is_fully_replicated and len(whole.primitive.sharding.device_set) == 4
large = px.tensor(np.ones((1024, 512), np.float32), device=shards.device)
assert len(large.primitive.sharding.device_set) == 4

# Where those that are spread meet those that are not, or are spread over others, it says so, and the remedy helps.
pair = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
two = jax.device_put(x, NamedSharding(pair, PartitionSpec("data")))
remedy = r"; move one of them to the other device with \\.to_device\\(\\.\\.\\.\\)$"
with pytest.raises(DeviceError, match="^add: .*different devices, .*:cpu:0 and .*:cpu:0,1,2,3" + remedy):
    x + shards
with pytest.raises(DeviceError, match="^add: .*different devices, .*:cpu:0,1 and .*:cpu:0,1,2,3" + remedy):
    two + shards
with pytest.raises(DeviceError, match="linear: .*different devices, .*:cpu:0 and .*:cpu:0,1,2,3" + remedy):
    jax.device_put(nn.Linear(8, 8, device=device).init(0), rows)(x)
with pytest.raises(DeviceError, match="x on jax:cpu:0 and y on jax:cpu:0,1,2,3" + remedy):
    px.compile(lambda x, y: x + y)(x, shards)
for one in (x, two):
    moved = one.to_device(shards.device)
    np.testing.assert_allclose((moved + shards).numpy(), (x + x).numpy())
gathered = shards.to_device(x.device)
assert len(gathered.primitive.devices()) == 1
a = x.require_grad()
np.testing.assert_array_equal(a.grad((a.to_device(shards.device) * 2.0).sum().backward()).numpy(), 2.0)
"""


@pytest.mark.full
def test_what_is_made_beside_shards_is_where_they_are() -> None:
    check_on_devices(4, ASIDE)


@pytest.mark.every(3)
@pytest.mark.parametrize("axis", ["rows", "everywhere"])
@pytest.mark.parametrize("name", ["AdamW", "Sgd", "Adafactor"])
def test_sharded_modules_are_trained(name: str, axis: str) -> None:
    """States and counts are where the parameters are, from the first step on, and after a record."""
    check_on_devices(4, TRAINED, name, axis)
