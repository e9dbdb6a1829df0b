"""`vmap` against `jax.vmap`, `torch.func` and loops.

Serves: phlox/batching/{frames,order}.py
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import (
    AutodiffError,
    BackendError,
    KindError,
    ModuleError,
    OptimizerError,
    RangeError,
    ShapeError,
    UnsupportedError,
)
from phlox.optim import GradientsParams
from phlox.tensor import functional

ENGINES = [NumPy(), Jax(), Torch()]
BACKENDS = [*ENGINES, *map(Autodiff, ENGINES)]
everywhere = pytest.mark.parametrize("backend", BACKENDS, ids=repr)
on_engines = pytest.mark.parametrize("engine", ENGINES, ids=repr)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=(3, 4, 2)).astype(np.float32)
W = RNG.normal(size=(3, 2)).astype(np.float32)
LABELS = np.array([0, 1, 1, 0], np.int32)


def on(backend: Backend, *arrays: Any) -> list[Any]:
    return [px.tensor(array, device=backend) for array in arrays]


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    found = found.numpy() if isinstance(found, px.Tensor) else found
    wanted = wanted.numpy() if isinstance(wanted, px.Tensor) else np.asarray(wanted)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def mlp(backend: Backend, seed: int = 0) -> Any:
    layers = [nn.Linear(3, 5), nn.Gelu(), nn.LayerNorm(5), nn.Linear(5, 2)]
    return nn.Sequential(layers).init(seed=seed, device=backend)


def loss(model: Any, x: Any, label: Any) -> Any:
    return functional.cross_entropy(model(x.expand_dims(0)), label.expand_dims(0))


# --- axes


@everywhere
@pytest.mark.parametrize(
    "in_axes, out_axes",
    [((0, 1, None), 0), ((0, -2, None), 1), ((None, 1, None), -1), ((0, None, None), 1), ((1, 0, 0), 0)],
    ids=str,
)
def test_axes_are_those_of_jax(backend: Backend, in_axes: Any, out_axes: Any) -> None:
    def fn(x: Any, y: Any, w: Any) -> Any:
        return (x * 2.0).sum(), {"y": y * 3.0, "w": w.T @ w}

    given = (X, Y, np.stack([W, 2 * W, 3 * W]) if in_axes[2] == 0 else W)
    axes = (0, {"y": out_axes, "w": -1})
    found = px.vmap(fn, in_axes, axes)(*on(backend, *given))
    wanted = jax.vmap(fn, in_axes, axes)(*map(jnp.asarray, given))
    close(found[0], wanted[0])
    close(found[1]["y"], wanted[1]["y"])
    close(found[1]["w"], wanted[1]["w"])
    assert found[0].backend is backend


def test_structures_in_and_out() -> None:
    x, y, w = on(NumPy(), X, Y, W)

    def fn(given: Any, scale: float, *, shift: Any) -> Any:
        return [given["x"] * scale + shift, (given["pair"][0], "kept")], px.ones((2,))

    found = px.vmap(fn, in_axes=({"x": 0, "pair": (None, 1)}, None), out_axes=(0, None))(
        {"x": x, "pair": (w, y)}, 2.0, shift=x
    )
    close(found[0][0], 3 * X)
    close(found[0][1][0], np.stack([W] * 4))
    assert found[0][1][1] == "kept" and found[1].shape == (2,)


@on_engines
def test_closures_over_tensors_and_modules(engine: Backend) -> None:
    """Be they on a tape that the arguments are not on."""
    (x,) = on(engine, X)
    model = mlp(engine)
    trained = model.train()
    found = px.vmap(lambda x: trained(x))(x)
    close(found, model(x))
    assert found.backend is Autodiff(engine)
    gradients = px.grad(lambda m: px.vmap(lambda x: m(x).square().sum())(x).sum())(trained)
    wanted = px.grad(lambda m: m(x).square().sum())(trained)
    for id, gradient in wanted.items():
        close(gradients.get(id), gradient)


@everywhere
def test_nested(backend: Backend) -> None:
    x, y = on(backend, X, X[:2])
    table = px.vmap(lambda a: px.vmap(lambda b: (a * b).sum())(y))(x)
    close(table, X @ X[:2].T)
    triple = px.vmap(px.vmap(px.vmap(lambda a: a * 2.0)))(px.stack([x, x]))
    close(triple, np.stack([2 * X, 2 * X]))
    # A batch inside that does not depend on the one outside must not be taken for it, though of one size.
    same = px.vmap(lambda a: px.vmap(lambda b: a.sum() * 10.0 + b)(px.arange(4, device=a.device).float()))(x)
    close(same, 10 * X.sum(1, keepdims=True) + np.arange(4))


# --- gradients


@on_engines
@pytest.mark.parametrize("tape", [False, True])
def test_gradients_of_each_example(engine: Backend, tape: bool) -> None:
    model = mlp(engine).train()
    x, labels = on(Autodiff(engine) if tape else engine, X, LABELS)
    found = px.vmap(px.grad(loss), in_axes=(None, 0, 0))(model, x, labels)
    assert isinstance(found, GradientsParams)
    for number in range(4):
        for id, gradient in px.grad(loss)(model, x[number], labels[number]).items():
            one = found.get(id)
            assert one is not None and one.backend is gradient.backend is engine
            close(one[number], gradient)
    values, _ = px.vmap(px.value_and_grad(loss), in_axes=(None, 0, 0))(model, x, labels)
    close(values, px.vmap(loss, in_axes=(None, 0, 0))(model, x, labels))
    assert values.backend is Autodiff(engine)


@everywhere
def test_gradients_against_jax_and_torch(backend: Backend) -> None:
    def fn(w: Any, x: Any) -> Any:
        return ((x @ w) * 0.5).tanh().sum() if not isinstance(w, jax.Array) else jnp.tanh((x @ w) * 0.5).sum()

    x, w = on(backend, X, W)
    found = px.vmap(px.grad(fn), in_axes=(None, 0))(w, x)
    close(found, jax.vmap(jax.grad(fn), in_axes=(None, 0))(jnp.asarray(W), jnp.asarray(X)))
    close(found, torch.func.vmap(torch.func.grad(fn), in_dims=(None, 0))(torch.tensor(W), torch.tensor(X)).numpy())
    close(px.vmap(px.hessian(lambda x: fn(w, x)))(x), jax.vmap(jax.hessian(lambda x: fn(jnp.asarray(W), x)))(X), 1e-4)
    close(px.vmap(px.jacobian(lambda x: x * x.sum()))(x), jax.vmap(jax.jacobian(lambda x: x * x.sum()))(X), 1e-4)


@everywhere
def test_products_with_jacobians(backend: Backend) -> None:
    x, v = on(backend, X, X[::-1].copy())
    at = x[1]
    for fn in (
        lambda x, v: px.vjp(lambda z: z.exp(), x)[1](v)[0],
        lambda x, v: px.jvp(lambda z: z.exp(), (x,), (v,))[1],
        lambda x, v: px.hvp(lambda z: z.exp().sum(), x, v),
    ):
        close(px.vmap(fn)(x, v), np.exp(X) * X[::-1])
        close(px.vmap(lambda v, fn=fn: fn(at, v))(v), np.exp(X[1]) * X[::-1])
    twice = px.grad(lambda x: px.vmap(px.grad(lambda z: (z * z * z).sum()))(x).square().sum())(x)
    close(twice, 36 * X**3, 1e-4)


@on_engines
def test_hvp_of_a_module(engine: Backend) -> None:
    model = nn.Linear(3, 2).init(seed=1, device=engine).train()
    (x,) = on(engine, X)

    def cubed(x: Any) -> Any:
        return lambda m: (m(x).square() * m(x)).sum()

    direction = px.grad(cubed(x[0]))(model)
    found = px.vmap(lambda m, x: px.hvp(cubed(x), m, direction), in_axes=(None, 0))(model, x)
    for number in range(4):
        for id, wanted in px.hvp(cubed(x[number]), model, direction).items():
            close(found.get(id)[number], wanted, 1e-4)


@on_engines
def test_checkpoint_inside_and_outside(engine: Backend) -> None:
    (x,) = on(engine, X)
    wanted = px.grad(lambda x: x.exp().sin().sum())(x)
    block = px.checkpoint(lambda x: x.exp().sin())
    close(px.vmap(px.grad(lambda x: block(x).sum()))(x), wanted)
    close(px.grad(lambda x: px.vmap(block)(x).sum())(x), wanted)
    close(px.grad(lambda x: px.checkpoint(px.vmap(lambda x: x.exp().sin()))(x).sum())(x), wanted)


@on_engines
def test_native_functions(engine: Backend) -> None:
    (x,) = on(engine, X)
    double = px.lift(lambda a: a * 2.0)
    close(px.vmap(double)(x), 2 * X)
    if engine is not NumPy():
        close(px.vmap(px.grad(lambda x: (double(x) * x).sum()))(x), 4 * X)


@on_engines
def test_custom_gradients(engine: Backend) -> None:
    """The tape inside of the batch, and outside of it: what all examples share gets the sum of theirs."""

    @px.custom_gradient
    def product(x: Any, w: Any) -> Any:
        return x * w, lambda g: (g * w * 10.0, g * x * 10.0)

    x, w = on(engine, X, X[0])

    def total(x: Any, w: Any) -> Any:
        return px.vmap(lambda x, w: product(x, w).square(), in_axes=(0, None))(x, w).sum()

    dx, dw = px.vjp(total, x, w)[1](px.tensor(1.0, device=engine))
    close(dx, 20 * X * X[0] ** 2)
    close(dw, (20 * X * X * X[0]).sum(0))
    close(px.vmap(px.grad(lambda x: product(x, w).square().sum()))(x), 20 * X * X[0] ** 2)


# --- modules


@on_engines
def test_an_ensemble(engine: Backend) -> None:
    models = [mlp(engine, seed) for seed in range(4)]
    ensemble = px.stack_modules(models)
    (x,) = on(engine, X)
    found = px.vmap(lambda m, x: m(x))(ensemble, x)
    close(found, np.stack([model(x[i]).numpy() for i, model in enumerate(models)]))
    assert px.vmap(lambda m, x: m(x), in_axes=(0, None))(ensemble, x).shape == (4, 4, 2)
    trained = ensemble.train()
    (labels,) = on(engine, LABELS)
    found = px.vmap(px.grad(loss))(trained, x, labels)
    together = px.grad(lambda m: px.vmap(loss)(m, x, labels).sum())(trained)
    assert {id: g.shape for id, g in found.items()} == {param.id: param.shape for param in trained.params()}
    for id, gradient in together.items():
        close(found.get(id), gradient)
    halved = px.vmap(lambda m: m.map(lambda path, param: param.map(lambda t: t * 0.5)))(ensemble)
    close(halved.layers[0].weight.val(), 0.5 * ensemble.layers[0].weight.val().numpy())


@on_engines
def test_running_statistics(engine: Backend) -> None:
    """Those of an ensemble are updated; one for all examples cannot be."""
    models: Any = [nn.BatchNorm(3).init(device=engine).train() for _ in range(4)]
    ensemble: Any = px.stack_modules(models)
    (x,) = on(Autodiff(engine), RNG.normal(size=(4, 5, 3)))
    found = px.vmap(lambda m, x: m(x))(ensemble, x)
    for number, model in enumerate(models):
        close(found[number], model(x[number]))
        close(ensemble.running_mean.val()[number], model.running_mean.val())
    with pytest.raises(ModuleError, match=r"escape from phlox\.vmap; return the value, or pass the module"):
        px.vmap(models[0])(x)
    px.vmap(models[0].valid())(x.inner())
    # What does not depend on the example may be set.
    param = px.Param(px.zeros((2,), device=engine))
    px.vmap(lambda x: (param.set(px.ones((2,), device=x.device)), x)[1])(x.inner())
    assert param.val().tolist() == [1.0, 1.0] and param.backend is engine


@on_engines
def test_modes_follow_the_tape_below(engine: Backend) -> None:
    (x,) = on(engine, X)
    dropout = nn.Dropout(0.5)
    close(px.vmap(dropout)(x), X)
    dropped = px.vmap(dropout)(px.Tensor.from_inner(x)).numpy()
    assert (dropped == 0.0).any()


def test_deferred_parameters_are_made_once_for_all() -> None:
    px.random.seed(5)
    model: Any = nn.Linear(3, 2)
    y = px.vmap(model)(px.tensor(X))
    assert model.weight.val().shape == (3, 2) and model.weight.backend is NumPy()
    close(y, X @ model.weight.val().numpy() + model.bias.val().numpy())


# --- randomness


def draws(backend: Backend) -> list[np.ndarray[Any, Any]]:
    px.random.seed(3)
    (x,) = on(backend, np.arange(8.0).reshape(4, 2))
    found = [
        px.vmap(lambda x: px.random.normal((2,), device=x.device))(x),
        px.vmap(lambda x: px.random.uniform((2,), device=backend))(x),
        px.vmap(lambda x: px.random.integers((2,), 0, 99, device=x.device))(x),
        px.vmap(lambda x: px.random.permutation(6, device=x.device))(x),
        px.vmap(lambda x: px.random.truncated_normal((2,), device=x.device))(x),
        px.vmap(lambda x: px.random.bernoulli((5,), x[:1] * 0.1))(x),
        px.vmap(lambda x: px.random.categorical(x, shape=(3,)))(x),
        px.vmap(lambda x: px.random.choice(x, shape=(2,), replace=False))(x),
        px.vmap(nn.Dropout(0.5).train(tape=False))(x + 1.0),
        px.vmap(lambda x: px.vmap(lambda y: px.random.uniform((3,), device=y.device))(x))(x),
        px.vmap(lambda x: x + px.random.uniform((2,), device=x.device), randomness="same")(x),
    ]
    return [*(y.numpy() for y in found), np.asarray(px.random.current().position)]


@pytest.mark.full
def test_draws_are_those_of_one_draw_on_every_backend() -> None:
    wanted = draws(NumPy())
    assert int(wanted[-1]) == 11, "each took one position"
    px.random.seed(3)
    np.testing.assert_array_equal(wanted[0], px.random.normal((4, 2)).numpy())
    np.testing.assert_array_equal(wanted[1], px.random.uniform((4, 2)).numpy())
    np.testing.assert_array_equal(wanted[2], px.random.integers((4, 2), 0, 99).numpy())
    assert all(sorted(row) == list(range(6)) for row in wanted[3].tolist()) and len(np.unique(wanted[3], axis=0)) > 1
    assert wanted[9].shape == (4, 2, 3) and len(np.unique(wanted[9])) == 24
    shared = wanted[10] - np.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(shared, shared[:1].repeat(4, 0), atol=1e-6)
    for backend in BACKENDS[1:]:
        for found, right in zip(draws(backend), wanted, strict=True):
            np.testing.assert_array_equal(found, right)


def test_draws_of_a_compiled_program() -> None:
    (x,) = on(Jax(), X)

    def step(x: Any) -> Any:
        return px.vmap(lambda x: x + px.random.normal((3,), device=x.device))(x)

    px.random.seed(7)
    eager = [step(x).numpy(), step(x).numpy()]
    compiled = px.compile(step)
    px.random.seed(7)
    np.testing.assert_array_equal([compiled(x).numpy(), compiled(x).numpy()], eager)


# --- under a compiler


def test_compiled() -> None:
    model = mlp(Jax()).train()
    x, labels = on(Jax(), X, LABELS)
    each = px.vmap(px.grad(loss), in_axes=(None, 0, 0))
    found = px.compile(lambda m, x, y: each(m, x, y))(model, x, labels)
    for id, gradient in each(model, x, labels).items():
        close(found.get(id), gradient)
    inner = px.compile(lambda x: x * x)
    close(px.vmap(lambda x: inner(x))(x), X * X)
    close(jax.jit(lambda m, x: px.vmap(m)(x))(model.valid(), x), model.valid()(x))


# --- bad input


def tensors() -> Any:
    return on(NumPy(), X, X[:3])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x, y: px.vmap(lambda a, b: a)(x, y), ShapeError, "4 in argument `a` and of size 3 in argument `b`"),
        (lambda x, y: px.vmap(cast(Any, x)), KindError, "takes a function, got Tensor"),
        (lambda x, y: px.vmap(lambda a, b: a, in_axes=None)(x, y), ShapeError, "no argument of .* has a batch"),
        (lambda x, y: px.vmap(lambda a: a)(3.0), ShapeError, "no argument of .* has a batch"),
        (lambda x, y: px.vmap(lambda a: a, in_axes=2)(x), ShapeError, r"argument `a` of shape \(4, 3\) has no axis 2"),
        (lambda x, y: px.vmap(lambda a: a)(x.sum()), ShapeError, r"argument `a` of shape \(\) has no axis 0"),
        (lambda x, y: px.vmap(lambda a, b: a, in_axes=(0,))(x, y), ShapeError, "called with 2 positional arguments"),
        (lambda x, y: px.vmap(lambda a: a, in_axes=({"b": 0},))({"a": x}), ShapeError, r"a dict with the keys \['a'\]"),
        (lambda x, y: px.vmap(lambda a: a, in_axes=((0, 0),))(x), ShapeError, "which is a tensor of shape"),
        (lambda x, y: px.vmap(lambda a: a, in_axes="ab")(x), KindError, "in_axes for argument `a` must be an integer"),
        (lambda x, y: px.vmap(lambda a: a, out_axes=3)(x), ShapeError, r"result of shape \(3,\) can have no axis 3"),
        (lambda x, y: px.vmap(lambda a: a, out_axes=None)(x), ShapeError, "but out_axes says None"),
        (lambda x, y: px.vmap(lambda a: a, out_axes=(0, 0))(x), ShapeError, r"out_axes is \(0, 0\) for the result"),
        (lambda x, y: px.vmap(lambda a: a, randomness=cast(Any, "none"))(x), RangeError, "randomness is 'different'"),
        (lambda x, y: px.vmap(lambda a: a.sum().item())(x), UnsupportedError, "item: .* stands for 4 examples"),
        (lambda x, y: px.vmap(lambda a: a.numpy())(x), UnsupportedError, "numpy: .* has no single value"),
        (lambda x, y: px.vmap(lambda a: a if a.sum() > 0 else -a)(x), UnsupportedError, "phlox.where for a choice"),
        (lambda x, y: px.vmap(lambda a: a[a > 0])(x), UnsupportedError, "the shape of the result depends"),
        (lambda x, y: px.vmap(lambda a: a.to_device(NumPy(float="f64")))(x), UnsupportedError, "leave the batch"),
        (
            lambda x, y: px.vmap(lambda a: a.require_grad().sum().backward())(px.Tensor.from_inner(x)),
            AutodiffError,
            r"use phlox.grad\(fn\)",
        ),
        (
            lambda x, y: px.vmap(lambda a: px.Tensor.from_inner(a).require_grad() * 2.0)(x),
            AutodiffError,
            r"a tape inside the batch, which ends with the call; return it with \.inner\(\)",
        ),
        (
            lambda x, y: px.vmap(lambda a, b: a)(x, px.tensor(X, device=NumPy(float="f64"))),
            BackendError,
            "argument `b` is on NumPy",
        ),
        (lambda x, y: px.vmap(lambda a: a.take(px.tensor([7])))(x), IndexError, "index 7 is out of range"),
        (lambda x, y: px.vmap(lambda a, b: a @ b)(x, x[:, :2]), ShapeError, r"\(3,\) and \(2,\)|matmul"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call(*tensors())
    assert "\n" not in str(caught.value)


def test_an_optimizer_steps_outside() -> None:
    ensemble: Any = px.stack_modules([nn.Linear(3, 2) for _ in range(4)]).train()
    optimizer = optim.SgdConfig().init()

    def step(model: Any, x: Any) -> Any:
        return optimizer.step(0.1, model, px.grad(lambda m: m(x).sum())(model))

    with pytest.raises(OptimizerError, match=r"weight: an optimizer steps outside of phlox\.vmap"):
        px.vmap(step)(ensemble, px.tensor(X))
    gradients = px.vmap(px.grad(lambda m, x: m(x).sum()))(ensemble, px.tensor(X))
    close(optimizer.step(0.1, ensemble, gradients).bias.val(), ensemble.bias.val().numpy() - 0.1)


def test_what_escapes_from_a_vmap() -> None:
    kept: list[Any] = []
    px.vmap(lambda x: (kept.append(x), x)[1])(px.tensor(X))
    assert repr(kept[0]) == "Tensor(Float (3,) on batched(numpy):cpu, one of 4 examples)"
    with pytest.raises(UnsupportedError, match="stands for 4 examples"):
        kept[0].tolist()
    param = px.Param(px.zeros((3,)))
    with pytest.raises(ModuleError, match="would escape from phlox.vmap"):
        px.vmap(lambda x: param.set(x))(px.tensor(X))
    assert param.val().tolist() == [0.0] * 3
