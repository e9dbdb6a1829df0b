"""Layers of Flax NNX: modes, statistics, random streams, and other variables."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import phlox as px
from phlox.backend import Jax
from phlox.errors import ModuleError
from phlox.interop import flax

X = np.random.default_rng(0).normal(loc=1.0, size=(6, 4)).astype(np.float32)


def norm() -> Any:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(4, 3, rngs=rngs), nnx.BatchNorm(3, momentum=0.5, rngs=rngs))


def statistics(model: px.Module) -> list[np.ndarray[Any, Any]]:
    return [param.val().numpy() for path, param in model.named_params() if path.endswith(("mean", "var"))]


@pytest.mark.parametrize("kind", ["eager", "px.compile", "jax.jit", "half"])
def test_statistics_of_a_batch_norm(kind: str) -> None:
    own, wrapped = norm(), flax.wrap(norm())
    assert [path for path, param in wrapped.named_params() if not param.trained] == ["layers.1.mean", "layers.1.var"]
    own.train()
    expected = [own(X), own(X)]
    own.eval()

    def twice(model: Any, x: Any) -> Any:
        first, second = model(x), model(x)
        return model, (first, second)

    device = Jax(float="bf16") if kind == "half" else Jax()
    run = {"px.compile": px.compile(twice), "jax.jit": jax.jit(twice)}.get(kind, twice)
    model, found = run(wrapped.to_device(device).train(tape=kind != "jax.jit"), px.tensor(X, device=device))
    rounding: dict[str, Any] = {"rtol": 0.02, "atol": 0.02} if kind == "half" else {"rtol": 1e-5, "atol": 1e-6}
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.to_full_precision().numpy(), its, **rounding)
    for mine, its in zip(statistics(model), (own.layers[1].mean[...], own.layers[1].var[...]), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, its, **rounding)
    before = [param.val().primitive for param in model.valid().params()]
    valid = model.valid()
    np.testing.assert_allclose(valid(px.tensor(X, device=device)).to_full_precision().numpy(), own(X), **rounding)
    assert all(param.val().primitive is array for param, array in zip(valid.params(), before, strict=True))


def test_values_from_inside_of_a_transformation_do_not_escape() -> None:
    model = flax.wrap(norm()).train(tape=False)
    with pytest.raises(ModuleError, match=r"`layers\.1\.mean`.*created outside of a function that JAX transforms"):
        jax.vmap(model)(jnp.stack([X, X]))


def test_random_streams_are_kept_and_never_shared() -> None:
    rngs = nnx.Rngs(0)

    class Noise(nnx.Module):
        def __init__(self) -> None:
            self.rngs = rngs  # one stream for all

        def __call__(self, x: Any) -> Any:
            return x + self.rngs.normal(x.shape)

    layer, x = Noise(), px.tensor(X, device="jax")
    own = copy.deepcopy(layer)
    first, second = flax.wrap(layer), flax.wrap(Noise())
    assert [path for path, _ in first.named_params()] == ["rngs.default.count", "rngs.default.key"]
    assert not any(param.trainable for param in first.params())
    drawn = [first(x).numpy() for _ in range(3)]
    np.testing.assert_array_equal(drawn, [own(X) for _ in range(3)])
    others = [second(x).numpy(), np.asarray(layer(jnp.asarray(X)))]
    assert len({one.tobytes() for one in (*drawn, *others)}) == 5
    restored = flax.wrap(Noise())
    restored.load_record(first.into_record())
    np.testing.assert_array_equal(restored(x).numpy(), own(X))


def test_dropout_in_both_modes_and_its_gradient() -> None:
    layer = nnx.Dropout(0.5, rngs=nnx.Rngs(1))
    own, model = copy.deepcopy(layer), flax.wrap(layer)
    x = px.tensor(X, device=model.train().params()[0].device).require_grad()
    np.testing.assert_array_equal(model.valid()(px.tensor(X, device="jax")).numpy(), X)
    y = model.train()(x)
    np.testing.assert_array_equal(y.numpy(), own(X))
    found = x.grad(y.sum().backward())
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), np.where(y.numpy() != 0, 2.0, 0.0))


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_other_variables_and_results() -> None:
    class Counting(nnx.Module):
        def __init__(self) -> None:
            self.calls, self.scale = nnx.Variable(jnp.zeros((), jnp.int32)), nnx.Param(jnp.ones(4))
            self.blocks = nnx.List([nnx.Param(jnp.full(4, 2.0)), nnx.Variable({"shift": jnp.ones(4)})])

        def __call__(self, x: Any, *, twice: bool = False) -> Any:
            self.calls[...] += 1
            self.sow(nnx.Intermediate, "seen", x)
            y = x * self.scale[...] * self.blocks[0][...] + self.blocks[1].get_value()["shift"]
            return {"y": y * (2 if twice else 1), "largest": y.argmax(-1)}, (self.calls[...],)

    model, x = flax.wrap(Counting()), px.tensor(X, device="jax")
    trained = {path: param.trained for path, param in model.named_params()}
    assert trained == {"blocks.0": True, "blocks.1.shift": False, "calls": False, "scale": True}
    (found, (calls,)), _ = model(x), model(x, twice=True)
    np.testing.assert_allclose(found["y"].numpy(), X * 2 + 1, rtol=1e-6)
    assert found["largest"].kind is px.Int and calls.item() == 1 and model.calls.val().item() == 2

    class Late(nnx.Module):
        def __call__(self, x: Any) -> Any:
            self.late = nnx.Variable(x)
            return x

    with pytest.raises(ModuleError, match="call of a Late makes or drops variables; call the layer once"):
        flax.wrap(Late())(x)


def test_another_method_and_embeddings() -> None:
    layer = nnx.Embed(5, 4, rngs=nnx.Rngs(0))
    ids = np.array([[0, 3], [4, 1]])
    np.testing.assert_array_equal(flax.wrap(layer)(px.tensor(ids, device="jax")).numpy(), layer(jnp.asarray(ids)))
    attend = flax.wrap(layer, call=lambda layer, x: layer.attend(x))
    np.testing.assert_allclose(attend(px.tensor(X, device="jax")).numpy(), layer.attend(jnp.asarray(X)), rtol=1e-6)
    with pytest.raises(ModuleError, match="has no __call__; give call="):
        flax.wrap(nnx.Module())
