"""Layers of Flax, Equinox and PyTorch in a module: against the libraries' own results, layer by layer and in training.

Serves: phlox/interop/layers/
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import BackendError, ModuleError
from phlox.interop import equinox, flax, pytorch

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
RATE = 0.1


def rows(layer: Any, x: Any) -> Any:
    return jax.vmap(layer)(x)


def squash(x: Any) -> Any:
    return jnp.tanh(x)


def flax_mlp() -> Any:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(4, 8, rngs=rngs), squash, nnx.Linear(8, 2, rngs=rngs))


def equinox_mlp() -> Any:
    first, second = jax.random.split(jax.random.key(0))
    layers = [eqx.nn.Linear(4, 8, key=first), eqx.nn.Lambda(squash), eqx.nn.Linear(8, 2, key=second)]
    return eqx.nn.Sequential(layers)


def torch_mlp() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def by_flax() -> list[Any]:
    layer = flax_mlp()
    graph, params = nnx.split(layer)
    found = by_optax(params, lambda params, x: nnx.merge(graph, params)(x))
    return [value for _, value in sorted(zip(map(str, range(4)), jax.tree.leaves(found), strict=True))]


def by_equinox() -> list[Any]:
    params, rest = eqx.partition(equinox_mlp(), eqx.is_inexact_array)
    return jax.tree.leaves(by_optax(params, lambda params, x: rows(eqx.combine(params, rest), x)))


def by_optax(params: Any, predict: Callable[[Any, Any], Any]) -> Any:
    rule = optax.sgd(RATE)
    state = rule.init(params)
    for _ in range(3):
        grads = jax.grad(lambda params: ((predict(params, X) - Y) ** 2).mean())(params)
        updates, state = rule.update(grads, state)
        params = optax.apply_updates(params, updates)
    return params


def by_torch() -> list[Any]:
    layer = torch_mlp()
    rule = torch.optim.SGD(layer.parameters(), RATE)
    for _ in range(3):
        rule.zero_grad()
        (layer(torch.tensor(X)) - torch.tensor(Y)).square().mean().backward()
        rule.step()
    return [param.detach().numpy() for param in layer.parameters()]


class Library(NamedTuple):
    engine: str
    wrapped: Callable[[], Any]
    own: Callable[[Any], Any]
    trained: Callable[[], list[Any]]
    paths: list[str]


LIBRARIES = {
    "flax": Library(
        "jax", lambda: flax.wrap(flax_mlp()), lambda x: flax_mlp()(x), by_flax,
        ["layers.0.bias", "layers.0.kernel", "layers.2.bias", "layers.2.kernel"],
    ),
    "equinox": Library(
        "jax", lambda: equinox.wrap(equinox_mlp(), call=rows), lambda x: rows(equinox_mlp(), x), by_equinox,
        ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"],
    ),
    "pytorch": Library(
        "torch", lambda: pytorch.wrap(torch_mlp()), lambda x: torch_mlp()(torch.tensor(x)).detach(), by_torch,
        ["0.weight", "0.bias", "2.weight", "2.bias"],
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", LIBRARIES)


class Mixed(px.Module):
    """A layer of ours, and one of another library."""

    def __init__(self, library: Library) -> None:
        self.first = nn.Linear(4, 4, device=library.engine)
        self.second = library.wrapped()

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.second(self.first(x))


@EACH
def test_a_layer_computes_and_trains_as_in_its_library(name: str) -> None:
    library = LIBRARIES[name]
    layer = library.wrapped()
    assert [path for path, param in layer.named_params() if param.trained] == library.paths
    np.testing.assert_array_equal(layer(px.tensor(X, device=library.engine)).numpy(), np.asarray(library.own(X)))
    np.testing.assert_array_equal(np.asarray(layer(X)), np.asarray(library.own(X)))  # arrays in, arrays out
    expected = library.trained()
    x, y = (px.tensor(array, device=library.engine) for array in (X, Y))

    def step(model: Any, optimizer: Any, x: px.Tensor, y: px.Tensor) -> Any:
        grads = px.GradientsParams.from_grads((model(x) - y).square().mean().backward(), model)
        return optimizer.step(RATE, model, grads)

    for run in (step, px.compile(step)):
        model, optimizer = layer.train(), optim.SgdConfig().init()
        for _ in range(3):
            model = run(model, optimizer, x, y)
        for param, value in zip(model.params(), expected, strict=True):
            np.testing.assert_allclose(param.val().numpy(), np.asarray(value), rtol=1e-4, atol=1e-6)


@EACH
def test_a_layer_in_a_model(name: str, tmp_path: Path) -> None:
    library = LIBRARIES[name]
    model = Mixed(library).init(0)
    x = px.tensor(X, device=library.engine)
    expected = np.asarray(library.own(model.first(x).numpy()))
    paths = ["first.weight", "first.bias", *[f"second.{path}" for path in library.paths]]
    assert [path for path, _ in model.named_params()] == paths
    np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-6)
    other = model.map(lambda path, param: param.map(lambda value: value * 0.0))
    assert other.load(model.save(tmp_path / "model")).ok
    for twin in (other, copy.deepcopy(model), px.compile(lambda model: model)(model)):
        np.testing.assert_array_equal(twin(x).numpy(), model(x).numpy())
    frozen = model.freeze("second").train()
    grads = frozen(x).square().sum().backward()
    assert [len(px.GradientsParams.from_grads(grads, one)) for one in (frozen, model.train())] == [2, 0]
    half = {"jax": Jax, "torch": Torch}[library.engine](float="bf16")
    rounded = model.to_device(half)(px.tensor(X, device=half))
    assert rounded.backend is half
    np.testing.assert_allclose(rounded.to_full_precision().numpy(), expected, atol=0.05)
    loaded = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(loaded(x).numpy(), model(x).numpy())


@pytest.mark.parametrize("name", ["flax", "pytorch"])  # one for each engine
def test_second_derivatives_and_batches_of_examples(name: str) -> None:
    library = LIBRARIES[name]
    layer, x = library.wrapped(), px.tensor(X, device=library.engine)
    double = px.tensor(X, device={"jax": Jax, "torch": Torch}[library.engine](float="f64"))
    wide = layer.to_device(double.device)

    def slope(x: px.Tensor) -> px.Tensor:
        return px.grad(lambda x: wide(x).square().sum())(x).sin().sum()

    step, towards = 1e-6, np.random.default_rng(2).normal(size=X.shape)
    ahead, behind = (slope(double + px.tensor(towards * h, device=double.device)).item() for h in (step, -step))
    found = (px.grad(slope)(double).numpy() * towards).sum()
    assert found == pytest.approx((ahead - behind) / (2 * step), rel=1e-5)
    each = px.vmap(lambda row: layer(row.expand_dims(0))[0])(x[:2])
    np.testing.assert_allclose(each.numpy(), layer(x[:2]).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["flax", "equinox"])
def test_raw_jax(name: str) -> None:
    library = LIBRARIES[name]
    layer = library.wrapped()
    for transformed in (lambda model, x: model(x), jax.jit(lambda model, x: model(x))):
        np.testing.assert_allclose(transformed(layer, X), library.own(X), rtol=1e-5, atol=1e-6)
    grads = jax.jit(jax.grad(lambda model: (model(X) ** 2).sum()))(layer)
    taped = layer.train()
    x = px.tensor(X, device=taped.params()[0].device)
    ours = px.GradientsParams.from_grads(taped(x).square().sum().backward(), taped)
    for mine, param in zip(grads.params(), taped.params(), strict=True):
        its = ours.get(param.id)
        assert its is not None
        np.testing.assert_allclose(mine.val().numpy(), its.numpy(), rtol=1e-4, atol=1e-5)
    members = jax.tree.map(lambda a, b: jnp.stack([a, b]), layer, jax.tree.map(lambda a: a * 2, layer))
    both = jax.vmap(lambda model: model(X))(members)
    np.testing.assert_allclose(both[0], library.own(X), rtol=1e-5, atol=1e-6)
    same = library.wrapped()
    assert jax.tree.structure(same) == jax.tree.structure(layer)  # one trace for both


@EACH
def test_a_layer_on_another_engine(name: str) -> None:
    library = LIBRARIES[name]
    model = Mixed(library).init(0)
    moved = model.to_device(NumPy())
    with pytest.raises(BackendError, match=f"^second: .*computes on '{library.engine}'.*parameters are on 'numpy"):
        moved(px.tensor(X, device="numpy"))
    assert moved.to_device(library.engine)(px.tensor(X, device=library.engine)).shape == (6, 2)
    with pytest.raises(BackendError, match=rf"a tensor is on 'numpy:cpu'.*model\.to_device\('{library.engine}'\)"):
        model.second(px.tensor(X, device="numpy"))


WRAPS = {"flax": flax.wrap, "equinox": equinox.wrap, "pytorch": pytorch.wrap}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a module of ours": (lambda: nn.Linear(2, 2), "a Linear is a module of Phlox"),
    "a wrapped one": (lambda: pytorch.wrap(torch.nn.Linear(2, 2)), "a Wrapped is a module of Phlox"),
    "a class": (lambda: nnx.Linear, r"got the class Linear; give an instance of it: Linear\(\.\.\.\)"),
    "a function": (lambda: rows, r"got the function rows.*phlox\.lift\(function\)"),
    "a number": (lambda: 3, "takes a layer, an instance of .*; got int"),
}


@pytest.mark.parametrize("package", WRAPS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_wrapped(kind: str, package: str) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(ModuleError, match=rf"^phlox\.interop\.{package}\.wrap: {message}"):
        WRAPS[package](make())


def test_a_layer_of_another_library_names_the_adapter() -> None:
    with pytest.raises(ModuleError, match=r"^phlox\.interop\.flax\.wrap: got a layer of PyTorch.*pytorch\.wrap"):
        flax.wrap(torch.nn.Linear(2, 2))
    linen = pytest.importorskip("flax.linen").Dense(2)
    with pytest.raises(ModuleError, match=r"Flax Linen.*write phlox\.interop\.flax\.wrap\(flax\.nnx\.bridge\.ToNNX"):
        flax.wrap(linen)
    made = nnx.bridge.ToNNX(linen, rngs=nnx.Rngs(0)).lazy_init(jnp.asarray(X))
    np.testing.assert_array_equal(np.asarray(flax.wrap(made)(X)), made(X))


def test_names_that_modules_have_themselves() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.params = torch.nn.Linear(4, 2)
            self.blocks = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks["a"](self.params(x))

    layer = Odd()
    wrapped = pytorch.wrap(layer)
    assert [path for path, _ in wrapped.named_params()] == [
        "params_.weight", "params_.bias", "blocks.a.weight", "blocks.a.bias",
    ]  # fmt: skip
    assert torch.equal(wrapped(torch.tensor(X)), layer(torch.tensor(X)))
