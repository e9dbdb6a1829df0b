"""Layouts: the same losses however a model is cut, parameters made, loaded and trained in shards; what is refused."""

from __future__ import annotations

import pytest

from phlox import nn
from phlox.backend import NumPy
from phlox.distributed import Layout, Mesh, tensor_parallel
from phlox.errors import ShardingError
from phlox.models import GptConfig
from tests.simulated_devices import check_on_devices

TRAINED = """
import jax, numpy as np, phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.distributed import Layout, Mesh, tensor_parallel
from phlox.models import BertConfig, BertMaskedLmConfig, GptConfig, LlamaConfig

window = np.random.default_rng(0).integers(0, 32, (8, 9)).astype(np.int32)


def gpt_step(model, optimizer, lr, tokens, targets):
    loss = model.loss(tokens, targets)
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


def bert_step(model, optimizer, lr, tokens, targets):
    loss = px.nn.cross_entropy_loss(model(tokens).reshape((-1, 32)), targets.reshape((-1,)))
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


def losses(config, step, layout=None, mesh=None):
    px.random.seed(0)
    model = config.init(Autodiff(Jax()).device())
    tokens, targets = window[:, :-1], window[:, 1:]
    if mesh is None:
        tokens, targets = px.tensor(tokens, device="jax"), px.tensor(targets, device="jax")
    else:
        model = model.shard(layout(model, mesh), mesh)
        tokens, targets = mesh.batch(tokens, targets)
    model = model.init(seed=0).train()
    clipping = optim.GradientClipping.global_norm(0.5)
    optimizer, run, found = optim.AdamWConfig().init(grad_clipping=clipping), px.compile(step), []
    before = None if mesh is None else specs(model)
    for _ in range(6):
        model, loss = run(model, optimizer, 1e-2, tokens, targets)
        found.append(loss.item())
    if mesh is not None:
        assert specs(model) == before, "the results of a step are cut as the parameters were"
        held = {param.id: param for param in model.params()}
        for id, state in optimizer.states.items():
            for leaf in jax.tree.leaves(state):
                if getattr(leaf, "shape", None) == held[id].shape:
                    assert leaf.sharding.is_equivalent_to(held[id].leaf.sharding, leaf.ndim)
        assert optimizer.states
    return model, found


def specs(model):
    return {path: param.device.sharding.spec for path, param in model.named_params()}


LAYOUTS = {
    "data parallel": (lambda model, mesh: Layout(), dict(data=-1)),
    "fsdp": (lambda model, mesh: Layout(rest="data", least=0), dict(data=-1)),
    "tensor parallel": (tensor_parallel, dict(data=-1, model=2)),
    "all of it": (lambda model, mesh: tensor_parallel(model, mesh, fsdp="data"), dict(data=2, model=2)),
}
sizes = dict(vocabulary=32, context=16, n_layers=1, d_model=16, n_heads=4)
gpt, llama = GptConfig(dropout=0.1, **sizes), LlamaConfig(n_kv_heads=2, **sizes)
bert = BertMaskedLmConfig(BertConfig(dropout=0.1, padding_index=None, **sizes))
TABLE = [(gpt, gpt_step, LAYOUTS), (llama, gpt_step, ["tensor parallel"]), (bert, bert_step, ["all of it"])]
for config, step, names in TABLE:
    _, expected = losses(config, step)
    assert expected[-1] < expected[0]
    for name in names:
        layout, axes = LAYOUTS[name]
        model, found = losses(config, step, layout, Mesh(device="jax", **axes))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{type(config).__name__}, {name}")
up = losses(gpt, gpt_step, tensor_parallel, Mesh(data=-1, model=2, device="jax"))[0].blocks[0].up.weight
assert up.device.sharding.spec == (None, "model"), up.device.sharding
assert up.leaf.addressable_shards[0].data.shape == (16, 32)
"""


@pytest.mark.full
def test_losses_are_those_of_one_device_for_every_layout() -> None:
    check_on_devices(4, TRAINED)


MADE = """
import warnings
import jax, numpy as np, phlox as px, pytest
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy
from phlox.distributed import Layout, Mesh
from phlox.errors import ShardingWarning

mesh = Mesh(data=2, model=4, device="jax")
layout = Layout({"*.0.weight": (None, "model"), "*.0.bias": ("model",), "layers.1": None}, rest="data", least=0)


def shards_of(model):
    return [param.leaf.addressable_shards[0].data.shape for param in model.params()]


def network(device):
    first, second = nn.Linear(8, 16, device=device), nn.Linear(16, 6, device=device)
    return nn.Sequential([first, nn.LayerNorm(16, device=device), second])


CUT = [(8, 4), (4,), (16,), (16,), (8, 6), (3,)]
model = network(Jax()).shard(layout, mesh)
assert not any(param.is_initialized for param in model.params()), "deferred parameters stay deferred"
model.init(seed=3)
whole = network(NumPy()).init(seed=3)
assert shards_of(model) == CUT, shards_of(model)
for mine, other in zip(model.params(), whole.params(), strict=True):
    np.testing.assert_array_equal(mine.val().numpy(), other.val().numpy())

# Values that are there are cut; a record is loaded into shards, of full and of half precision; and on a tape.
assert shards_of(network(Jax()).init(seed=3).shard(layout, mesh)) == CUT
for config in (Jax(), Jax(float="bf16"), Autodiff(Jax())):
    for fresh in (network(config).shard(layout, mesh), network(config).shard(layout, mesh).init(seed=9)):
        loaded = fresh.load_record(whole.into_record())
        assert shards_of(loaded) == CUT
        found = loaded.layers[2].weight.val().numpy().astype(np.float32)
        np.testing.assert_allclose(found, whole.layers[2].weight.val().numpy(), rtol=1e-2)
back = network(NumPy()).load_record(model.into_record())
np.testing.assert_array_equal(back.layers[0].weight.val().numpy(), whole.layers[0].weight.val().numpy())

# The device of a parameter says how it is cut, and what is made there is cut so where the sizes allow it.
weight = model.layers[0].weight
assert weight.device.sharding.spec == (None, "model")
there = weight.device
for made in (
    px.zeros((8, 16), device=there), px.tensor(np.ones((8, 16)), device=there),
    px.random.normal((8, 16), device=there), px.zeros_like(weight.val()),
):
    assert made.device.sharding.spec == (None, "model") and made.primitive.addressable_shards[0].data.shape == (8, 4)
assert px.zeros((5,), device=weight.device).primitive.sharding.is_fully_replicated

# What is moved to one device is gathered there; what is large says so.
alone = weight.val().to_device("jax:cpu:0")
assert alone.device.sharding is None and len(alone.primitive.devices()) == 1
large = px.zeros((1024, 512), device=weight.device)
told = r"shape \\(1024, 512\\), 2.10 MB in shards on 8 devices, is gathered on 'cpu:0'"
with pytest.warns(ShardingWarning, match=told):
    large.to_device("jax:cpu:0")

# Every part is listed once, as what has to be written.
parts = Jax().shards(weight.leaf)
assert len(parts) == 4
joined = np.concatenate([part.read() for part in sorted(parts, key=lambda part: part.index[1].start)], axis=1)
np.testing.assert_array_equal(joined, weight.val().numpy())
lazy = model.into_record()["layers.0.weight"].tensor
assert sorted(part.index for part in lazy.shards()) == sorted(part.index for part in parts)
"""


def test_parameters_are_made_and_loaded_in_shards() -> None:
    check_on_devices(8, MADE)


DRAWS = """
import jax, numpy as np, phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy
from phlox.backend.jax.sharding import fitted, in_shards
from phlox.backend.jax import random
from phlox.distributed import Mesh

mesh = Mesh(data=-1, device="jax")
cut = mesh.device_for(("data",))
state = np.array([1, 2, 3], np.uint32)
EXCHANGED = ("all-gather", "all-reduce", "collective-permute", "all-to-all")
for shape in ((16, 5), (8, 3, 7)):
    target, dtype = fitted(cut.sharding, shape), np.dtype("f4")
    for fn, static, more in (
        (random._normal, (shape, dtype, None), ()), (random._uniform, (shape, dtype, None), ()),
        (random._bernoulli, (shape, None), (np.uint32(6553),)),
        (random._integers, (shape, None), (np.uint32(3), np.uint32(9))),
    ):
        program = in_shards(fn, static, target).lower(state, *more).compile()
        assert not any(word in program.as_text() for word in EXCHANGED)
        assert program.memory_analysis().temp_size_in_bytes <= np.prod(shape) // 8 * 4
    for draw in (px.random.normal, px.random.uniform):
        with px.random.stream(5):
            mine = draw(shape, device=cut)
        with px.random.stream(5):
            np.testing.assert_array_equal(mine.numpy(), draw(shape, device=NumPy()).numpy())
x = px.ones((16, 64), device=cut)


def masked(state, x):
    mask = random.random_bernoulli(state, (16, 64), 6553)
    return px.where(px.Tensor.from_primitive(mask, Jax()), px.Tensor.from_primitive(x, Jax()), 0.0).primitive


text = jax.jit(masked).lower(state, x.primitive).compile().as_text()
assert not any(word in text for word in EXCHANGED)
"""


def test_draws_are_made_in_shards_and_nothing_is_sent() -> None:
    check_on_devices(8, DRAWS)


def _model() -> nn.Sequential:
    return nn.Sequential([nn.Linear(3, 4, device=NumPy()), nn.Linear(4, 2, device=NumPy())])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout({"*.7.weight": (None, "data")}), r"no parameter matches `\*\.7\.weight`"),
        (
            Layout({"layers.0.bias": (None, "data")}),
            r"`layers\.0\.bias` has the shape \(4,\), and its layout .* has 2 axes",
        ),
        (
            Layout({"layers.0.weight": ("model", None)}),
            r"`layers\.0\.weight`: the mesh has no axis 'model'; it has data",
        ),
        (Layout({"layers.0.weight": ("data", "data")}), r"`layers\.0\.weight`: its layout .* has 'data' twice"),
        (Layout(rest="rows"), r"the mesh has no axis 'rows' \(rest=\); it has data"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_with_the_path(layout: Layout, message: str) -> None:
    with pytest.raises(ShardingError, match=message):
        _model().shard(layout, Mesh(data=1, device="numpy"))


def test_all_that_does_not_fit_is_said_at_once() -> None:
    layout = Layout({"head": None, "layers.0.bias": (None, None, "data")}, rest="model")
    with pytest.raises(ShardingError, match=r"(?s)no parameter matches `head`.*layers\.0\.bias.*no axis 'model'"):
        _model().shard(layout, Mesh(data=1, device="numpy"))


@pytest.mark.parametrize("spec", ["data", ["data"], (1, "data"), ((), "data")])
def test_a_spec_that_is_none_is_refused(spec: object) -> None:
    with pytest.raises(ShardingError, match="give for each axis of the parameter the name of a mesh axis"):
        Layout({"*.weight": spec})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShardingError, match="rest= is the name of a mesh axis"):
        Layout(rest=["data"])  # pyright: ignore[reportArgumentType]


def test_the_first_pattern_counts_and_tied_parameters_are_found_by_each_path() -> None:
    model = _model()
    model.layers[1].also = model.layers[0].weight
    mesh = Mesh(data=1, device="numpy")
    specs = Layout({"layers.1.also": ("data",), "**.weight": (None, "data")}).specs(model, mesh)
    assert specs["layers.0.weight"] == ("data",) and specs["layers.1.weight"] == (None, "data")
    assert specs["layers.0.bias"] == ()


def test_rest_cuts_the_longest_axis_that_divides() -> None:
    class Three:
        shape = {"data": 3}  # noqa: RUF012
        axes = ("data",)
        partitions = True

    model = nn.Sequential([nn.Linear(6, 9), nn.Linear(9, 7), nn.Linear(7, 7)])
    specs = Layout(rest="data", least=10).specs(model, Three())  # pyright: ignore[reportArgumentType]
    assert specs == {
        "layers.0.weight": (None, "data"), "layers.0.bias": (), "layers.1.weight": ("data",), "layers.1.bias": (),
        "layers.2.weight": (), "layers.2.bias": (),
    }  # fmt: skip


def test_a_model_of_another_engine_is_refused() -> None:
    with pytest.raises(ShardingError, match=r"`layers\.0\.weight` is on NumPy\(\), and the mesh on Jax\(\); move"):
        _model().shard(Layout(), Mesh(data=-1, device="jax"))


def test_tensor_parallel_knows_what_it_can_cut() -> None:
    mesh = Mesh(data=1, model=1, device="jax")
    with pytest.raises(ShardingError, match="Sequential has no parameters of the names"):
        tensor_parallel(_model(), mesh)
    with pytest.raises(ShardingError, match="no axis 'tensor'; it has data, model"):
        tensor_parallel(GptConfig().init(), mesh, "tensor")
