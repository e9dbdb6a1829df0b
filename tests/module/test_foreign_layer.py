"""Layers and arrays of other libraries in the fields of a module: refused with their path and the line to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import PartitionSpec

import phlox as px
from phlox import nn
from phlox.errors import ModuleError


def nnx_linear() -> nnx.Linear:
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def eqx_linear() -> eqx.nn.Linear:
    return eqx.nn.Linear(2, 2, key=jax.random.key(0))


def torch_parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(2))


KINDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "nnx layer": (nnx_linear, "a layer of Flax NNX (Linear)", "interop.flax.wrap(layer)"),
    "nnx variable": (lambda: nnx.Param(jnp.ones(2)), "a variable of Flax NNX (Param)", "phlox.Param(phlox.tensor(var"),
    "nnx stream": (lambda: nnx.Rngs(0), "a random stream of Flax NNX (Rngs)", "phlox.random"),
    "linen layer": (lambda: flax.linen.Dense(2), "a layer of Flax Linen", "flax.wrap(flax.nnx.bridge.ToNNX(layer"),
    "eqx layer": (eqx_linear, "a layer of Equinox (Linear)", "equinox.wrap(layer)"),
    "eqx mode": (lambda: eqx.nn.Dropout(), "a layer of Equinox (Dropout)", "equinox.wrap(layer)"),
    "torch layer": (lambda: torch.nn.Linear(2, 2), "a layer of PyTorch (Linear)", "interop.pytorch.wrap(layer)"),
    "torch parameter": (torch_parameter, "an array of torch (Parameter)", "phlox.Buffer(array)"),
    "torch tensor": (lambda: torch.ones(2), "an array of torch (Tensor)", "phlox.Param(phlox.tensor(array))"),
    "jax array": (lambda: jnp.ones(2), "an array of jax (ArrayImpl)", "phlox.Buffer(array)"),
    "jax key": (lambda: jax.random.key(0), "an array of jax (PRNGKeyArray)", "phlox.Buffer(array)"),
}  # fmt: skip
PLACES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "field": (lambda it: it, "it"),
    "list": (lambda it: [nn.Relu(), it], "it.1"),
    "dict": (lambda it: {"a": (it,)}, "it.a.0"),
    "module": (lambda it: Holder([it]), "it.it.0"),
}


class Holder(px.Module):
    def __init__(self, it: Any) -> None:
        self.it = it
        self.layer = nn.Linear(2, 2, device="jax")

    def __call__(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_when_the_module_is_walked(kind: str, place: str) -> None:
    make, what, remedy = KINDS[kind]
    hold, path = PLACES[place]
    model = Holder(hold(make()))
    for walk in (lambda: list(model.named_params()), lambda: jax.tree.leaves(model), lambda: model.train()):
        with pytest.raises(ModuleError) as caught:
            walk()
        message = str(caught.value)
        assert message.startswith(f"`{path}` is {what}") and remedy in message and "phlox.reference(...)" in message


@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_referred_to(kind: str) -> None:
    if kind in ("nnx stream", "nnx variable"):
        return
    value = KINDS[kind][0]()
    model = Holder(px.reference(value))
    assert len(model.params()) == 2 and model.valid().it.model is value
    assert jax.tree.map(lambda x: x, model).it.model is value


def test_a_referred_layer_is_no_constant_of_a_program() -> None:
    class Net(Holder):
        def __call__(self, x: Any) -> Any:
            return self.layer(px.tensor(self.it(x.primitive), device="jax"))

    model = Net(px.reference(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    x = px.ones((3, 2), device="jax")
    assert model(x).shape == (3, 2)
    for run in (jax.jit(lambda model, x: model(x)), px.compile(lambda model, x: model(x))):
        with pytest.raises(ModuleError, match="parameters of a Linear that is only referred to would become constants"):
            run(model, x)


def test_settings_and_what_trees_put_into_fields_are_no_layers() -> None:
    class Solver(eqx.Module):
        order: int = 2

    settings = {"numpy": np.ones(2), "solver": Solver(), "class": torch.nn.Linear, "dtype": jnp.float32, "f": jnp.tanh}
    model = Holder([*settings.values(), torch.float32, torch.nn.functional.relu])
    assert len(model.params()) == 2
    axes = jax.tree.map(lambda leaf: PartitionSpec("data"), Holder(None))
    assert len(jax.tree.leaves(axes)) == 2
    outer = Holder(nn.Linear(2, 2, device="jax"))
    for leaf in (jnp.ones(2), torch.ones(2), torch.nn.Linear(2, 2), nnx.Linear(2, 2, rngs=nnx.Rngs(0))):
        replaced = jax.tree.map(lambda part: leaf, outer, is_leaf=lambda part: isinstance(part, nn.Linear))  # noqa: B023
        assert len(jax.tree.structure(replaced).children()) == 2
        assert replaced.it is leaf and replaced.layer is leaf
