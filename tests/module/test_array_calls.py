"""Modules called on arrays: arrays in, arrays out, on every engine."""

# ruff: noqa: F722 - jaxtyping's shapes are texts in annotations

# Arrays are given where types speak of tensors.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false, reportIncompatibleMethodOverride=false, reportIndexIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jaxtyping import Float

import phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import AutodiffError, BackendError, KindError, ShapeError

OWN: dict[str, tuple[Any, Any, type]] = {
    "numpy": (NumPy(), np.asarray, np.ndarray),
    "jax": (Jax(), jnp.asarray, jax.Array),
    "torch": (Torch(), torch.tensor, torch.Tensor),
}
engines = pytest.mark.parametrize("engine", OWN)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Net(px.Module):
    def __init__(self, device: Any = None) -> None:
        self.layers = [nn.Linear(4, 8, device=device), nn.Linear(8, 4, device=device)]
        self.act = nn.Gelu()

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.act(layer(x)).tanh()
        return x


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Batch:
    x: Any
    name: str


class Many(px.Module):
    """Takes and returns containers, and says what it was given."""

    def __init__(self, device: Any = None) -> None:
        self.net = Net(device)
        self.table = nn.Embedding(7, 4, device=device)
        self.seen = ""

    def __call__(self, batch: Any, tokens: Any = None, *more: Any, mask: Any = None, flag: str = "") -> Any:
        y = self.net(batch.x)
        if tokens is not None:
            y = y + self.table(tokens)
        if mask is not None:
            y = px.where(mask, y, 0.0)
        for other in more:
            y = y + other
        return {"y": y, "pair": Pair(y.sum(), (y > 0).int()), "batch": Batch(y, flag), "given": batch}


@engines
def test_arrays_in_arrays_out(engine: str) -> None:
    backend, own, cls = OWN[engine]
    net = Net(backend).init(seed=0)
    expected = net(px.tensor(X, device=backend)).numpy()
    for given in (own(X), X, own(X.astype(np.float64))):
        y = net(given)
        assert isinstance(y, cls) and not isinstance(y, px.Tensor) and "float32" in str(y.dtype)
        np.testing.assert_array_equal(np.asarray(y), expected)
    assert isinstance(net(px.tensor(X, device=backend)), px.Tensor)
    low = net.to_device(type(backend)(float="bf16"))
    assert "bfloat16" in str(low(own(X)).dtype)  # the module's precision
    with pytest.raises(ShapeError, match=r"^layers\.0: Linear\(.*x of shape \(5, 3\)"):
        net(own(X[:, :3]))


@engines
def test_containers_kinds_and_keywords(engine: str) -> None:
    backend, own, cls = OWN[engine]
    model = Many(backend).init(seed=0)
    tokens, mask = np.array([0, 6, 3, 3, 1]), X > 0

    def tensors(x: Any) -> Any:
        return px.tensor(x, device=backend)

    expected = model(Batch(tensors(X), "b"), tensors(tokens), tensors(X), mask=tensors(mask), flag="f")
    found = model(Batch(own(X), "b"), own(tokens), own(X), mask=own(mask), flag="f")
    assert isinstance(found["pair"], Pair) and found["batch"].name == "f" and found["given"].name == "b"
    for a, b in zip(
        (found["y"], *found["pair"], found["batch"].x, found["given"].x),
        (expected["y"], *expected["pair"], expected["batch"].x, expected["given"].x),
        strict=True,
    ):
        assert isinstance(a, (cls, np.generic)) and isinstance(b, px.Tensor)  # of NumPy, a scalar is one too
        np.testing.assert_array_equal(np.asarray(a), b.numpy())
    # A tensor among the arguments: the rest joins it.
    mixed = model(Batch(tensors(X), "b"), own(tokens), own(X), mask=mask, flag="f")
    np.testing.assert_array_equal(mixed["y"].numpy(), expected["y"].numpy())


@pytest.mark.parametrize("engine", OWN)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32"])
def test_without_parameters_arrays_keep_their_engine_and_element_type(engine: str, dtype: str) -> None:
    own, cls = OWN[engine][1:]
    x = X.astype(dtype)
    with jax.enable_x64(True):
        y = nn.Flatten()(own(x))
        assert isinstance(y, cls) and dtype in str(y.dtype)
        np.testing.assert_array_equal(np.asarray(y), x)


class ForArrays(px.Module):
    """Written for arrays, as its annotations say: jax.lax takes no tensors."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 4, device="jax")

    def __call__(self, x: jax.Array, y: Float[jax.Array, "n d"] | None = None, z: px.Tensor | None = None) -> jax.Array:
        assert isinstance(x, jax.Array) and not isinstance(y, px.Tensor) and not isinstance(z, jax.Array)
        return self.layer(jax.lax.tanh(x)) if y is None else self.layer(x) + jax.lax.exp(y)


class UsesJax(ForArrays):
    """Without annotations: what it calls says it."""

    def __call__(self, x, y=None, z: px.Tensor | None = None):
        assert not isinstance(z, jax.Array)
        return self.layer(jax.lax.tanh(x)) if y is None else self.layer(x) + self.helped(y)

    def helped(self, y):
        return jax.lax.exp(y)


def helped(y):
    return jax.lax.exp(y)


class UsesHelpers(UsesJax):
    def __call__(self, x, y=None, z: px.Tensor | None = None):
        from jax.lax import tanh

        return self.layer(tanh(x)) if y is None else self.layer(x) + helped(y)


class Mixed(px.Module):
    def __call__(self, x):
        return jnp.sum(x.tanh())


class MixedOnTensors(px.Module):
    def __call__(self, x: px.Tensor):
        return jnp.sum(x.tanh())


@pytest.mark.parametrize("cls", [ForArrays, UsesJax, UsesHelpers])
def test_code_that_is_written_for_arrays_gets_them(cls: Any) -> None:
    model, x = cls().init(seed=0), jnp.asarray(X)
    weight, bias = model.layer.weight.val().numpy(), model.layer.bias.val().numpy()
    np.testing.assert_allclose(model(x), np.tanh(X) @ weight + bias, rtol=1e-4, atol=1e-6)
    jitted = jax.jit(lambda model, x: model(x, y=x, z=x))(model, x)
    np.testing.assert_allclose(jitted, X @ weight + bias + np.exp(X), rtol=1e-4, atol=1e-6)


def test_code_of_both_styles_says_what_it_takes() -> None:
    with pytest.raises(AttributeError) as caught:
        Mixed()(jnp.asarray(X))
    assert "annotate its parameters as phlox.Tensor" in caught.value.__notes__[0]
    np.testing.assert_allclose(MixedOnTensors()(jnp.asarray(X)), np.tanh(X).sum(), rtol=1e-5)


def test_under_transformations_of_jax() -> None:
    net, x = Net(Jax()).init(seed=0), jnp.asarray(X)
    whole = jax.jit(lambda m, x: m(x))(net, x)
    np.testing.assert_allclose(whole, net(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(net)(x), whole, rtol=1e-5, atol=1e-6)
    by_x = jax.grad(lambda x: net(x).sum())(x)
    by_m = jax.grad(lambda m: net_loss(m, x))(net)
    for got, expected in (
        (by_x, px.grad(lambda x: net.train()(x).sum())(px.Tensor.from_inner(px.tensor(x, device="jax")))),
        (by_m.layers[0].weight.val(), px.grad(lambda m: m(px.tensor(X, device="jax")).square().mean())(net.train())),
    ):
        wanted = expected if isinstance(expected, px.Tensor) else expected.get(net.layers[0].weight.id)
        np.testing.assert_allclose(np.asarray(got), wanted.numpy(), rtol=1e-4, atol=1e-6)
    key = jax.random.key(0)
    assert Keyed()(x, key).shape == Keyed()(x, jax.random.PRNGKey(0)).shape == x.shape  # keys are no numbers


def net_loss(m: Any, x: Any) -> Any:
    return jnp.square(m(x)).mean()


class Keyed(px.Module):
    def __call__(self, x: Any, key: Any) -> Any:
        return x + jax.random.normal(key, x.shape)


def test_a_history_is_not_lost_without_a_word() -> None:
    net, x = Net(Jax()).init(seed=0), jnp.asarray(X)
    for call in (lambda: net.train()(x), lambda: px.grad(lambda m: m(x).mean())(net.train())):
        with pytest.raises(AutodiffError, match=r"^Net: the result: an array has no history.*\.train\(tape=False\)"):
            call()
    assert isinstance(net.train(tape=False)(x), jax.Array)
    y = jax.jit(lambda m, x: m(x))(net.train(), x)  # JAX's own derivatives see what JAX traces
    np.testing.assert_allclose(y, net(x), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_taken() -> None:
    net = Net(Torch()).init(seed=0)
    with pytest.raises(
        BackendError, match=r"^Net: x: an array of jax and Torch\(\) do not mix; .*device='torch:cpu'\)"
    ):
        net(jnp.asarray(X))
    with pytest.raises(AutodiffError, match=r"^Net: x: a PyTorch tensor that requires a gradient.*x\.detach\(\)"):
        net(torch.tensor(X, requires_grad=True))
    with torch.no_grad():
        assert isinstance(net(torch.nn.Parameter(torch.tensor(X))), torch.Tensor)
    with pytest.raises(KindError, match=r"^Linear\(.*x must be a Float tensor, got Int"):
        nn.Linear(5, 2, device="jax")(jnp.arange(5))
