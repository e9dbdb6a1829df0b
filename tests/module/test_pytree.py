"""Modules as JAX PyTrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

JAX = Jax().device()
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Net(px.Module):
    def __init__(self, device: Any = JAX) -> None:
        self.layers = [nn.Linear(4, 5, device=device), nn.Gelu(), nn.LayerNorm(5, device=device)]
        self.head = {"out": nn.Linear(5, 1, device=device)}
        self.tied = self.head["out"].weight
        self.mean = px.Param(px.full((1,), 0.5, device=device), trained=False)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head["out"](x) + self.mean.val()


def tensor(values: Any = X) -> px.Tensor:
    return px.tensor(values, device=JAX)


def loss(model: Any, x: px.Tensor) -> px.Tensor:
    return model(x).square().mean()


def test_leaves_and_dotted_paths() -> None:
    model = Net().init(0)
    flat, _ = jax.tree_util.tree_flatten_with_path({"net": model, "other": (model,)})
    names = [jax.tree_util.keystr(path) for path, _ in flat]
    own = [
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.gamma",
        "layers.2.beta",
        "head.out.weight",
        "head.out.bias",
        "mean",
    ]
    assert names == [f"['net'].{path}" for path in own] + [f"['other'][0].{path}" for path in own]
    assert all(isinstance(leaf, jax.Array) for _, leaf in flat)
    assert len(jax.tree.leaves(model)) == len(model.params())


def test_tree_map_keeps_ids_ties_and_marks() -> None:
    model = Net().init(0)
    twin = jax.tree.map(lambda leaf: leaf * 2, model)
    assert type(twin) is Net and twin.tied is twin.head["out"].weight
    assert [(p.id, p.trained) for p in twin.params()] == [(p.id, p.trained) for p in model.params()]
    both = jax.tree.map(lambda a, b: a + b, model, twin)
    np.testing.assert_allclose(both.tied.val().numpy(), 3 * model.tied.val().numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="different pytree metadata"):
        jax.tree.map(lambda a, b: a, model, model.freeze())


def test_two_models_of_one_architecture_share_a_compilation() -> None:
    traces = 0

    @jax.jit
    def run(model: Net, x: px.Tensor) -> px.Tensor:
        nonlocal traces
        traces += 1
        return model(x)

    one, other = Net().init(0), Net().init(1)
    for model in (one, other, jax.tree.map(lambda leaf: leaf + 1, other)):
        np.testing.assert_allclose(run(model, tensor()).numpy(), model(tensor()).numpy(), rtol=1e-5, atol=1e-6)
    assert traces == 1
    one.layers.pop(1)
    run(one, tensor())
    assert traces == 2


def test_raw_gradients_equal_the_tapes() -> None:
    model = Net().init(0)
    value, gradient = jax.value_and_grad(lambda m: loss(m, tensor()).primitive)(model)
    training = model.train()
    taped = loss(training, px.Tensor.from_inner(tensor()))
    grads = px.GradientsParams.from_grads(taped.backward(), training)
    np.testing.assert_allclose(value, taped.item(), rtol=1e-6)
    assert type(gradient) is Net and len(grads) == 6
    for (path, param), raw in zip(training.named_params(), gradient.params(), strict=True):
        taped_gradient = grads.get(param.id)
        if path == "mean":
            assert taped_gradient is None
        else:
            assert taped_gradient is not None
            np.testing.assert_allclose(raw.val().numpy(), taped_gradient.numpy(), rtol=1e-4, atol=1e-6, err_msg=path)


def test_an_ensemble_by_vmap() -> None:
    members = [Net().init(seed) for seed in range(3)]
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    got = jax.vmap(lambda m, x: m(x), in_axes=(0, None))(ensemble, tensor())
    assert got.shape == (3, 3, 1)
    for number, member in enumerate(members):
        np.testing.assert_allclose(got[number].numpy(), member(tensor()).numpy(), rtol=1e-5, atol=1e-6)


def test_scan_over_stacked_layers() -> None:
    layers = [nn.Linear(4, 4, device=JAX).init(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)

    @jax.jit
    def run(stacked: Any, x: px.Tensor) -> px.Tensor:
        return jax.lax.scan(lambda h, layer: (layer(h).tanh(), None), x, stacked)[0]

    expected = tensor()
    for layer in layers:
        expected = layer(expected).tanh()
    np.testing.assert_allclose(run(stacked, tensor()).numpy(), expected.numpy(), rtol=1e-5)


def test_other_transformations_take_modules() -> None:
    model, x = Net().init(0), tensor()
    expected = model(x).numpy()
    shapes = jax.eval_shape(lambda m: m, model)
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [p.shape for p in model.params()]
    chosen = jax.lax.cond(True, lambda m: m(x).primitive, lambda m: 0 * m(x).primitive, model)
    np.testing.assert_allclose(chosen, expected, rtol=1e-5)
    np.testing.assert_allclose(jax.checkpoint(lambda m: m(x).primitive)(model), expected, rtol=1e-5)
    counted = jax.lax.fori_loop(0, 3, lambda i, m: jax.tree.map(lambda leaf: leaf + 1, m), model)
    np.testing.assert_allclose(counted.mean.val().numpy(), [3.5])
    donated = jax.jit(lambda m: jax.tree.map(lambda leaf: leaf * 2, m), donate_argnums=0)(
        jax.tree.map(lambda leaf: leaf + 0, model)
    )
    np.testing.assert_allclose(donated.mean.val().numpy(), [1.0])


def test_a_module_on_the_tape_stays_on_it() -> None:
    model = Net().init(0).train()
    twin = jax.tree.map(lambda leaf: leaf * 2, model)
    assert twin.mean.val().backend is Autodiff(Jax())
    assert [p.val().is_require_grad() for p in twin.params()] == [True] * 6 + [False]
    x = px.Tensor.from_inner(tensor())
    assert len(px.GradientsParams.from_grads(loss(twin, x).backward(), twin)) == 6

    @jax.jit
    def step(model: Net, x: px.Tensor) -> Net:  # the tape is walked while XLA records
        grads = px.GradientsParams.from_grads(loss(model, x).backward(), model)
        return optim.SgdConfig().init().step(0.1, model, grads)

    gradient = jax.grad(lambda m: loss(m, tensor()).primitive)(model.valid())
    for p, q, g in zip(step(model, x).params(), model.params(), gradient.params(), strict=True):
        np.testing.assert_allclose(
            p.val().numpy(), q.val().numpy() - (0.1 * g.val().numpy() if q.trained else 0), rtol=1e-4, atol=1e-6
        )


def test_placeholders_of_any_kind_pass() -> None:
    leaves, structure = jax.tree.flatten(Net().init(0))
    sentinels = jax.tree.unflatten(structure, [object() for _ in leaves])
    assert len(jax.tree.leaves(sentinels)) == len(leaves)
    assert jax.tree.unflatten(structure, [None] * len(leaves)) is not None
    assert hash(structure) == hash(jax.tree.structure(Net().init(1)))
