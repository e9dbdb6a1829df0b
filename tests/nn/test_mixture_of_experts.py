"""Mixtures of experts: their formula, what is read and what is refused, balanced routing, shards, adapters, files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, ModuleError
from phlox.models import DecoderConfig, ExpertsConfig
from tests.simulated_devices import check_on_devices

SIZES: dict[str, Any] = {"d_model": 8, "d_hidden": 6, "n_experts": 4, "top_k": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"bias": True, "router_bias": True, "scores": "selected", "limit": 0.4, "scale": 2.0},
    "groups": {
        "scores": "sigmoid", "correction": True, "n_groups": 2, "group_score": "two_best", "d_shared": 5,
        "shared_scale": True, "renormalized": False,
    },
}  # fmt: skip
BACKENDS = [Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]


def layer_of(options: dict[str, Any], backend: Backend) -> Any:
    """A layer whose biases and correction are not zero."""
    layer = px.nn.MixtureOfExperts(**SIZES, **options).to_device(NumPy().device()).init(0)
    rng = np.random.default_rng(1)

    def changed(path: str, param: Any) -> Any:
        if not path.endswith(("bias", "correction")):
            return param
        return param.map(lambda value: value + px.tensor(rng.normal(size=value.shape) * 0.2, device=value.device))

    return layer.map(changed).to_device(backend.device())


def input_of(backend: Backend, rows: int = 11) -> Any:
    return px.tensor(np.random.default_rng(0).normal(size=(rows, 8)) * 2, kind=px.Float, device=backend.device())


def by_hand(layer: Any, x: Any) -> Any:
    """The formula, with all experts for all tokens."""
    routing = layer.router(x)
    shares = px.zeros((x.shape[0], 4), device=x.device)
    numbers = px.arange(4, device=x.device)
    for i in range(2):
        shares = shares + (routing.experts[:, i : i + 1] == numbers).float() * routing.weights[:, i : i + 1]
    y = px.zeros(x.shape, device=x.device)
    for expert in range(4):

        def linear(part: Any, h: Any, e: int = expert) -> Any:
            return h @ part.weight.val()[e] + (0.0 if part.bias is None else part.bias.val()[e])

        gate, up = linear(layer.gate, x), linear(layer.up, x)
        if layer.limit is None:
            hidden = px.functional.silu(gate) * up
        else:
            gate, up = gate.minimum(layer.limit), up.clip(-layer.limit, layer.limit)
            hidden = gate * px.functional.sigmoid(gate * 1.702) * (up + 1.0)
        y = y + linear(layer.down, hidden) * shares[:, expert : expert + 1]
    return y if layer.shared is None else y + layer.shared(x)


@pytest.mark.parametrize(("backend", "case", "compiled"), [
    pytest.param(
        backend, case, compiled,
        # Jax is slow in eager code, where it compiles each operation.
        marks=[] if (not compiled if i != 1 else compiled and case == "groups") else [pytest.mark.full],
    )
    for i, backend in enumerate(BACKENDS) for case in OPTIONS for compiled in (False, True)
])  # fmt: skip
def test_values_and_gradients_are_those_of_all_experts(case: str, backend: Backend, compiled: bool) -> None:
    layer, x = layer_of(OPTIONS[case], backend).train(), input_of(backend)

    def loss(layer: Any, x: Any) -> Any:
        return layer(x).square().sum()

    def expected(layer: Any, x: Any) -> Any:
        return by_hand(layer, x).square().sum()

    evaluate = px.value_and_grad(loss, argnums=(0, 1))
    value, (gradients, dx) = (px.compile(evaluate) if compiled else evaluate)(layer, x)
    wanted, (gradients_by_hand, dx_by_hand) = px.value_and_grad(expected, argnums=(0, 1))(layer, x)
    np.testing.assert_allclose(value.item(), wanted.item(), rtol=1e-5)
    np.testing.assert_allclose(dx.numpy(), dx_by_hand.numpy(), atol=1e-4)
    gradients, gradients_by_hand = dict(gradients.items()), dict(gradients_by_hand.items())
    assert gradients.keys() == gradients_by_hand.keys() == {param.id for param in layer.params() if param.trained}
    for id, gradient in gradients.items():
        np.testing.assert_allclose(gradient.numpy(), gradients_by_hand[id].numpy(), atol=2e-4)


@pytest.mark.parametrize("backend", [NumPy(), Torch()], ids=repr)
def test_weights_of_unused_experts_are_not_read(backend: Backend) -> None:
    layer, x = layer_of({}, backend), input_of(backend, 1)
    used = set(layer.router(x).experts.flatten().tolist())

    def spoiled(path: str, param: Any) -> Any:
        rows = np.array([1.0 if expert in used else math.nan for expert in range(4)])
        factor = px.tensor(rows.reshape(4, 1, 1), kind=px.Float, device=param.device)
        return param.map(lambda value: value * factor) if len(param.shape) == 3 else param

    expected = layer(x).numpy()
    np.testing.assert_array_equal(layer.map(spoiled)(x).numpy(), expected)


def test_examples_are_batched() -> None:
    layer, x = layer_of(OPTIONS["groups"], NumPy()), input_of(NumPy()).reshape((1, 11, 8))
    x = px.concat([x, x * 2.0])
    np.testing.assert_allclose(px.vmap(layer)(x).numpy(), layer(x).numpy(), atol=1e-6)


def test_a_balanced_router_has_the_least_loss() -> None:
    layer = layer_of({}, Autodiff(NumPy())).train()
    x = px.tensor(np.random.default_rng(0).normal(size=(256, 8)) + 0.5, kind=px.Float, device=layer.gate.weight.device)
    loads: list[float] = []
    loss = px.tensor(0.0)
    for _ in range(60):
        loss, gradients = px.value_and_grad(lambda layer: px.nn.balance_loss([layer.with_routing(x)[1]]))(layer)
        loads.append(layer.with_routing(x)[1].load.max().item())
        weight = layer.router.weight
        weight.set(weight.val() - dict(gradients.items())[weight.id] * 0.5)
    assert loss.item() >= 2.0 - 1e-3
    assert loads[-1] < loads[0] and loads[-1] < 0.7, loads  # 0.5 of the tokens for each expert are the balance


def test_a_correction_balances_without_a_loss() -> None:
    layer, x = layer_of({"correction": True}, NumPy()), input_of(NumPy(), 256) + 0.5
    before = layer.with_routing(x)[1].load
    for _ in range(200):
        layer.router.balance(layer.with_routing(x)[1], rate=0.01)
    after = layer.with_routing(x)[1].load
    assert after.max().item() < before.max().item() and after.max().item() < 0.6
    training = layer_of({"correction": True}, Autodiff(NumPy())).train()

    @px.compile
    def step(layer: Any, x: Any) -> Any:
        y, routing = layer.with_routing(x)
        y.sum().backward()
        layer.router.balance(routing)
        return layer

    corrected = step(training, x.to_device(Autodiff(NumPy()).device()))
    assert (
        corrected.router.correction.val() - layer_of({"correction": True}, NumPy()).router.correction.val()
    ).abs().max() > 5e-4
    with pytest.raises(ConfigError, match="correction=True"):
        px.nn.Router(8, 4, 2).balance(layer.with_routing(x)[1])


@pytest.mark.parametrize(
    "backend", [Torch(float="bf16"), pytest.param(Jax(float="bf16"), marks=pytest.mark.full)], ids=repr
)
def test_half_precision_routes_at_full(backend: Backend) -> None:
    experts = ExpertsConfig(n_experts=4, top_k=2, balance=0.5)
    config = DecoderConfig(vocabulary=20, context=8, n_layers=1, d_model=16, n_heads=2, experts=experts)
    model = config.init("numpy").init(0)
    tokens = np.arange(8)[None]
    expected = model.loss(*[px.tensor(tokens, device="numpy")] * 2).item()
    half = config.init(Autodiff(backend).device()).load_record(model.into_record()).train()
    given = px.tensor(tokens, device=Autodiff(backend).device())
    loss, _ = px.value_and_grad(lambda model: model.loss(given, given))(half)
    np.testing.assert_allclose(loss.item(), expected, rtol=0.02)
    assert (
        half.with_routings(given)[1][0].weights.backend.full_precision()
        is half.with_routings(given)[1][0].weights.backend
    )


def test_the_loss_of_a_model_has_that_of_its_routers() -> None:
    sizes: dict[str, Any] = {"vocabulary": 20, "context": 8, "n_layers": 3, "d_model": 8, "n_heads": 2}
    experts = ExpertsConfig(n_experts=4, top_k=2, layers=(0, 2), balance=0.5)
    tokens = px.tensor(np.arange(8)[None], device="numpy")
    model = DecoderConfig(**sizes, experts=experts).init("numpy").init(0)
    plain = DecoderConfig(**sizes, experts=experts.replace(balance=0.0)).init("numpy").load_record(model.into_record())
    _, routings = model.with_routings(tokens)
    assert len(routings) == 2
    difference = model.loss(tokens, tokens).item() - plain.loss(tokens, tokens).item()
    np.testing.assert_allclose(difference, 0.5 * px.nn.balance_loss(routings).item(), rtol=1e-5)


def test_adapters_and_packed_weights() -> None:
    layer = px.nn.MixtureOfExperts(64, 32, n_experts=4, top_k=2).to_device("numpy").init(0)
    x = px.tensor(np.random.default_rng(0).normal(size=(5, 64)), kind=px.Float, device="numpy")

    def started(path: str, param: Any) -> Any:
        return param.map(lambda value: value + 0.1) if path.endswith(".B") else param

    lora = px.lora(layer, ["gate.weight", "down.weight"], rank=2).map(started)
    assert dict(lora.named_params())["gate.weight.lora.default.A"].shape == (4, 64, 2)
    packed = px.quantize(layer, ["gate.weight", "up.weight", "down.weight"], "int4", group=32)
    assert not np.allclose(lora(x).numpy(), layer(x).numpy(), atol=1e-3)
    np.testing.assert_allclose(packed(x).numpy(), layer(x).numpy(), atol=0.1)
    both = px.lora(packed, "gate.weight", rank=2).map(started)
    for model in (lora, packed, both):
        for rows in (1, 5):  # two and ten rows, of four experts
            np.testing.assert_allclose(model(x[:rows]).numpy(), px.merge(model)(x[:rows]).numpy(), atol=1e-5)
    with pytest.raises(ModuleError, match=r"gate\.weight: DoRA does not support the weights of experts"):
        px.dora(layer, "gate.weight", rank=2)
    with pytest.raises(ModuleError, match=r"gate\.weight: IA3 does not support the weights of experts"):
        px.ia3(layer, "gate.weight")


@pytest.mark.full
@pytest.mark.parametrize("rows", [3, "n"])
def test_exported_files_compute_the_same(rows: Any, tmp_path: Path) -> None:
    layer = layer_of(OPTIONS["groups"], NumPy())
    for name in ("onnx", "stablehlo"):
        getattr(px.export, name)(layer, [px.TensorSpec((rows, 8))], tmp_path / f"m.{name}")  # compares the results


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 5}, "top_k must be from 1 to n_experts=4, got 5"),
        ({"n_groups": 3}, "n_groups=3 must divide n_experts=4"),
        ({"n_groups": 4, "top_groups": 1}, "1 groups of 1 experts have not top_k=2"),
    ],
)
def test_sizes_out_of_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        px.nn.MixtureOfExperts(**{**SIZES, **options})


SHARDED = """
import numpy as np, phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.distributed import Layout, Mesh
from phlox.models import DecoderConfig, ExpertsConfig

window = np.random.default_rng(0).integers(0, 32, (8, 9)).astype(np.int32)
experts = ExpertsConfig(n_experts=4, top_k=2, d_hidden=24, balance=0.01)
config = DecoderConfig(vocabulary=32, context=8, n_layers=1, d_model=16, n_heads=2, experts=experts)


def step(model, optimizer, lr, tokens, targets):
    loss = model.loss(tokens, targets)
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


def losses(mesh):
    model = config.init(Autodiff(Jax()).device())
    tokens, targets = window[:, :-1], window[:, 1:]
    if mesh is None:
        tokens, targets = px.tensor(tokens, device="jax"), px.tensor(targets, device="jax")
    else:
        layout = Layout({f"**.experts.{name}.weight": ("expert", None, None) for name in ("gate", "up", "down")})
        model, (tokens, targets) = model.shard(layout, mesh), mesh.batch(tokens, targets)
    model, optimizer, run, results = model.init(seed=0).train(), optim.AdamWConfig().init(), px.compile(step), []
    for _ in range(3):
        model, loss = run(model, optimizer, 1e-2, tokens, targets)
        results.append(loss.item())
    return model, results


model, results = losses(Mesh(data=2, expert=2, device="jax"))
np.testing.assert_allclose(results, losses(None)[1], atol=1e-5)
leaf = model.blocks[0].experts.gate.weight.leaf
assert leaf.addressable_shards[0].data.shape == (2, 16, 24), leaf.sharding
"""


@pytest.mark.full
def test_experts_can_be_on_several_devices() -> None:
    check_on_devices(4, SHARDED)
