"""Models that are made inside of transformations, from seeds and keys: they are those of the eager call, bit for bit.

Serves: phlox/module/deferred.py
Serves: phlox/random/roots.py
Serves: phlox/backend/threefry/foreign_keys.py
Serves: phlox/batching/frames.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import phlox as px
from phlox import nn
from phlox.errors import KindError, ModuleError, RandomnessError, RangeError, ShapeError

DEVICES = ["numpy", "jax", "torch"]


class Net(px.Module):
    def __init__(self, device: str = "jax") -> None:
        self.layers = [nn.Linear(4, 5, device=device), nn.Linear(5, 3, initializer=nn.LecunNormal(), device=device)]
        self.norm = nn.LayerNorm(3, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def made(seed: Any) -> Net:
    return Net().init(seed=seed)


def bits(model: Any, *member: int) -> list[bytes]:
    return [param.val().numpy()[member].tobytes() for param in model.params()]


SEEDS = np.arange(3)
REPLICATED = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("all",)), PartitionSpec())

ONE: dict[str, Callable[[Any], Any]] = {
    "jit": lambda seed: jax.jit(made)(seed),
    "jit with out_shardings": lambda seed: jax.jit(made, out_shardings=REPLICATED)(seed),
    "jit around px.compile": lambda seed: jax.jit(lambda seed: px.compile(made)(seed))(seed),
    "cond": lambda seed: jax.lax.cond(True, made, made, jnp.asarray(seed)),
    "a loop around": lambda seed: jax.jit(lambda s: jax.lax.scan(lambda c, _: (c, made(c)), s, length=1)[1])(seed),
}
MANY: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda seeds: jax.vmap(made)(seeds),
    "jit of vmap": lambda seeds: jax.jit(jax.vmap(made))(seeds),
    "map": lambda seeds: jax.lax.map(made, seeds),
    "scan": lambda seeds: jax.lax.scan(lambda carry, seed: (carry, made(seed)), 0, seeds)[1],
}
KEYS: dict[str, Callable[[int], Any]] = {"integer": np.int32, "key": jax.random.key, "PRNGKey": jax.random.PRNGKey}


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", [*ONE, *MANY])
def test_under_transformations_of_jax(name: str, kind: str) -> None:
    if name == "jit around px.compile" and kind != "integer":
        pytest.skip("px.compile takes tensors and numbers")
    expected = [bits(made(int(seed))) for seed in SEEDS]
    if name in MANY:
        found = MANY[name](jnp.stack([jnp.asarray(KEYS[kind](int(seed))) for seed in SEEDS]))
        assert [bits(found, member) for member in range(3)] == expected
    else:
        member = (0,) if name == "a loop around" else ()
        assert bits(ONE[name](KEYS[kind](2)), *member) == expected[2]


def test_a_key_that_is_split_is_an_ensemble() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    found = jax.vmap(lambda key: Net().init(seed=key))(keys)
    x = px.ones((2, 4), device="jax")
    out = jax.vmap(lambda model: model(x).primitive)(found)
    for member, key in enumerate(keys):
        assert bits(found, member) == bits(made(key))
        np.testing.assert_allclose(out[member], made(key)(x).numpy(), rtol=1e-5, atol=1e-6)


def test_shapes_alone() -> None:
    for seed in (0, jax.random.key(0)):
        shapes = jax.tree.leaves(jax.eval_shape(made, seed))
        assert [leaf.shape for leaf in shapes] == [param.shape for param in Net().params()]


@pytest.mark.parametrize("device", DEVICES)
def test_under_transformations_of_ours(device: str) -> None:
    def fn(seed: Any) -> Any:
        return Net(device).init(seed)

    expected = [bits(Net("numpy").init(seed)) for seed in range(4)]
    seeds = px.arange(3, device=device)
    for batched in (px.vmap(fn), px.compile(px.vmap(fn))):
        found = batched(seeds)
        assert [bits(found, member) for member in range(3)] == expected[:3]
    for seed in (px.tensor(2, device=device), 2):
        assert bits(px.compile(fn)(seed)) == expected[2]
    nested = px.vmap(px.vmap(fn))(px.tensor([[0, 1], [2, 3]], device=device))
    assert [bits(nested, *member) for member in np.ndindex(2, 2)] == expected
    x = px.ones((2, 4), device=device)
    out = px.vmap(lambda seed: fn(seed)(x))(seeds)
    np.testing.assert_allclose(out[2].numpy(), fn(2)(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.every(2)
@pytest.mark.parametrize("device", ["numpy", "jax", pytest.param("torch", marks=pytest.mark.full)])
def test_what_a_seed_may_be(device: str) -> None:
    expected = bits(Net("numpy").init(7))
    same = (np.int64(7), np.uint8(7), jnp.int32(7), px.tensor(7), (0, 7), jax.random.key(7), jax.random.PRNGKey(7))
    assert all(bits(Net(device).init(seed)) == expected for seed in same)
    for wide in (2**40 + 5, -3, -(2**40)):
        assert bits(px.compile(lambda seed: Net(device).init(seed))(wide)) == bits(Net("numpy").init(wide))
    assert bits(jax.jit(made)(-3)) == bits(made(-3)) == bits(made(2**64 - 3))
    with jax.enable_x64(True):
        for wide in (np.int64(2**40 + 5), np.uint64(2**63 + 1), np.int16(-4)):
            assert bits(jax.jit(made)(wide)) == bits(made(wide))


BAD: dict[str, Any] = {
    "float": 1.5, "string": "a", "too large": 2**64, "too small": -(2**63) - 1, "list": [1, 2], "one word": (1,),
    "words": (1, 2**32), "array": np.arange(3), "float array": np.float32(1), "jax": jnp.arange(3),
    "keys": jax.random.split(jax.random.key(0)), "tensor": px.tensor([1, 2]), "float tensor": px.tensor(1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_seed(name: str) -> None:
    for open_ in (lambda seed: Net().init(seed=seed), px.random.seed):
        with pytest.raises((KindError, ShapeError, RangeError), match="seed|key") as caught:
            open_(BAD[name])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [np.float32(1), np.arange(3), np.zeros((2, 2), np.uint32), np.True_], ids=str)
def test_what_is_no_seed_where_it_is_traced(bad: Any) -> None:
    with pytest.raises(KindError, match=r"a seed is an integer.*, traced or not; got an array of"):
        jax.jit(made)(bad)


@pytest.mark.parametrize(
    "run",
    [
        lambda model: jax.jit(lambda seed: model.init(seed=seed))(3),
        lambda model: jax.vmap(lambda seed: model.init(seed=seed))(jnp.arange(2)),
        lambda model: px.vmap(lambda seed: model.init(seed))(px.arange(2, device="jax")),
        lambda model: px.compile(lambda seed: model.init(seed))(px.tensor(2, device="jax")),
    ],
    ids=["jit", "vmap", "px.vmap", "px.compile"],
)
def test_a_model_from_outside_gets_no_tracers(run: Any) -> None:
    model = Net()
    with pytest.raises(ModuleError, match="declared outside of the transformation.*create the model inside"):
        run(model)
    assert all(param.is_deferred for param in model.params())
    assert bits(model.init(seed=1)) == bits(made(1))


def test_a_model_elsewhere_than_the_seed_is_refused() -> None:
    with pytest.raises(RandomnessError, match=r"a parameter on NumPy\(\) cannot have a value from a seed"):
        jax.jit(lambda seed: Net("numpy").init(seed))(3)
    with pytest.raises(ModuleError, match="create the model on the engine of the seed"):
        px.vmap(lambda seed: Net("numpy").init(seed))(px.arange(2, device="jax"))


# --- initializers


def of_values(shape: tuple[int, ...], fans: tuple[int, int], device: Any) -> px.Tensor:
    values = px.random.normal(shape, device=device).numpy()
    return px.tensor(values * np.sign(values[0]), device=device)


def with_a_branch(shape: tuple[int, ...], fans: tuple[int, int], device: Any) -> px.Tensor:
    values = px.random.normal(shape, device=device)
    return values if values.sum() > 0.0 else -values


INITIALIZERS: dict[str, Any] = {
    "uniform": nn.Uniform(low=-0.3, high=0.9), "normal": nn.Normal(mean=0.3, std=0.7), "kaiming": nn.KaimingNormal(),
    "truncated": nn.TruncatedNormal(mean=0.1, std=0.5), "orthogonal": nn.Orthogonal(), "sparse": nn.Sparse(),
    "of jax": jax.nn.initializers.lecun_normal(), "of values": of_values, "with a branch": with_a_branch,
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("name", INITIALIZERS)
def test_every_initializer_takes_a_traced_seed(name: str) -> None:
    def layer(seed: Any) -> Any:
        return nn.Linear(33, 17, initializer=INITIALIZERS[name], device="jax").init(seed=seed)

    expected = [bits(layer(seed)) for seed in range(3)]
    assert bits(jax.jit(layer)(2)) == bits(px.compile(layer)(px.tensor(2, device="jax"))) == expected[2]
    for found in (jax.vmap(layer)(jnp.arange(3)), px.compile(px.vmap(layer))(px.arange(3, device="jax"))):
        assert [bits(found, member) for member in range(3)] == expected


# --- draws

DRAWS: dict[str, Any] = {
    "uniform": lambda d: px.random.uniform((7,), -0.3, 0.9, device=d),
    "normal": lambda d: px.random.normal((7,), 0.3, 0.9, device=d),
    "bernoulli": lambda d: px.random.bernoulli((7,), 0.3, device=d),
    "integers": lambda d: px.random.integers((7,), -5, 100, device=d),
    "permutation": lambda d: px.random.permutation(7, device=d),
    "truncated normal": lambda d: px.random.truncated_normal((7,), device=d),
    "dropout": lambda d: nn.dropout(px.ones((7,), device=d), 0.5),
    "a parameter": lambda d: nn.Linear(7, 1, device=d).init().weight.val(),
    "of another batch": lambda d: px.vmap(lambda x: x + px.random.normal((), device=d))(px.zeros((7,), device=d)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DRAWS)
def test_a_stream_on_a_traced_seed(name: str, device: str) -> None:
    def second(seed: Any) -> px.Tensor:
        with px.random.stream(seed):
            DRAWS[name](device)
            return DRAWS[name](device)

    expected = [second(seed).numpy() for seed in range(3)]
    many = px.arange(3, device=device)
    found: list[Any] = [px.vmap(second)(many).numpy(), px.compile(px.vmap(second))(many).numpy()]
    one = [px.compile(second)(px.tensor(2, device=device)).numpy()]
    if device == "jax":
        raw: Any = lambda seed: second(seed).primitive  # noqa: E731
        found += [jax.vmap(raw)(np.arange(3)), jax.jit(jax.vmap(raw))(np.arange(3)), jax.lax.map(raw, np.arange(3))]
        one += [jax.jit(raw)(seed) for seed in (2, jax.random.key(2), jax.random.PRNGKey(2))]
    for got in found:
        np.testing.assert_array_equal(got, np.stack(expected))
    for got in one:
        np.testing.assert_array_equal(got, expected[2])


def test_loops_and_checkpoints_on_a_traced_seed() -> None:
    def loop(seed: Any) -> px.Tensor:
        with px.random.stream(seed):
            step = lambda c, _: (c + px.random.normal((3,), device="jax"), None)  # noqa: E731
            return px.scan(step, px.zeros((3,), device="jax"), length=3)[0]

    def slope(seed: Any) -> px.Tensor:
        with px.random.stream(seed):
            loss = px.checkpoint(lambda x: (x * px.random.normal((3,), device=x.device)).sum())
            return px.grad(loss)(px.ones((3,), device="jax"))

    seeds = px.arange(3, device="jax")
    for fn in (loop, slope):
        np.testing.assert_array_equal(px.compile(fn)(seeds[2]).numpy(), fn(2).numpy())
        np.testing.assert_array_equal(px.vmap(fn)(seeds)[2].numpy(), fn(2).numpy())
    with pytest.raises(RandomnessError, match="on a key for each example cannot go into a loop"):
        px.compile(px.vmap(loop))(seeds)


def test_draws_that_do_not_fit_the_stream_are_refused() -> None:
    def elsewhere(seed: Any) -> Any:
        with px.random.stream(seed):
            return px.random.normal((3,), device="numpy").numpy()

    with pytest.raises(RandomnessError, match="a random draw on NumPy.*another engine traces; draw on the engine"):
        jax.jit(elsewhere)(3)
    with pytest.raises(RandomnessError, match="a key for each of them; draw on the engine of the key"):
        px.vmap(elsewhere)(px.arange(3, device="jax"))

    def saved(seed: Any) -> Any:
        with px.random.stream(seed):
            return px.random.state()

    with pytest.raises(RandomnessError, match="has no state to save"):
        px.vmap(saved)(px.arange(3))


def test_a_model_without_a_seed_in_a_compiled_function_is_that_of_the_eager_call() -> None:
    def fn(x: px.Tensor) -> Any:
        return Net().init(), x

    compiled = px.compile(fn)
    x = px.ones((1,), device="jax")
    with px.random.stream(4):
        expected = [bits(fn(x)[0]) for _ in range(2)]
    with px.random.stream(4):
        assert [bits(compiled(x)[0]) for _ in range(2)] == expected and expected[0] != expected[1]
