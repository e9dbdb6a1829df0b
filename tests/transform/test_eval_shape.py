"""`eval_shape`: shapes and kinds without values, on the engines that can."""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, Torch
from phlox.errors import BackendError, CompileError, KindError, ModuleError, UnsupportedError
from tests.transform.steps import Norm

BACKENDS: list[Backend] = [Jax(), Torch(), Autodiff(Jax()), Autodiff(Torch())]
TAPES = BACKENDS[2:]


def network(device: Any) -> nn.Sequential:
    return nn.Sequential([nn.Linear(8, 16, device=device), nn.Dropout(0.5), nn.Linear(16, 2, device=device)])


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_shapes_and_kinds_of_a_structure(backend: Backend) -> None:
    def fn(x: Any, *, table: Any, n: int) -> Any:
        y = x.matmul(table["w"]).tanh()
        return {"y": (y, y > 0.0), "best": [y.argmax(-1), y.sum().float()], "n": n, "none": None}

    x, w = px.TensorSpec((3, 4), device=backend), px.ones((4, 5), device=backend)
    found = px.eval_shape(fn, x, table={"w": w}, n=3)
    device = backend.device()
    assert found == {
        "y": (px.TensorSpec((3, 5), device=device), px.TensorSpec((3, 5), px.Bool, device)),
        "best": [px.TensorSpec((3,), px.Int, device), px.TensorSpec((), device=device)],
        "n": 3,
        "none": None,
    }
    spec = found["best"][0]
    assert (spec.ndim, spec.size, spec.backend) == (1, 3, backend)
    assert repr(spec) == f"TensorSpec((3,), Int, {device})"


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_deferred_parameters_are_not_made_and_nothing_changes(backend: Backend) -> None:
    px.random.seed(0)
    model = network(backend)
    before = px.random.state()
    huge = nn.Linear(10**6, 10**6, device=backend)  # four terabytes, if it were made
    assert px.eval_shape(huge, px.TensorSpec((2, 10**6), device=backend)).shape == (2, 10**6)
    assert px.eval_shape(model, px.TensorSpec((3, 8), device=backend)).shape == (3, 2)
    assert not any(param.is_initialized for param in (*model.params(), *huge.params()))
    after = px.random.state()
    assert after["position"] == before["position"] + 2  # of the declaration of `huge`
    norm = Norm(4, backend.device())
    before = norm.mean.val()
    px.eval_shape(norm, px.TensorSpec((3, 4), device=backend))
    assert norm.mean.val() is before


@pytest.mark.parametrize("backend", TAPES, ids=repr)
def test_a_step(backend: Backend) -> None:
    model, optimizer = network(backend), optim.AdamConfig().init()

    def step(model: Any, optimizer: Any, lr: float, x: Any) -> Any:
        loss, grads = px.value_and_grad(lambda m: m(x).square().mean())(model)
        return optimizer.step(lr, model, grads), loss, grads

    x = px.TensorSpec((3, 8), device=backend)
    after, loss, grads = px.eval_shape(step, model, optimizer, 1e-3, x)
    assert loss == px.TensorSpec((), device=backend)
    assert type(after) is nn.Sequential and not optimizer.states
    for old, new in zip(model.params(), after.params(), strict=True):
        assert new.shape == old.shape and new.id == old.id and "abstract" in repr(new)
        gradient = grads.get(old.id)
        assert gradient.shape == old.shape and gradient.backend is backend.inner
    with pytest.raises(ModuleError, match="abstract"):
        after.layers[0].weight.val()
    # What came out goes in again; and so does an optimizer that has states.
    assert px.eval_shape(step, after, optimizer, 1e-3, x)[1] == loss
    trained, _, _ = step(model, optimizer, 1e-3, px.ones((3, 8), device=backend))
    states = dict(optimizer.states)
    assert px.eval_shape(step, trained, optimizer, 1e-3, x)[1] == loss
    assert all(optimizer.states[id] is state for id, state in states.items())


def test_methods_loops_and_transformations() -> None:
    backend = Autodiff(Jax())
    x = px.TensorSpec((5, 8), device=backend)
    assert px.eval_shape(network(backend).__call__, x).shape == (5, 2)
    assert px.eval_shape(px.compile(lambda x: x.sum(0)), x).shape == (8,)
    assert px.eval_shape(px.grad(lambda x: px.checkpoint(lambda y: y.exp())(x).sum()), x).shape == (5, 8)
    last, ys = px.eval_shape(lambda x: px.scan(lambda c, r: (c + r, r.sum()), x[0], x), x)
    assert last.shape == (8,) and ys.shape == (5,)


def test_bad_input() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(UnsupportedError, match=r"NumPy\(\) computes at once.*to_device\('jax'\)"):
        px.eval_shape(model, px.TensorSpec((1, 2)))
    assert px.eval_shape(model.to_device("jax"), px.TensorSpec((1, 2), device="jax")).shape == (1, 3)
    assert not any(param.is_initialized for param in model.params())
    with pytest.raises(BackendError, match=r"different backends, NumPy\(\) and Jax\(\)"):
        px.eval_shape(model, px.TensorSpec((1, 2), device="jax"))
    x = px.TensorSpec((3,), device="jax")
    for backend in (Jax(), Torch()):
        with pytest.raises(CompileError, match="reads the value of a tensor"):
            px.eval_shape(lambda x: x * x.sum().item(), px.TensorSpec((3,), device=backend))
        with pytest.raises(ValueError, match="shape"):
            px.eval_shape(lambda x: x + x[:2], px.TensorSpec((3,), device=backend))
    assert isinstance(px.eval_shape(lambda o, x: o, optim.SgdConfig().init(), x), optim.Optimizer)
    with pytest.raises(ValueError, match="TensorSpec"):
        px.TensorSpec((2, -1))
    with pytest.raises(KindError, match="phlox.Float, phlox.Int or phlox.Bool, got 'float'"):
        px.TensorSpec((2,), "float")  # pyright: ignore[reportArgumentType]
