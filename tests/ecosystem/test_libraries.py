"""Libraries around JAX work on modules as on any tree; what they find is what they find on nested lists of arrays.

One test for each library, skipped by its name where it is not installed. Tensors as arrays are in `test_arrays.py`.
What devices matter to has a program that runs on four; all of it also runs on as many as there are, as with
`XLA_FLAGS=--xla_force_host_platform_device_count=4 make test ARGS=tests/ecosystem`.

Serves: phlox/module/partition.py, phlox/module/foreign_leaf.py
"""

# Arrays are given where types speak of tensors, and libraries may be missing.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn
from tests.simulated_devices import check_on_devices


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


class Net(px.Module):
    """Two layers in a list."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(3, 5, device="jax"), nn.Linear(5, 2, device="jax")]

    def __call__(self, x: Any) -> Any:
        return self.layers[1](self.layers[0](x).tanh())


def lists(net: Any) -> Any:
    """The same arrays in lists, for the reference."""
    first, second, third, fourth = jax.tree.leaves(net)
    return [[first, second], [third, fourth]]


def plain(tree: Any, x: Any) -> Any:
    (a, b), (c, d) = tree
    return jnp.tanh(x @ a + b) @ c + d


X, Y = jnp.cos(jnp.arange(12.0)).reshape(4, 3), jnp.sin(jnp.arange(8.0)).reshape(4, 2)


def loss(net: Any) -> Any:
    return jnp.mean((net(X) - Y) ** 2)


def plain_loss(tree: Any) -> Any:
    return jnp.mean((plain(tree, X) - Y) ** 2)


def energy(loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of parameters with a normal distribution before anything is seen."""
    return lambda net: 4.0 * loss(net) + 0.5 * sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(net))


def close(got: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def net() -> Net:
    return Net().init(seed=0)


def of_layers(tree: Any, first: Any, second: Any) -> Any:
    """A tree with one object for each layer, in place of the two of the layer or of the list."""
    if isinstance(tree, list):
        return [first, second]
    given = iter([first, second])
    return jax.tree.map(lambda layer: next(given), tree, is_leaf=lambda node: isinstance(node, nn.Linear))


# --- trees and filters


def test_equinox(net: Net) -> None:
    eqx = library("equinox")
    value, grads = eqx.filter_jit(eqx.filter_value_and_grad(loss))(net)
    close((value, grads), jax.value_and_grad(plain_loss)(lists(net)))
    tuned, frozen = eqx.partition(net, of_layers(net, False, True))
    grads = eqx.filter_grad(lambda tuned: loss(eqx.combine(tuned, frozen)))(tuned)
    new = eqx.combine(eqx.apply_updates(tuned, grads), frozen)
    close(new.layers[0], net.layers[0], 0, 0)
    close(new.layers[1], jax.tree.map(jnp.add, lists(net)[1], jax.grad(plain_loss)(lists(net))[1]))

    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, net)
    for like in (Net().init(seed=1), jax.eval_shape(lambda: Net().init(seed=1)), Net()):
        file.seek(0)
        back = eqx.tree_deserialise_leaves(file, like)
        assert type(back) is Net and not eqx.tree_equal(net, Net().init(seed=1))
        close(back, net, 0, 0)

    class Outer(eqx.Module):
        net: Net
        scale: jax.Array
        name: str = "outer"

        def __call__(self, x: Any) -> Any:
            return self.net(x) * self.scale

    grads = eqx.filter_grad(loss)(Outer(net, jnp.full(2, 2.0)))
    close(grads.net, jax.grad(lambda tree: jnp.mean((2 * plain(tree, X) - Y) ** 2))(lists(net)))
    members = eqx.filter_vmap(lambda seed: Net().init(seed=seed))(jnp.arange(2))
    outs = eqx.filter_vmap(lambda net, x: net(x), in_axes=(eqx.if_array(0), None))(members, X)
    close(outs[1], plain(lists(Net().init(seed=1)), X))


def big(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)


OPTAX: dict[str, Callable[[Any, Any], Any]] = {
    "adamw": lambda optax, tree: optax.adamw(0.1, weight_decay=0.3, mask=big),
    "masked": lambda optax, tree: optax.masked(optax.sgd(0.1), of_layers(tree, True, False)),
    "multi_transform": lambda optax, tree: optax.multi_transform(
        {"slow": optax.sgd(0.01), "fast": optax.adam(0.1)}, lambda tree: of_layers(tree, "slow", "fast")
    ),
    "MultiSteps, clip": lambda optax, tree: optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(0.01), optax.adam(0.1)), 2
    ),
}


@pytest.mark.parametrize("name", OPTAX)
def test_optax(net: Net, name: str) -> None:
    optax = library("optax")

    def run(tree: Any, loss: Callable[[Any], Any]) -> Any:
        transformation = OPTAX[name](optax, tree)

        @jax.jit
        def step(tree: Any, state: Any) -> Any:
            updates, state = transformation.update(jax.grad(loss)(tree), state, tree)
            return optax.apply_updates(tree, updates), state

        state = transformation.init(tree)
        for _ in range(4):
            tree, state = step(tree, state)
        return tree

    found = run(net, loss)
    assert type(found) is Net
    close(found, run(lists(net), plain_loss), 1e-4, 1e-5)
    close(optax.tree.norm(found), np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(found))))


def test_optax_on_a_part(net: Net) -> None:
    optax = library("optax")
    trained, rest = px.partition(net.freeze("layers.0"))
    optimizer, one, two = optax.adamw(0.1, weight_decay=0.3), lists(net)[0], lists(net)[1]
    state, its_state = optimizer.init(trained), optimizer.init(two)
    assert len(jax.tree.leaves(state)) == 5  # the count, and two moments of two arrays
    for _ in range(3):
        grads = jax.grad(lambda trained: loss(px.combine(trained, rest)))(trained)
        updates, state = optimizer.update(grads, state, trained)
        trained = optax.apply_updates(trained, updates)
        updates, its_state = optimizer.update(jax.grad(lambda two: plain_loss([one, two]))(two), its_state, two)
        two = optax.apply_updates(two, updates)
    close(px.combine(trained, rest), [one, two])


def test_flax(net: Net) -> None:
    library("flax")
    optax = library("optax")
    import flax.linen
    from flax import nnx, serialization
    from flax.training.train_state import TrainState

    def apply(params: Any, x: Any) -> Any:
        return params["net"](x)

    state: Any = TrainState.create(apply_fn=apply, params={"net": net}, tx=optax.sgd(0.1))
    state = jax.jit(lambda state: state.apply_gradients(grads=jax.grad(lambda p: loss(p["net"]))(state.params)))(state)
    wanted = jax.tree.map(lambda p, g: p - 0.1 * g, lists(net), jax.grad(plain_loss)(lists(net)))
    close(state.params["net"], wanted)

    class Linen(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x: Any) -> Any:
            return flax.linen.Dense(2)(self.param("net", lambda key: Net().init(seed=key))(x))

    variables: Any = Linen().init(jax.random.key(0), X)
    inner, outer = variables["params"]["net"], variables["params"]["Dense_0"]
    assert type(inner) is Net
    close(Linen().apply(variables, X), plain(lists(inner), X) @ outer["kernel"] + outer["bias"])

    class Holder(nnx.Module):
        def __init__(self) -> None:
            self.net = nnx.data(jax.tree.map(nnx.Param, net))

        def values(self) -> Net:
            return jax.tree.map(lambda p: p[...], self.net, is_leaf=lambda p: isinstance(p, nnx.Param))

        def __call__(self, x: Any) -> Any:
            return self.values()(x)

    holder = Holder()
    optimizer = nnx.Optimizer(holder, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(holder: Any, optimizer: Any) -> None:
        optimizer.update(holder, nnx.grad(loss)(holder))

    step(holder, optimizer)
    close(holder.values(), wanted)
    back = serialization.from_bytes(jax.tree.leaves(Net().init(1)), serialization.to_bytes(jax.tree.leaves(net)))
    close(jax.tree.unflatten(jax.tree.structure(net), back), net, 0, 0)


def test_orbax(net: Net, tmp_path: Path) -> None:
    library("orbax.checkpoint")
    optax = library("optax")
    import orbax.checkpoint as ocp

    optimizer = optax.adam(0.1)
    _, state = optimizer.update(net, optimizer.init(net), net)
    tree = {"model": net, "state": state}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", tree)
        checkpointer.wait_until_finished()
        named = checkpointer.metadata(tmp_path / "tree").item_metadata.tree["model"]
        assert [sorted(layer) for layer in named["layers"]] == [["bias", "weight"]] * 2
        assert tuple(named["layers"][0]["weight"].shape) == (3, 5)
        other = Net().init(seed=1)
        back = checkpointer.restore(tmp_path / "tree", {"model": other, "state": optimizer.init(other)})
    close(back, tree, 0, 0)
    assert type(back["model"]) is type(back["state"][0].mu) is Net
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(tmp_path / "steps", options=options) as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(net)))
        manager.wait_until_finished()
        found = manager.restore(None, args=ocp.args.Composite(model=ocp.args.StandardRestore(Net().init(seed=1))))
        assert manager.all_steps() == [1]
    close(found.model, net, 0, 0)


def test_chex(net: Net) -> None:
    chex = library("chex")
    chex.assert_trees_all_close(net, jax.tree.map(lambda leaf: leaf * (1 + 1e-7), net), rtol=1e-5)
    chex.assert_trees_all_equal_structs(net, net.train(), net.freeze())
    chex.assert_trees_all_equal_shapes_and_dtypes(net, jax.grad(loss)(net))
    chex.assert_tree_all_finite(net)
    with pytest.raises(AssertionError, match="differ in leaves 'layers/0/weight'"):
        chex.assert_trees_all_close(net, Net().init(seed=1))
    with pytest.raises(AssertionError, match="non-finite"):
        chex.assert_tree_all_finite(jax.tree.map(lambda leaf: leaf * jnp.nan, net))

    @chex.dataclass
    class State:
        net: Net
        step: Any

    state = jax.jit(lambda s: s.replace(net=jax.tree.map(lambda leaf: 2 * leaf, s.net), step=s.step + 1))(
        State(net=net, step=0)
    )
    close(state.net, [2 * leaf for leaf in jax.tree.leaves(net)])
    x = px.ones((2, 3), device="jax")
    chex.assert_shape(x, (2, 3))
    chex.assert_equal_shape([x, jnp.ones((2, 3))])
    chex.assert_type(x, float)


def test_penzai(net: Net) -> None:
    pz = library("penzai.pz")
    layers = pz.select(net).at_instances_of(nn.Linear)
    assert layers.count() == 2
    doubled = layers.apply(lambda layer: jax.tree.map(lambda leaf: 2 * leaf, layer))
    close(doubled, [2 * leaf for leaf in jax.tree.leaves(net)])
    wrapped = layers.apply(lambda layer: nn.Sequential([layer, nn.Dropout(0.5)]))
    assert wrapped.layers[1].layers[0].weight.shape == (5, 2)
    vectors = pz.select(net).at_instances_of(jax.Array).where(lambda array: array.ndim == 1)
    assert vectors.count() == 2
    for at, new in ((lambda net: net.layers[0].bias, jnp.ones(5)), (lambda net: net.layers[0], net.layers[1])):
        changed = pz.select(net).at(at).set(new)
        close(at(changed), new, 0, 0)
        close(changed.layers[1], net.layers[1], 0, 0)


def test_treescope(net: Net) -> None:
    treescope = library("treescope")
    assert "layers" in (text := treescope.render_to_text(net)) and "Linear(weight [3, 5], bias [5])" in text
    assert "Linear" in treescope.render_to_text(jax.grad(loss)(net), roundtrip_mode=True)


def test_jaxtyping_with_beartype(net: Net) -> None:
    jaxtyping, beartype = library("jaxtyping"), library("beartype")
    from jaxtyping import Array, Float, PyTree

    def descend(net: Any, grads: Any) -> Any:
        return jax.tree.map(lambda p, g: p - g, net, grads)

    def mean(x: Any) -> Any:
        return x.mean(0)

    tree = PyTree[Float[Array, "..."], "T"]
    descend.__annotations__ = {"net": tree, "grads": tree, "return": tree}
    mean.__annotations__ = {"x": Float[Array, "b d"], "return": Float[Array, " d"]}
    descend, mean = (jaxtyping.jaxtyped(fn, typechecker=beartype.beartype) for fn in (descend, mean))
    tensor = px.ones((2, 3), device="jax")
    assert type(jax.jit(descend)(net, net)) is Net and mean(jnp.asarray(tensor)).shape == (3,)
    integers = jax.tree.map(lambda leaf: leaf.astype(int), net)
    for wrong in (lambda: descend(net, net.layers[0]), lambda: descend(integers, integers), lambda: mean(tensor)):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()


# --- solvers


@pytest.mark.full
def test_diffrax() -> None:
    dfx = library("diffrax")

    class Field(px.Module):
        def __init__(self) -> None:
            self.net = Net()

        def __call__(self, t: Any, y: Any, args: Any) -> Any:
            return jnp.pad(self.net(y) + t * args(y), (0, 1))

    def end(field: Any, args: Any) -> Any:
        term = dfx.ODETerm(field)
        return jnp.sum(dfx.diffeqsolve(term, dfx.Euler(), 0.0, 1.0, 0.25, X[0], args=args, max_steps=4).ys ** 2)

    def by_hand(own: Any, args: Any) -> Any:
        y = X[0]
        for t in (0.0, 0.25, 0.5, 0.75):
            y = y + 0.25 * jnp.pad(plain(own, y) + t * plain(args, y), (0, 1))
        return jnp.sum(y**2)

    field, args = Field().init(seed=0), Net().init(seed=1)
    found = jax.jit(jax.grad(end, argnums=(0, 1)))(field, args)
    assert [type(one) for one in found] == [Field, Net]
    close(found, jax.grad(by_hand, argnums=(0, 1))(lists(field), lists(args)), 1e-4, 1e-5)


def test_lineax(net: Net) -> None:
    lx = library("lineax")
    jacobian = lx.JacobianLinearOperator(lambda net, args: net(X), net)
    rows = jax.jacrev(lambda tree: plain(tree, X))(lists(net))
    dense = np.concatenate([np.asarray(leaf).reshape(8, -1) for leaf in jax.tree.leaves(rows)], 1)
    residual = Y - net(X)
    normal = lx.FunctionLinearOperator(
        lambda step: jax.tree.map(lambda a, b: a + 0.1 * b, jacobian.T.mv(jacobian.mv(step)), step),
        jax.eval_shape(lambda: net),
        tags=lx.positive_semidefinite_tag,
    )
    step = lx.linear_solve(normal, jacobian.T.mv(residual), lx.CG(1e-6, 1e-6)).value  # of Levenberg and Marquardt
    wanted = np.linalg.solve(dense.T @ dense + 0.1 * np.eye(32), dense.T @ np.asarray(residual).ravel())
    assert type(step) is Net
    close(np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(step)]), wanted, 1e-3, 1e-4)


def test_optimistix(net: Net) -> None:
    optx = library("optimistix")
    solver = optx.LevenbergMarquardt(1e-5, 1e-5)
    found = optx.least_squares(lambda net, args: net(X) - Y, solver, net, max_steps=8, throw=False).value
    assert type(found) is Net and plain_loss(lists(found)) < 0.3 * plain_loss(lists(net))

    def step(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda y, net: 0.3 * jnp.tanh(jnp.pad(call(net, y), (0, 1)))

    def fixed(net: Any) -> Any:
        solver = optx.FixedPointIteration(1e-6, 1e-6)
        return optx.fixed_point(step(lambda net, y: net(y)), solver, jnp.zeros(3), args=net).value.sum()

    def by_hand(tree: Any) -> Any:
        return jax.lax.scan(lambda y, _: (step(plain)(y, tree), None), jnp.zeros(3), length=40)[0].sum()

    close(jax.grad(fixed)(net), jax.grad(by_hand)(lists(net)), 1e-3, 1e-5)


def test_jaxopt(net: Net) -> None:
    jaxopt = library("jaxopt")

    def run(loss: Any, start: Any) -> Any:
        solver = jaxopt.GradientDescent(fun=loss, stepsize=0.1, maxiter=3, acceleration=False)
        return solver.run(start).params

    found = run(loss, net)
    assert type(found) is Net
    close(found, run(plain_loss, lists(net)))


# --- draws


def test_blackjax(net: Net) -> None:
    blackjax = library("blackjax")
    kernel = blackjax.hmc(lambda net: -energy(loss)(net), 0.1, jnp.ones(32), 3)
    state, info = jax.jit(kernel.step)(jax.random.key(0), kernel.init(net))
    assert type(state.position) is Net and info.is_accepted
    assert not np.allclose(jax.tree.leaves(state.position)[1], jax.tree.leaves(net)[1])
    wanted = jax.value_and_grad(lambda tree: -energy(plain_loss)(tree))(lists(state.position))
    close((state.logdensity, state.logdensity_grad), wanted, 1e-4, 1e-5)


@pytest.mark.full
def test_numpyro(net: Net) -> None:
    numpyro = library("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer import HMC, MCMC, SVI, Trace_ELBO
    from numpyro.infer.util import log_density

    hmc = HMC(potential_fn=energy(loss), step_size=0.1, trajectory_length=0.3, adapt_step_size=False)
    mcmc = MCMC(hmc, num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), init_params=net, extra_fields=("potential_energy",))
    found = mcmc.get_samples()
    assert type(found) is Net and not np.allclose(*jax.tree.leaves(found)[1])  # one and the next
    close(mcmc.get_extra_fields()["potential_energy"], jax.vmap(energy(plain_loss))(lists(found)), 1e-4)

    def model(x: Any, y: Any) -> None:
        """Every parameter is drawn."""

        def drawn(path: Any, leaf: Any) -> Any:
            return numpyro.sample(jax.tree_util.keystr(path), dist.Normal(jnp.zeros_like(leaf), 1.0).to_event())

        numpyro.sample("y", dist.Normal(jax.tree_util.tree_map_with_path(drawn, net)(x), 0.5).to_event(), obs=y)

    params = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(net)}
    density, trace = log_density(numpyro.handlers.seed(model, 0), (X, Y), {}, params)
    scores = [-0.5 * np.sum(np.square(leaf)) - 0.5 * np.log(2 * np.pi) * leaf.size for leaf in params.values()]
    scores += [-2.0 * np.sum(np.square(plain(lists(net), X) - Y)) - (0.5 * np.log(2 * np.pi) + np.log(0.5)) * 8]
    close(density, np.float32(sum(scores)), 1e-4)
    assert ".layers[0].weight" in trace

    def fitted(x: Any, y: Any) -> None:
        """It is fitted: what can be called makes the start, and a module can be called."""
        numpyro.sample("y", dist.Normal(numpyro.param("net", lambda key: net)(x), 1.0).to_event(), obs=y)

    svi = SVI(fitted, lambda x, y: None, numpyro.optim.SGD(0.1), Trace_ELBO())
    state, _ = svi.update(svi.init(jax.random.key(0), X, Y), X, Y)
    grads = jax.grad(lambda tree: 0.5 * jnp.sum((plain(tree, X) - Y) ** 2))(lists(net))
    close(svi.get_params(state)["net"], jax.tree.map(lambda p, g: p - 0.1 * g, lists(net), grads), 1e-4)


# --- where there are several devices

DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tests.ecosystem.test_libraries import X, Y, close, lists, plain
import phlox as px
from phlox import nn


class Net(px.Module):
    def __init__(self):
        self.layers = [nn.Linear(3, 8, device="jax"), nn.Linear(8, 2, device="jax")]

    def __call__(self, x):
        return self.layers[1](self.layers[0](x).tanh())


mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
net = Net().init(seed=0)
whole = lists(net)
rules = {".layers[0].weight": P(None, "model"), ".layers[0].bias": P("model"), ".layers[1].weight": P("model")}
placed = jax.tree_util.tree_map_with_path(
    lambda path, leaf: NamedSharding(mesh, rules.get(jax.tree_util.keystr(path), P())), net
)
assert placed.layers[0].weight.leaf.spec == P(None, "model")
net, x = jax.device_put(net, placed), jax.device_put(X, NamedSharding(mesh, P("data")))


def shardings(tree):
    return [leaf.sharding for leaf in jax.tree.leaves(tree)]


def trained(tree, call, x, steps=2):  # Optax under jit: the moments lie as the weights do
    optimizer = optax.adamw(0.1)

    @jax.jit
    def step(tree, state, x):
        grads = jax.grad(lambda tree: jnp.mean((call(tree, x) - Y) ** 2))(tree)
        updates, state = optimizer.update(grads, state, tree)
        return optax.apply_updates(tree, updates), state

    state = optimizer.init(tree)
    for _ in range(steps):
        tree, state = step(tree, state, x)
    return tree, state


after, state = trained(net, lambda net, x: net(x), x)
close((after, state), trained(whole, plain, X), 1e-4, 1e-5)
for found in (after, state[0].mu, state[0].nu):
    assert all(one.is_equivalent_to(two, 2) for one, two in zip(shardings(found)[:3:2], shardings(net)[:3:2]))

# Orbax: into another model, placed as its shardings say, or as the other model lies.
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1] + "/net", after)
    checkpointer.wait_until_finished()
    turned = jax.tree.map(lambda leaf: NamedSharding(mesh, P("data") if leaf.shape[0] % 2 == 0 else P()), after)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), after, turned)
    for like in (like, jax.device_put(Net().init(seed=1), placed)):
        back = checkpointer.restore(sys.argv[1] + "/net", like)
        assert shardings(back) == shardings(like) and type(back) is Net
        close(back, after, 0, 0)
        close(jax.jit(lambda net, x: net(x))(back, x), after(x))

try:
    import diffrax as dfx
except ImportError:
    sys.exit(0)


def mapped(net, x):  # each device has its part of the batch
    term = dfx.ODETerm(lambda t, x, net: jnp.pad(net(x), ((0, 0), (0, 1))))
    return dfx.diffeqsolve(term, dfx.Euler(), 0.0, 0.5, 0.5, x, args=net, max_steps=1).ys[0]


run = jax.jit(jax.shard_map(mapped, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=False))
close(run(jax.device_put(net, NamedSharding(mesh, P())), x), X + 0.5 * jnp.pad(plain(whole, X), ((0, 0), (0, 1))))
"""


@pytest.mark.full
def test_on_four_devices(tmp_path: Path) -> None:
    library("optax")
    library("orbax.checkpoint")
    check_on_devices(4, DEVICES, str(tmp_path), flags="--xla_backend_optimization_level=0")
