"""A tensor is an array to JAX, Optax, einops, jaxtyping and NumPy, and confuses none of Equinox, Flax and Orbax.

Serves: phlox/tensor/einops_backend.py
"""

# ruff: noqa: F722 - jaxtyping's shapes are texts in annotations

# Arrays are given where types speak of tensors.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false, reportIncompatibleMethodOverride=false, reportIndexIssue=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import einops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from flax import nnx
from jaxtyping import Array, Float, Int, jaxtyped

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch

rng = np.random.default_rng(0)
VALUES = rng.normal(size=(6, 4)).astype(np.float32)
LABELS = rng.integers(0, 4, size=6)
X = px.tensor(VALUES, device="jax")

# --- jax.numpy, jax.nn, jax.lax, Optax

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": jnp.sum,
    "mean of an axis": lambda x: jnp.mean(x, axis=-1, keepdims=True),
    "asarray": lambda x: jnp.asarray(x) * 2,
    "where": lambda x: jnp.where(x > 0, x, 0.0),
    "concatenate": lambda x: jnp.concatenate([x, jnp.ones((6, 1)), x], axis=1),
    "stack": lambda x: jnp.stack([x, x]),
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
    "matmul, array left": lambda x: jnp.ones((2, 6)) @ x,
    "array minus": lambda x: jnp.ones(4) - x,
    "linalg": lambda x: jnp.linalg.norm(x, axis=0),
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "logsumexp": jax.scipy.special.logsumexp,
    "stop_gradient": lambda x: jnp.sum(x * jax.lax.stop_gradient(x)),
    "vmap": jax.vmap(lambda row: jnp.sum(row * row)),
    "scan": lambda x: jax.lax.scan(lambda carry, row: (carry + jnp.sum(row), row), 0.0, x),
    "integer labels": lambda x: optax.losses.softmax_cross_entropy_with_integer_labels(x, jnp.asarray(LABELS)),
    "squared error": lambda x: optax.losses.squared_error(x, jnp.ones((6, 4))),
    "huber": lambda x: optax.losses.huber_loss(x, jnp.zeros((6, 4))),
    "cosine": lambda x: optax.losses.cosine_similarity(x, jnp.ones((6, 4))),
    "sigmoid": lambda x: optax.losses.sigmoid_binary_cross_entropy(x, jnp.ones((6, 4))),
}


def arrays(tree: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def close(got: Any, expected: Any) -> None:
    for a, b in zip(arrays(got), arrays(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_jax_take_tensors(name: str) -> None:
    call, array = FUNCTIONS[name], jnp.asarray(VALUES)
    close(call(X), call(array))
    close(jax.jit(call)(X), call(array))

    def scalar(x: Any) -> Any:
        return sum(jnp.sum(jnp.square(jnp.asarray(leaf))) for leaf in jax.tree.leaves(call(x)))

    close(jax.grad(scalar)(X), jax.grad(scalar)(array))


def test_a_loss_of_jax_grad_may_be_a_tensor_of_one_element() -> None:
    model, array = nn.Linear(4, 2, device="jax").init(seed=0), jnp.asarray(VALUES)
    expected = jax.grad(lambda m: jnp.square(m(array)).mean())(model)
    for loss in (lambda m: m(X).square().mean(), lambda m: m(X).square().mean(keepdims=True)):
        value, grads = jax.jit(jax.value_and_grad(loss))(model)
        assert isinstance(value, px.Tensor) and type(grads) is nn.Linear
        close(grads, expected)
        close(eqx.filter_grad(loss)(model), expected)
        close(nnx.grad(loss)(model), expected)
    (_, seen), grads = jax.value_and_grad(lambda m: (m(X).square().mean(), m(X)), has_aux=True)(model)
    close((grads, seen), (expected, model(array)))
    close(jax.vmap(jax.grad(lambda x: (x * x * x).sum()))(X), 3.0 * VALUES**2)
    close(jax.grad(jax.grad(lambda x: x * x * x))(px.tensor(2.0, device="jax")), 12.0)
    for wrong, message in (
        (lambda m: m(X), "scalar-output functions"),
        (lambda m: m(X).argmax(), "real-valued outputs"),
    ):
        with pytest.raises(TypeError, match=message):
            jax.grad(wrong)(model)


def test_debugging_floats_names_the_layer() -> None:
    class Root(px.Module):
        def __call__(self, x: Any) -> Any:
            return (x * 0.0 - self.minus()).log()

        def minus(self) -> float:
            return 1.0

    class Zero(Root):
        def minus(self) -> float:
            return 0.0

    for inner, scope, kind in ((Root(), jax.debug_nans, "nan"), (Zero(), jax.debug_infs, "inf")):
        model = nn.Sequential([nn.Linear(4, 4, device="jax"), inner]).init(seed=0)
        calls: list[Callable[[], Any]] = [
            lambda model=model: model(X),
            lambda model=model: jax.jit(lambda m, x: m(x))(model, X),
            lambda model=model: px.compile(lambda m, x: m(x))(model, X),
            lambda model=model: px.compile(px.value_and_grad(lambda m, x: m(x).sum()))(model.train(), X),
        ]
        for call in calls:
            name = f"^layers\\.1: {type(inner).__name__}: invalid value \\({kind}\\) encountered in log"
            with scope(True), pytest.raises(FloatingPointError, match=name):
                call()


# --- einops, jaxtyping, NumPy


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(Torch(float="f64"))], ids=repr)
def test_einops(backend: Any) -> None:
    values = rng.normal(size=(2, 3, 4))
    x = px.tensor(values, device=backend)
    cases: list[Callable[[Any], Any]] = [
        lambda x: einops.rearrange(x, "a b c -> c (a b)"),
        lambda x: einops.rearrange([x, x], "k a b c -> a (k b) c"),
        lambda x: einops.reduce(x, "a (b d) c -> a c", "mean", d=3),
        lambda x: einops.reduce(x, "a b c -> b", "max"),
        lambda x: einops.reduce(x > 0, "a b c -> b", "any"),
        lambda x: einops.repeat(x, "a b c -> a b k c", k=2),
        lambda x: einops.einsum(x, x, "a b c, d b c -> a d"),
        lambda x: einops.pack([x, x], "* c")[0],
        lambda x: einops.unpack(x, [[1], [2]], "a * c")[1],
    ]
    for case in cases:
        found = case(x)
        assert isinstance(found, px.Tensor) and found.backend == backend
        np.testing.assert_allclose(found.numpy(), case(values), rtol=1e-5)
    assert einops.parse_shape(x, "a b _") == {"a": 2, "b": 3} and type(einops.asnumpy(x)) is np.ndarray


def test_einops_is_not_imported_and_may_come_before_or_after() -> None:
    later = "import sys, phlox as px; assert 'einops' not in sys.modules; import einops"
    for imports in ("import einops, phlox as px", later):
        line = "assert einops.rearrange(px.ones((2, 3)), 'a b -> b a').shape == (3, 2)"
        subprocess.run([sys.executable, "-c", f"{imports}; {line}"], check=True, timeout=120)


@jaxtyped(typechecker=beartype)
def product(x: Float[px.Tensor, "n d"], y: Float[px.Tensor, "d m"]) -> Float[px.Tensor, "n m"]:
    return x @ y


@jaxtyped(typechecker=beartype)
def take(x: Float[px.Tensor, "n d"], at: Int[px.Tensor, " k"]) -> Float[px.Tensor, "k d"]:
    return x[at]


class Typed(px.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 2, device="jax")

    @jaxtyped(typechecker=beartype)
    def __call__(self, x: Float[Array, "n 4"]) -> Float[Array, "n 2"]:
        return jax.nn.relu(self.layer(x))


@pytest.mark.parametrize("backend", [NumPy(), Jax(float="bf16"), Torch()], ids=repr)
def test_jaxtyping(backend: Any) -> None:
    x = px.ones((6, 4), device=backend)
    assert product(x, x.T).shape == (6, 6) and take(x, px.arange(2, device=backend)).shape == (2, 4)
    for wrong in (lambda: product(x, x), lambda: take(x, x[0]), lambda: product(VALUES, VALUES.T)):
        with pytest.raises((TypeError, BeartypeCallHintViolation)):
            wrong()
    assert jax.jit(lambda model, x: model(x))(Typed().init(seed=0), jnp.asarray(VALUES)).shape == (6, 2)


def test_numpy_takes_tensors() -> None:
    for backend in (NumPy(), Jax(), Torch()):
        x = px.tensor(VALUES, device=backend)
        np.testing.assert_allclose(np.sum(x, axis=0), VALUES.sum(0), rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(x, np.float64), VALUES.astype(np.float64))
        np.testing.assert_array_equal(np.concatenate([x, VALUES]), np.concatenate([VALUES, VALUES]))


# --- libraries that ask whether something is an array


def test_trees_with_tensors_stay_trees(tmp_path: Path) -> None:
    tree = {"x": X, "n": px.arange(3, device="jax"), "name": "text"}
    assert not eqx.is_array(X) and isinstance(jax.tree.leaves(X)[0], jax.Array)  # a tensor is a node around an array
    dynamic, static = eqx.partition(tree, eqx.is_array)
    again = eqx.combine(dynamic, static)
    assert isinstance(again["x"], px.Tensor) and again["name"] == "text"
    doubled = eqx.filter_jit(lambda tree: jax.tree.map(lambda x: x * 2 if eqx.is_array(x) else x, tree))(tree)
    assert isinstance(doubled["x"], px.Tensor) and doubled["n"].tolist() == [0, 2, 4]

    params = {"w": X}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert isinstance(optax.apply_updates(params, updates)["w"], px.Tensor)

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", params)
        checkpointer.wait_until_finished()
        back = checkpointer.restore(tmp_path / "tree", jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_array_equal(back["w"].numpy(), VALUES)

    class Holder(nnx.Module):
        def __init__(self) -> None:
            self.scale = nnx.Param(jnp.ones(4))
            self.table = nnx.data(X)

        def __call__(self, x: Any) -> Any:
            return x * self.scale + self.table

    holder = Holder()
    np.testing.assert_allclose(np.asarray(nnx.jit(lambda m, x: m(x))(holder, X)), VALUES * 2, rtol=1e-6)
    graph, state = nnx.split(holder)
    assert isinstance(nnx.merge(graph, state).table, px.Tensor)
