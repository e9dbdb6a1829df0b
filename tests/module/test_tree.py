"""Modules as nested trees: what tools that walk over trees see, change, average, cut and send.

Serves: phlox/module/tree, phlox/module/partition.py
"""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import phlox as px
from phlox import nn, optim
from phlox.errors import ModuleError


def act(x: px.Tensor) -> px.Tensor:
    return x.relu()


class Net(px.Module):
    """Levels of every sort: mixed, unsorted, named, nested, of parameters alone; and ties across them."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(4, 8, device="jax"), act, nn.Linear(8, 4, device="jax")]
        self.parts = {"z": nn.Linear(4, 4, device="jax"), "a": nn.Dropout(0.5), "kind": "odd"}
        self.pair = (nn.Linear(4, 4, device="jax"),)
        self.tied = self.layers[0].weight
        self.again = self.layers[2]
        self.inner = [[self.pair[0]], {"k": [self.layers[0]]}]
        self.own = [px.Param(px.ones((2,), device="jax")), px.Param(px.ones((3,), device="jax"), trained=False)]

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.parts["a"](self.parts["z"](x))


PATHS = [
    ".layers[0].weight", ".layers[0].bias", ".layers[2].weight", ".layers[2].bias", ".parts['z'].weight",
    ".parts['z'].bias", ".pair[0].weight", ".pair[0].bias", ".own[0]", ".own[1]",
]  # fmt: skip


def same(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 1, tree)


def ids(model: px.Module) -> list[str]:
    return [param.id for param in model.params()]


def is_linear(node: Any) -> bool:
    return isinstance(node, nn.Linear)


def assert_tied(net: Any) -> None:
    assert net.tied is net.layers[0].weight and net.again is net.layers[2]
    assert net.inner[0][0] is net.pair[0] and net.inner[1]["k"][0] is net.layers[0]


@pytest.fixture(scope="module")
def net() -> Net:
    return Net().init(seed=0)


def test_one_key_a_level_and_ties_stay(net: Net) -> None:
    leaves, definition = jax.tree_util.tree_flatten_with_path(net)
    assert [jax.tree_util.keystr(path) for path, _ in leaves] == PATHS
    twin = same(same(net))
    assert_tied(twin)
    assert list(twin.parts) == ["z", "a", "kind"] and twin.layers[1] is act
    assert twin.structure().skeleton == net.structure().skeleton and jax.tree.structure(twin) == definition
    assert jax.tree.structure(twin.layers[0]) == jax.tree.structure(net.layers[0])
    for sent in (definition, eqx.partition(net, eqx.is_array)[1], px.partition(net)[0]):
        back = pickle.loads(pickle.dumps(sent))  # noqa: S301
        assert (
            jax.tree.structure(back) == jax.tree.structure(sent) and hash(back if sent is definition else 0) is not None
        )


def test_functions_over_trees_see_layers(net: Net) -> None:
    found = jax.tree.leaves(net, is_leaf=is_linear)
    assert [type(one).__name__ for one in found] == ["Linear"] * 4 + ["ArrayImpl"] * 2
    wrapped = jax.tree.map(lambda node: nn.Sequential([node]) if is_linear(node) else node, net, is_leaf=is_linear)
    assert wrapped.layers[0].layers[0].weight.shape == (4, 8) and len(wrapped.params()) == 10
    axes = jax.tree.map(lambda node: 0, net, is_leaf=is_linear)  # a prefix: one axis for a layer
    assert axes.parts["z"] == 0
    whole = jax.tree.map(lambda node: 0, net, is_leaf=lambda node: isinstance(node, (list, nn.Linear)))  # of a list
    assert whole.own == 0 and jax.tree.structure(whole) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, whole))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), net).valid()
    x = px.ones((3, 4), device="jax")
    out = jax.vmap(lambda net, x: net.valid()(x), in_axes=(axes, None))(stacked, x)
    np.testing.assert_allclose(out.numpy()[1], net.valid()(x).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("where", "new"),
    [
        (lambda net: net.layers[2].bias, lambda: jnp.full(4, 2.0)),
        (lambda net: net.layers[2], lambda: nn.Linear(8, 4, device="jax").init(7)),
        (lambda net: net.parts["z"], lambda: nn.Sequential([nn.Linear(4, 4, device="jax").init(7)])),
        (lambda net: net.own[1], lambda: jnp.full(3, 2.0)),
    ],
    ids=["array", "layer", "another class", "in a list"],
)
def test_tree_at(net: Net, where: Any, new: Any) -> None:
    given = new()
    changed = eqx.tree_at(where, net, given)
    for got, wanted in zip(jax.tree.leaves(where(changed)), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert_tied(changed)
    doubled = eqx.tree_at(where, net, replace_fn=lambda node: jax.tree.map(lambda leaf: 2 * leaf, node))
    for got, before in zip(jax.tree.leaves(where(doubled)), jax.tree.leaves(where(net)), strict=True):
        np.testing.assert_allclose(got, 2 * np.asarray(before))


def test_what_tree_at_gives_has_the_structure_of_the_model(net: Net) -> None:
    """Before a field of it is read, too: so it can be added to the model, and be a mask of Equinox's."""

    def pick(net: Any) -> Any:
        return net.layers[2].weight, net.own[0]

    def doubled() -> Any:
        return eqx.tree_at(pick, net, replace_fn=lambda node: jax.tree.map(lambda leaf: leaf * 2, node))

    changed = doubled()
    assert jax.tree.structure(changed) == jax.tree.structure(net)
    sums = jax.tree.map(jnp.subtract, doubled(), net)
    assert [bool(jnp.any(leaf)) for leaf in jax.tree.leaves(sums)] == [n in (2, 8) for n in range(10)]
    mask = eqx.tree_at(pick, jax.tree.map(lambda _: False, net), replace=(True, True))
    assert len(jax.tree.leaves(eqx.partition(net, mask)[0])) == 2


@pytest.mark.parametrize(
    "give",
    [lambda leaf: None, lambda leaf: PartitionSpec(), lambda leaf: "slow", lambda leaf: leaf.ndim > 1,
     lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lambda leaf: leaf.astype(jnp.int8)],
    ids=["none", "spec", "text", "mask", "shape", "int8"],
)  # fmt: skip
def test_anything_may_stand_where_an_array_was(net: Net, give: Any) -> None:
    odd = jax.tree.map(give, net)
    assert_tied(odd)
    got, wanted = odd.own[0].leaf, give(net.own[0].leaf)
    assert type(got) is type(wanted) and bool(np.all(got == wanted))
    assert jax.tree.structure(odd, is_leaf=lambda x: x is None) == jax.tree.structure(net)


def test_ids_are_those_of_the_call() -> None:
    one, two = Net().init(seed=1), Net().init(seed=2)
    scale = jax.jit(same)
    assert not set(ids(one)) & set(ids(two))
    for model in (one, two, one, two):
        got = scale(model)
        assert ids(got) == ids(model) and ids(scale(got)) == ids(same(got)) == ids(model)
    pair = jax.jit(lambda a, b: (same(b), same(a)))(one, two)
    assert [ids(model) for model in pair] == [ids(two), ids(one)]
    nested = jax.jit(lambda a, b: (scale(a), scale(b)))
    for a, b in ((one, two), (two, one)):
        assert [ids(model) for model in nested(a, b)] == [ids(a), ids(b)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda model: ids(scale(model)) == ids(model), [one, two] * 20))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two)
    members = [jax.tree.map(lambda leaf, n=n: leaf[n], stacked) for n in range(2)]
    every = [id for model in (one, two, stacked, *members) for id in ids(model)]
    assert len(set(every)) == len(every)
    made, again = jax.jit(lambda: (Net().init(seed=1), Net().init(seed=2)))()
    assert not set(ids(made)) & set(ids(again))


def test_the_model_that_was_taken_apart_is_not_kept() -> None:
    model = nn.Linear(4, 4, device="jax").init(0)
    array = model.weight.leaf
    run = jax.jit(lambda model: jax.tree.map(lambda leaf: leaf + 1, model))
    run(model)
    definition = jax.tree.structure(model)
    before = len(gc.get_referrers(array))
    del model
    gc.collect()
    assert len(gc.get_referrers(array)) < before and definition is not None


def test_what_is_not_trained_has_no_gradient_and_is_not_moved() -> None:
    optax: Any = pytest.importorskip("optax")
    model = nn.Sequential([nn.Linear(4, 4, device="jax"), nn.BatchNorm(4, device="jax"), nn.Linear(4, 1, device="jax")])
    model, x = model.init(seed=0).freeze("layers.0.**"), jnp.cos(jnp.arange(20.0).reshape(5, 4))
    grads = jax.grad(lambda model: jnp.square(model.train(tape=False)(x)).mean())(model)
    sizes = {path: float(np.abs(param.val().numpy()).max()) for path, param in grads.named_params()}
    assert {path for path, size in sizes.items() if size == 0} == {
        "layers.0.weight", "layers.0.bias", "layers.1.running_mean", "layers.1.running_var",
    }  # fmt: skip
    trained, rest = px.partition(model)
    optimizer = optax.adamw(0.1, weight_decay=0.5)

    @jax.jit
    def step(trained: Any, rest: Any, state: Any) -> Any:
        def loss(trained: Any) -> Any:
            whole = px.combine(trained, rest).train(tape=False)
            return jnp.square(whole(x) - 1.0).mean(), px.partition(whole)[1]  # and its running statistics

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(grads, state, trained)
        return optax.apply_updates(trained, updates), rest, state, value

    state, losses = optimizer.init(trained), []
    for _ in range(10):
        trained, rest, state, value = step(trained, rest, state)
        losses.append(float(value))
    after = px.combine(trained, rest)
    assert losses[-1] < 0.3 * losses[0]
    np.testing.assert_array_equal(after.layers[0].weight.val().numpy(), model.layers[0].weight.val().numpy())
    assert np.any(after.layers[1].running_mean.val().numpy() != 0)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "vjp", "linearize", "jacfwd"])
def test_what_ends_is_not_set_into_what_stays(transform: str) -> None:
    param = px.Param(px.zeros((2,), device="jax"), trained=False)

    class Keeps(px.Module):
        def __init__(self) -> None:
            self.seen = param

    model = Keeps()

    def fn(x: Any) -> Any:
        model.seen.set(px.Tensor.from_primitive(x * 2.0, param.backend))
        return (x**2).sum()

    x = jnp.ones(2)
    runs: dict[str, Any] = {
        "grad": lambda: jax.grad(fn)(x), "vmap": lambda: jax.vmap(fn)(jnp.ones((3, 2))),
        "jvp": lambda: jax.jvp(fn, (x,), (x,)), "vjp": lambda: jax.vjp(fn, x),
        "linearize": lambda: jax.linearize(fn, x), "jacfwd": lambda: jax.jacfwd(fn)(x),
    }  # fmt: skip
    model.structure()
    with pytest.raises(ModuleError, match="`seen`.*pass its module to the function as an argument, and return it"):
        runs[transform]()
    assert param.val().tolist() == [0.0, 0.0]


def test_casts_compute_and_gradients_are_trees() -> None:
    model, x = nn.Linear(4, 2, device="jax").init(0), px.ones((3, 4), device="jax")
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
    out = half(x.to_device(px.backend.Jax(float="bf16").device()))
    np.testing.assert_allclose(out.numpy().astype(np.float32), model(x).numpy(), rtol=2e-2, atol=2e-2)
    grads = px.grad(lambda model: model(px.Tensor.from_inner(x)).square().mean())(model.train())
    wanted = jax.grad(lambda model: model(x).square().mean())(model)
    doubled = jax.jit(lambda grads: jax.tree.map(lambda leaf: 2 * leaf, grads))(grads)
    for id, leaf in zip(ids(model), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(doubled.get(id).numpy(), 2 * np.asarray(leaf), rtol=1e-5)
    optimizer = optim.SgdConfig().init()
    assert optimizer.step(0.1, model.train(), doubled) is not None


def test_constants_are_compared_by_their_elements() -> None:
    class Masked(px.Module):
        def __init__(self) -> None:
            self.linear, self.mask = nn.Linear(2, 2, device="jax"), np.array([1.0, 0.0], np.float32)

        def __call__(self, x: Any) -> Any:
            return self.linear(x) * px.tensor(self.mask, device="jax")

    model, x = Masked().init(0), px.ones((1, 2), device="jax")
    other, runs = same(model), [px.compile(lambda model, x: model(x)), jax.jit(lambda model, x: model(x))]
    for _ in range(2):
        for run in runs:
            for one in (model, other):
                np.testing.assert_allclose(run(one, x).numpy(), one(x).numpy(), rtol=1e-6)
        model.mask[:] = [3.0, 4.0]
    assert other.mask.tolist() == [1.0, 0.0]


class Around(px.Module):
    def __init__(self, inner: Any) -> None:
        self.inner, self.scale = [inner], px.Param(px.ones((1,), device="jax"))


def test_what_is_put_around_tied_layers_stays_tied() -> None:
    """As adapters do it: every layer is found by its class, and a module with it is put in its place."""

    class Tied(px.Module):
        def __init__(self) -> None:
            self.embed, self.head = nn.Linear(3, 3, device="jax"), nn.Linear(3, 3, device="jax")
            self.head.weight = self.embed.weight
            self.parts = {"z": self.embed, "again": [nn.Linear(3, 2, device="jax")]}

    def around(node: Any) -> Any:
        return Around(node) if is_linear(node) else node

    model = Tied().init(seed=0)
    wrapped: Any = jax.tree.map(around, model, is_leaf=is_linear)
    for one in (wrapped, same(wrapped), jax.jit(same)(wrapped), jax.jit(same)(same(wrapped))):
        assert one.head.inner[0].weight is one.embed.inner[0].weight and len(one.params()) == 8


def test_parts_that_do_not_fit_together(net: Net) -> None:
    trained, rest = px.partition(net, "layers.**")
    with pytest.raises(ModuleError, match=r"`parts\.z\.weight` is in none of the 1 parts"):
        px.combine(trained)
    with pytest.raises(ModuleError, match=r"`layers\.0\.weight` is in 2 of the 3 parts"):
        px.combine(trained, rest, trained)
    with pytest.raises(ModuleError, match="not of the same model"):
        px.combine(trained, nn.Linear(2, 2, device="jax").init(0))
    with pytest.raises(ModuleError, match="got none"):
        px.combine()
    assert_tied(px.combine(rest, trained))
