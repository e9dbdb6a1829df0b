"""Modules as JAX PyTrees."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from phlox.errors import KindError

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
    own = [".layers[0].weight", ".layers[0].bias", ".layers[2].gamma", ".layers[2].beta"]
    own += [".head['out'].weight", ".head['out'].bias", ".mean"]
    assert names == [f"['net']{path}" for path in own] + [f"['other'][0]{path}" for path in own]
    assert all(isinstance(leaf, jax.Array) for _, leaf in flat)
    assert len(jax.tree.leaves(model)) == len(model.params())


def test_tree_map_keeps_ids_ties_and_marks() -> None:
    model = Net().init(0)
    twin = jax.tree.map(lambda leaf: leaf * 2, model)
    assert type(twin) is Net and twin.tied is twin.head["out"].weight
    assert [(p.id, p.trained) for p in twin.params()] == [(p.id, p.trained) for p in model.params()]
    both = jax.tree.map(lambda a, b: a + b, model, twin)
    np.testing.assert_allclose(both.tied.val().numpy(), 3 * model.tied.val().numpy(), rtol=1e-6)
    frozen = jax.tree.map(lambda a, b: a, model.freeze(), model)  # views of one model are trees of one structure
    assert not any(p.trained for p in frozen.params())


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


@pytest.mark.full
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


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-5, atol=1e-6)


def test_control_flow() -> None:
    model, x = Net().init(0), tensor()
    expected = model(x).numpy()
    for taken in (True, False):
        chosen = jax.lax.cond(taken, lambda m: m(x).primitive, lambda m: 0 * m(x).primitive, model)
        close(chosen, expected if taken else 0 * expected)
    switched = jax.lax.switch(1, [lambda m: m, lambda m: jax.tree.map(lambda leaf: leaf * 2, m)], model)
    close(switched.tied.val(), 2 * model.tied.val().numpy())
    counted = jax.lax.fori_loop(0, 3, lambda i, m: jax.tree.map(lambda leaf: leaf + 1, m), model)
    assert counted.mean.val().tolist() == [3.5] and counted.tied is counted.head["out"].weight
    grown = jax.lax.while_loop(
        lambda m: (m.mean.val().primitive < 4.0).all(), lambda m: jax.tree.map(lambda leaf: leaf * 2, m), model
    )
    assert grown.mean.val().tolist() == [4.0]
    again, _ = jax.lax.scan(lambda m, _: (jax.tree.map(lambda leaf: leaf + 1, m), None), model, None, length=2)
    assert again.mean.val().tolist() == [2.5] and type(again) is Net
    close(jax.checkpoint(lambda m: m(x).primitive)(model), expected)
    gradient = jax.grad(jax.checkpoint(lambda m: loss(m, x).primitive))(model)
    close(gradient.tied.val(), jax.grad(lambda m: loss(m, x).primitive)(model).tied.val())


def test_a_while_loop_trains() -> None:
    model, x = Net().init(0), tensor()

    def step(m: Net) -> Net:
        return jax.tree.map(lambda p, g: p - 0.1 * g, m, jax.grad(lambda m: loss(m, x).primitive)(m))

    trained = jax.jit(lambda m: jax.lax.fori_loop(0, 5, lambda i, m: step(m), m))(model)
    expected = model
    for _ in range(5):
        expected = step(expected)
    close(trained.tied.val(), expected.tied.val())


def test_modules_in_containers_and_of_several_kinds() -> None:
    both = {"net": Net().init(0), "pair": (nn.Linear(4, 1, device=JAX).init(1), None)}

    @jax.jit
    def run(both: Any, x: px.Tensor) -> Any:
        return both["net"](x) + both["pair"][0](x), both

    out, back = run(both, tensor())
    close(out, both["net"](tensor()).numpy() + both["pair"][0](tensor()).numpy())
    assert type(back["net"]) is Net and back["pair"][1] is None
    gradients = jax.grad(lambda both: loss(both["net"], tensor()).primitive)(both)
    assert not np.any(gradients["pair"][0].weight.val().numpy()) and np.any(gradients["net"].tied.val().numpy())


@pytest.mark.full
def test_derivatives_of_every_sort_take_and_return_modules() -> None:
    model, x = nn.Linear(4, 1, device=JAX).init(1), tensor()

    def fn(m: nn.Linear) -> Any:
        return loss(m, x).primitive

    def twice(m: nn.Linear) -> nn.Linear:
        return jax.tree.map(lambda leaf: leaf * 2, m)

    second = jax.jit(jax.hessian(fn))(model)
    assert second.weight.weight.shape == (4, 1, 4, 1)  # a module of modules, as JAX has it
    for jacobian in (jax.jacrev, jax.jacfwd):
        assert jax.jit(jacobian(lambda m: m(x).primitive))(model).weight.shape == (3, 1, 4, 1)
    gradient = jax.jit(jax.grad(fn))(model)
    primal, tangent = jax.jvp(twice, (model,), (gradient,))
    close(tangent.weight.val(), 2 * gradient.weight.val().numpy())
    assert model.bias is not None
    close(primal.bias.val(), 2 * model.bias.val().numpy())
    _, linear = jax.linearize(twice, model)
    close(linear(gradient).weight.val(), tangent.weight.val())
    out, back = jax.vjp(twice, model)
    close(back(out)[0].weight.val(), 4 * model.weight.val().numpy())
    (_, aux), got = jax.value_and_grad(lambda m: (jax.jit(fn)(m), twice(m)), has_aux=True)(model)
    close(aux.weight.val(), primal.weight.val())
    close(got.weight.val(), gradient.weight.val())

    @jax.custom_vjp
    def scaled(m: nn.Linear) -> nn.Linear:
        return twice(m)

    scaled.defvjp(lambda m: (twice(m), m), lambda m, g: (jax.tree.map(lambda a, b: a * b, m, g),))
    close(jax.grad(lambda m: scaled(m).weight.val().sum().primitive)(model).weight.val(), model.weight.val())
    close(jax.jit(jax.grad(jax.checkpoint(fn)))(model).weight.val(), gradient.weight.val())

    @jax.jit
    def through(m: nn.Linear) -> Any:  # what is traced already goes in and out untouched
        plain = jax.jvp(lambda s: (s * 2, m), (jnp.ones(()),), (jnp.ones(()),))[0][1]
        (_, aux), _ = jax.value_and_grad(lambda s: (s * 2, m.map(lambda path, p: p)), has_aux=True)(jnp.ones(()))
        batched = jax.vmap(lambda s: jax.jvp(twice, (jax.tree.map(lambda a: a * s, m),), (m,)))(jnp.ones(2))[0]
        return plain, aux, batched

    plain, aux, batched = through(model)
    close(plain.weight.val(), aux.weight.val())
    assert batched.weight.shape == (2, 4, 1)


def test_vmap_over_part_of_a_module() -> None:
    members = [Net().init(seed) for seed in range(3)]
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    axes = jax.tree.map(lambda leaf: 0, ensemble)  # a module of axes
    got = jax.jit(jax.vmap(lambda m, x: m(x), in_axes=(axes, None)))(ensemble, tensor())
    for number, member in enumerate(members):
        close(got[number], member(tensor()))
    made = jax.vmap(lambda scale: jax.tree.map(lambda leaf: leaf * scale, members[0]))(jnp.arange(3.0))
    assert made.tied.shape == (3, 5, 1) and made.tied is made.head["out"].weight
    losses, gradients = jax.jit(jax.vmap(jax.value_and_grad(lambda m: loss(m, tensor()).primitive)))(ensemble)
    assert losses.shape == (3,) and gradients.tied.shape == (3, 5, 1)


def test_abstract_modules() -> None:
    model, x = Net().init(0), tensor()
    abstract = jax.eval_shape(lambda m: m, model)
    assert [(path, p.shape) for path, p in abstract.named_params()] == [(s, p.shape) for s, p in model.named_params()]
    assert abstract.num_params() == model.num_params()
    assert abstract.num_params(trained_only=True) == model.num_params() - 1
    assert abstract.tied.device == JAX and abstract.tied.kind is px.Float and abstract.tied.backend is Jax()
    assert "weight [4, 5] abstract" in repr(abstract) and repr(abstract.tied) == "Param((5, 1) on jax:cpu, abstract)"
    assert jax.eval_shape(lambda m, x: m(x), abstract, x).shape == (3, 1)
    assert all(p.shape == q.shape for p, q in zip(abstract.train().valid().params(), model.params(), strict=True))
    assert not any(p.trained for p in abstract.freeze().params())
    made = jax.eval_shape(lambda: Net().init(0))  # declared and made inside: nothing is allocated
    assert jax.tree.structure(made) == jax.tree.structure(model) and made.tied.shape == (5, 1)
    inside = jax.jit(lambda: Net().init(0))()
    for p, q in zip(inside.params(), model.params(), strict=True):
        close(p.val(), q.val())
    restored = made.load_record(model.into_record())  # and filled in
    close(restored(x), model(x))


def test_donation() -> None:
    model = Net().init(0)
    kept = [p.val().numpy().copy() for p in model.params()]
    step = jax.jit(lambda m: jax.tree.map(lambda leaf: leaf * 2, m), donate_argnums=0)
    donated = jax.tree.map(lambda leaf: leaf + 0, model)
    result = step(donated)
    for before, param in zip(kept, result.params(), strict=True):
        close(param.val(), 2 * before)
    with pytest.raises(px.errors.PhloxError, match="donated"):
        donated(tensor())
    close(model.mean.val(), [0.5])


def test_an_optimizer_of_plain_jax() -> None:
    """Adam by `tree.map`, with modules as its state, as Optax would have it."""
    model, x = Net().init(0), tensor()

    def update(m: Net, state: dict[str, Any]) -> tuple[Net, dict[str, Any]]:
        g = jax.grad(lambda m: loss(m, x).primitive)(m)
        g = g.map(lambda path, p: p if p.trained else p.map(lambda t: t * 0.0))  # JAX differentiates every leaf
        count = state["count"] + 1
        mu = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state["mu"], g)
        nu = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b**2, state["nu"], g)
        stepped = jax.tree.map(
            lambda p, a, b: p - 0.01 * (a / (1 - 0.9**count)) / (jnp.sqrt(b / (1 - 0.999**count)) + 1e-8), m, mu, nu
        )
        return stepped, {"mu": mu, "nu": nu, "count": count}

    state = {"mu": jax.tree.map(jnp.zeros_like, model), "nu": jax.tree.map(jnp.zeros_like, model), "count": 0}
    training, optimizer = model.train(), optim.AdamConfig().init()

    @px.compile
    def step(training: Net, optimizer: Any, x: px.Tensor) -> Net:
        grads = px.GradientsParams.from_grads(loss(training, x).backward(), training)
        return optimizer.step(0.01, training, grads)

    frozen, compiled = model, jax.jit(update)
    for _ in range(3):
        frozen, state = compiled(frozen, state)
        training = step(training, optimizer, px.Tensor.from_inner(x))
    for p, q in zip(frozen.params(), training.params(), strict=True):
        close(p.val(), q.val())


def test_optax() -> None:
    optax: Any = importlib.import_module("optax")  # whose annotations know arrays alone

    model, x = Net().init(0), tensor()
    transformation = optax.multi_transform(
        {"slow": optax.adam(1e-3), "fast": optax.sgd(0.1, momentum=0.9)},
        lambda m: jax.tree_util.tree_map_with_path(_label, m),
    )
    state = transformation.init(model)

    @jax.jit
    def step(m: Net, state: Any) -> Any:
        value, grads = jax.value_and_grad(lambda m: loss(m, x).primitive)(m)
        updates, state = transformation.update(grads, state, m)
        return optax.apply_updates(m, updates), state, value

    losses: list[float] = []
    for _ in range(5):
        model, state, value = step(model, state)
        losses.append(float(value))
    assert losses[-1] < losses[0] and type(model) is Net and model.tied is model.head["out"].weight


def _label(path: Any, leaf: Any) -> str:
    return "slow" if jax.tree_util.keystr(path).endswith("bias") else "fast"


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


class Counted(px.Module):
    def __init__(self) -> None:
        self.inner = {"weight": px.Param(px.ones((2,), device="jax"))}
        self.count = px.Param(px.tensor(3, device="jax"))
        self.mask = px.Param(px.tensor([True, False], device="jax"))


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacrev", "jacfwd", "hessian"])
def test_raw_jax_differentiates_towards_an_integer(name: str) -> None:
    """JAX says that some input is one."""
    model = Counted()

    def loss(model: Any) -> Any:
        return (model.inner["weight"].val() * 2.0).sum().primitive

    transform = getattr(jax, name)
    for run in (transform(loss), jax.jit(transform(loss)), transform(jax.jit(loss))):
        with pytest.raises(
            KindError, match=r"`count`, `mask` of the Counted are integers; use phlox.grad.*allow_int=True"
        ):
            run(model)
        with pytest.raises(KindError, match="`count`, `mask`"):
            run(jax.tree.map(lambda x: x, model))
    if name == "grad":
        assert transform(loss, allow_int=True)(model).inner["weight"].shape == (2,)
    # Where a module is an argument that is not differentiated, or a result, all is well.
    assert getattr(jax, name)(lambda x, model: x * x * model.inner["weight"].val().primitive[0])(1.0, model) is not None
    assert jax.value_and_grad(lambda x: (x * 2.0, model), has_aux=True)(1.0)[0][0] == 2.0
    _, back = jax.vjp(loss, model)
    assert back(1.0)[0].inner["weight"].shape == (2,)
