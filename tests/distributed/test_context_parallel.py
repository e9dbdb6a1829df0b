"""Sequences cut over devices, and replicas of shards: the losses of one device, and what is sent, by XLA's counts.

Serves: src/phlox/distributed/mesh.py, src/phlox/tensor/functional/classification.py
Serves: src/phlox/backend/jax/{attention,linear,meshes}.py
"""

from __future__ import annotations

import pytest

from phlox.distributed import Mesh
from phlox.errors import ShardingError
from tests.simulated_devices import check_on_devices

PROGRAM = """
import numpy as np, phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.distributed import Layout, Mesh, tensor_parallel
from phlox.models import BertConfig, BertMaskedLmConfig, GptConfig, LlamaConfig
from phlox.tensor import functional

ROWS, N = 4, 64
sizes = dict(vocabulary=96, context=N, n_layers=2, d_model=32, n_heads=4)
text = np.random.default_rng(0).integers(0, 96, (ROWS, N + 1)).astype(np.int32)


def plain(model, tokens, targets):
    return model.loss(tokens, targets)


def recomputed(model, tokens, targets):
    x = model.embed(tokens)
    for block in model.blocks:
        x = px.checkpoint(block)(x)
    return functional.cross_entropy(model.logits(model.norm(x)), targets)


def padded(model, tokens, targets):  # some targets are ignored, and the classes have weights
    weight = px.linspace(0.5, 1.5, 96, device=tokens.device)
    options = dict(ignore_index=3, label_smoothing=0.1, weight=weight)
    return functional.cross_entropy(model(tokens), targets, **options)


def run(config, axes, loss=plain, layout=None):
    def step(model, optimizer, lr, tokens, targets):
        value = loss(model, tokens, targets)
        return optimizer.step(lr, model, optim.GradientsParams.from_grads(value.backward(), model)), value

    mesh = Mesh(device="jax", **axes)
    model = config.init(Autodiff(Jax()).device())
    model = model.shard(layout(model, mesh) if callable(layout) else layout or Layout(), mesh).init(0).train()
    batch = mesh.batch(text[:, :-1], text[:, 1:])
    program, optimizer, losses = px.compile(step), optim.AdamWConfig().init(), []
    report = program.lower(model, optimizer, 1e-2, *batch)
    px.random.seed(1)
    for _ in range(3):
        model, value = program(model, optimizer, 1e-2, *batch)
        losses.append(value.item())
    return losses, report, model, batch[0]


def same(config, loss, *cases):
    expected, alone, *_ = run(config, {"data": 1}, loss)
    assert expected[-1] < expected[0]
    found = []
    for axes, layout in cases:
        losses, report, model, tokens = run(config, axes, loss, layout)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5, err_msg=f"{config} {axes} {loss.__name__}")
        found.append((report, model, tokens))
    return alone, found
"""

SEQUENCES = """
gpt, llama = GptConfig(dropout=0.1, **sizes), LlamaConfig(n_kv_heads=2, **sizes)
alone, found = same(llama, plain, ({"seq": 4}, None), ({"data": 2, "seq": 2}, None))
for (report, _, tokens), (rows, n, sums) in zip(found, ((4, 16, 1), (2, 32, 2)), strict=True):
    assert tokens.primitive.addressable_shards[0].data.shape == (rows, n)
    # Only keys and values are gathered, each of the two once a layer, of two heads of eight numbers.
    assert report.collectives["all-gather"].payload == 2 * 2 * rows * N * 2 * 8 * 4, report
    assert set(report.collectives) <= {"all-gather", "all-reduce", "reduce-scatter"}
    # Their gradients, for each head, are summed, and those of the parameters over each axis; no sum is scattered here.
    count = sum(int(np.prod(param.shape)) for _, param in llama.init("numpy").named_params())
    assert report.collectives["all-reduce"].payload < sums * 4 * count + 2 * 2 * rows * N * 4 * 8 * 4 + 1000, report
    assert report.temporaries < 0.45 * alone.temporaries, (report.temporaries, alone.temporaries)

both = lambda model, mesh: Layout(rest=("data", "seq"), least=0)
same(gpt, plain, ({"data": 2, "seq": 2}, both))
same(gpt, recomputed, ({"seq": 4}, None))
same(llama, padded, ({"seq": 2, "model": 2}, tensor_parallel))
bert = BertMaskedLmConfig(BertConfig(dropout=0.0, padding_index=None, pooler=False, **sizes))
same(bert, plain, ({"seq": 4}, None))

# Masks and biases of attention, and a sequence that does not divide: whole, and right.
mesh = Mesh(device="jax", seq=4)
rng = np.random.default_rng(1)
q, k, v = (rng.normal(size=(2, heads, 16, 8)).astype(np.float32) for heads in (4, 2, 2))
bias, mask = rng.normal(size=(2, 1, 16, 16)).astype(np.float32), rng.random((2, 1, 1, 16)) < 0.7


def attended(q, k, v, bias, mask):
    return functional.attention(q, k, v, bias=bias, mask=mask, causal=True)


for n in (16, 15):
    cut = (q[:, :, :n], k[:, :, :n], v[:, :, :n], bias[..., :n, :n], mask[..., :n])
    results = []
    for place in (px.tensor(0.0, device="jax").device, mesh.device_for((None, None, "seq"))):
        given = [px.tensor(x, device="jax").to_device(place) for x in cut]
        for call in (px.compile(px.value_and_grad(lambda *xs: (attended(*xs) ** 2).sum(), argnums=(0, 1, 2, 3))),):
            value, grads = call(*given)
            results.append([value.numpy(), *(x.numpy() for x in grads)])
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
assert mesh.batch(np.ones((3, 6)), np.ones(3))[0].device.sharding.is_replicated, "6 do not divide over 4"
"""

REPLICAS = """
replicas = lambda model, mesh: Layout(rest="data", least=0)
gpt = GptConfig(dropout=0.1, **sizes)
_, [(report, model, tokens)] = same(gpt, plain, ({"replica": 2, "data": 2}, replicas))
assert tokens.primitive.addressable_shards[0].data.shape == (1, N), "rows are cut over both axes"
weight = model.blocks[0].up.weight
assert weight.device.sharding.spec == (None, "data")
shards = {shard.device.id: shard for shard in weight.leaf.addressable_shards}
assert [shards[n].data.shape for n in range(4)] == [(32, 64)] * 4, "cut within a replica"
for n in (0, 1):
    assert shards[n].index == shards[n + 2].index != shards[1 - n].index
    np.testing.assert_array_equal(np.asarray(shards[n].data), np.asarray(shards[n + 2].data))
_, whole, *_ = run(gpt, {"data": 4})
assert report.arguments < 0.6 * whole.arguments, "a device has half of parameters and states"
"""


@pytest.mark.full
@pytest.mark.parametrize("cases", [SEQUENCES, REPLICAS], ids=["sequences", "replicas"])
def test_the_losses_of_one_device(cases: str) -> None:
    check_on_devices(4, PROGRAM + cases)


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_other_engines(engine: str) -> None:
    with pytest.raises(ShardingError, match="does not cut sequences"):
        Mesh(seq=2, device=engine)
    mesh = Mesh(seq=1, device=engine)
    assert mesh.batch_axes == () and mesh.cuts == 1 and mesh.part == (0, 1)
