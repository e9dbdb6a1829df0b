"""Layers of Equinox: modes, keys and states."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox.errors import ModuleError
from phlox.interop import equinox

X = np.random.default_rng(0).normal(loc=1.0, size=(6, 4)).astype(np.float32)


def rows(layer: Any, x: Any, state: Any) -> Any:
    return jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def test_statistics_in_a_state() -> None:
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, axis_name="batch", mode="batch", momentum=0.5)
    model = equinox.wrap(layer, state, call=rows)
    assert {path for path, param in model.named_params() if param.trained} == {"weight", "bias"}
    x = px.tensor(X, device="jax")
    for run in (lambda model, x: model(x), px.compile(lambda model, x: model(x))):
        trained, own = model.train(), state
        for _ in range(2):
            found = run(trained, x)
            expected, own = rows(layer, X, own)
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        expected, _ = rows(eqx.nn.inference_mode(layer), X, own)
        np.testing.assert_allclose(trained.valid()(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ModuleError, match=r"state is an eqx\.nn\.State, of eqx\.nn\.make_with_state; got dict"):
        equinox.wrap(layer, {})


def test_dropout_in_both_modes() -> None:
    layer, key = eqx.nn.Dropout(0.5), jax.random.key(3)
    model, x = equinox.wrap(layer), px.tensor(X, device="jax")
    assert model.params() == []
    np.testing.assert_array_equal(model.valid()(x).numpy(), X)
    model.training = True
    np.testing.assert_array_equal(model(x, key=key).numpy(), layer(jnp.asarray(X), key=key))
    with pytest.raises(RuntimeError, match="requires a key"):
        model(x)


def test_integers_keys_and_numpys_arrays_are_kept_but_not_trained() -> None:
    class Odd(eqx.Module):
        table: np.ndarray[Any, Any]
        ids: jax.Array
        key: jax.Array
        scale: jax.Array
        layers: list[eqx.nn.Linear]
        power: float = 2.0

        def __call__(self, x: Any) -> Any:
            noise = jax.random.normal(self.key, x.shape)
            return jax.vmap(self.layers[0])(x * self.scale + noise + self.table[self.ids]) ** self.power

    def make() -> Odd:
        linear = eqx.nn.Linear(4, 2, key=jax.random.key(0))
        return Odd(
            np.arange(3.0, dtype=np.float32),
            jnp.array([0, 2, 1, 0], jnp.uint32),
            jax.random.key(5),
            jnp.ones(4),
            [linear],
        )

    model = equinox.wrap(make())
    trained = {path: param.trained for path, param in model.named_params()}
    assert trained == {
        "table": True, "ids": False, "key": False, "scale": True, "layers.0.weight": True, "layers.0.bias": True,
    }  # fmt: skip
    np.testing.assert_allclose(model(px.tensor(X, device="jax")).numpy(), make()(jnp.asarray(X)), rtol=1e-5)
    assert jax.tree.structure(equinox.wrap(make())) == jax.tree.structure(model)
    other = eqx.tree_at(lambda layer: layer.power, make(), 3.0)
    assert jax.tree.structure(equinox.wrap(other)) != jax.tree.structure(model)
    with pytest.raises(ModuleError, match="has no __call__; give call="):
        equinox.wrap(eqx.Module())
