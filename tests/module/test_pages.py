"""Modules, parameters and gradients in notebooks: what is shown, and that looking changes nothing."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.models import GptConfig
from tests.markup import Markup, read

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch()), Torch(float="bf16")]


def net(backend: Backend | None = None) -> nn.Sequential:
    return nn.Sequential([nn.Linear(4, 8, device=backend), nn.Gelu(), nn.BatchNorm(8, device=backend), nn.Dropout(0.5)])


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_a_module_is_a_tree(backend: Backend) -> None:
    model = net(backend)
    found = read(model)
    assert all(param.is_deferred for param in model.params()), "looking makes nothing"
    assert found.texts[0] == "Sequential" and "72 parameters" in found.text and "56 trained" in found.text
    element = backend.float_element
    assert ["weight", "(4, 8)", element, "32", "deferred"] in found.rows
    assert ["running_mean", "(8,)", "f32", "8", "deferred, not trained"] in found.rows, "which is at full precision"
    assert {"layers.0", "layers.1", "layers.2", "layers.3"} <= set(found.texts) and "rate=0.5" in found.text
    made = read(model.init(0))
    assert ["weight", "(4, 8)", element, "32"] in made.rows and str(backend.device()) in made.text


def test_modes_and_what_is_not_trained() -> None:
    model = net().init(0)
    assert "training" in read(model.train(tape=False)).badges
    assert "not trained" in read(model.freeze("layers.0.**")).badges
    assert "in part trained" in read(model.freeze("layers.0.bias")).badges
    mixed = model.train(tape=False)
    mixed.layers[3].training = False
    found = read(mixed)
    assert {"inference", "training"} <= set(found.badges) and found.badges.count("training") == 1


class Tied(px.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.again = self.first
        self.scales = [px.Param(px.ones((2,))), px.Param(px.zeros((2,)))]
        self.table = {"<script>\u202e": nn.Linear(1, 1)}
        self.constant = px.ones((500, 500))
        self.function = px.functional.relu


def test_ties_containers_and_names_of_strangers() -> None:
    found = read(Tied())
    assert "tied to first.weight" in found.text and "the same module as first" in found.text
    assert ["scales.0", "(2,)", "f32", "2"] in found.rows
    assert "table.<script>\\u202e" in found.texts
    assert "constant=Tensor Float f32 (500, 500)" in found.text and "function=relu" in found.text
    assert "21 parameters" in found.text, "9 + 3 + 3 + 4 + 2"


def test_alike_neighbors_are_shown_once() -> None:
    model = GptConfig(vocabulary=32, context=16, n_layers=40, d_model=16, n_heads=2).init()
    found = read(model)
    assert "blocks.1 to blocks.39: 39 more like it" in found.text and len(model._repr_html_()) < 20_000
    frozen = read(model.freeze("blocks.7.**"))
    assert "blocks.7" in frozen.texts and "blocks.1 to blocks.6: 6 more like it" in frozen.text
    assert "blocks.9 to blocks.39: 31 more like it" in frozen.text


def test_many_different_modules_are_bounded() -> None:
    found = read(nn.Sequential([nn.Linear(1, 1 + n) for n in range(1000)]))
    assert (
        "and 600 more modules" in found.text and f"{sum(2 * (1 + n) for n in range(1000)):,} parameters" in found.text
    )


def test_a_module_within_itself() -> None:
    model = net()
    model.layers[1].owner = model
    assert "the same module as the root" in read(model).text


@pytest.mark.parametrize("transform", [jax.jit, px.compile, px.vmap, px.grad], ids=["jit", "compile", "vmap", "grad"])
def test_inside_of_transformations(transform: Any) -> None:
    model = nn.Linear(3, 2).init(0, Jax())
    model = model.train() if transform is px.grad else model
    found: list[Any] = []

    def look(model: Any, x: Any) -> Any:
        found.extend([model._repr_html_(), model.weight._repr_html_()])
        return model(x).sum()

    axes = {"in_axes": (None, 0)} if transform is px.vmap else {}
    transform(look, **axes)(model, px.ones((4, 3), device=Jax()))
    assert all(not Markup(text).is_fallback and "(3, 2)" in text for text in found)
    assert ("traced" in Markup(found[0]).text) == (transform in (jax.jit, px.compile))


def test_donated_and_foreign_parameters() -> None:
    model = nn.Linear(3, 2).init(0, Jax())
    step = px.compile(lambda model: model.map(lambda path, param: param.map(lambda t: t * 2.0)), donate=("model",))
    step(model)
    assert "donated and used up" in read(model).text and "donated and used up" in read(model.weight).badges
    odd = jax.tree.map(lambda leaf: "<b>", nn.Linear(3, 2).init(0, Jax()))
    assert "holding a str" in read(odd).text
    assert "holding a str" in read(odd.weight).text
    specs = jax.eval_shape(lambda m: m, nn.Linear(3, 2).init(0, Jax()))
    assert "abstract" in read(specs).text and "(3, 2)" in read(specs.weight).text


def test_parameters() -> None:
    deferred = nn.Linear(3, 2).weight
    found = read(deferred)
    assert deferred.is_deferred and "deferred" in found.badges and "(3, 2)" in found.text
    assert "to be created by" in found.text
    found = read(px.Param(px.ones((3, 2)), trained=False))
    assert "not trained" in found.badges and found.texts[0] == "Param" and found.rows[1] == ["0", "1", "1"]
    assert "trained" in read(px.Param(px.ones((2,)))).badges


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Torch(float="bf16")], ids=repr)
def test_gradients(backend: Backend) -> None:
    model = nn.Linear(4, 1).init(0, Autodiff(backend)).train()
    x = px.ones((1, 4), device=Autodiff(backend))
    grads = optim.GradientsParams.from_grads((3.0 * model(x)).sum().backward(), model)
    found = read(grads)
    assert "of 2 parameters" in found.text and f"norm {3 * 5**0.5:.4g}" in found.text
    assert [row[1:] for row in found.rows[1:]] == [
        [shape, f"Float {backend.float_element}", norm, "3"] for shape, norm in (("(4, 1)", "6"), ("(1,)", "3"))
    ]
    assert "of 0 parameters" in read(optim.GradientsParams({})).text
    bad = grads.map(lambda grad: grad / 0.0)
    assert "norm inf" in read(bad).text


def test_gradients_in_a_program() -> None:
    model = nn.Linear(4, 1).init(0, Jax()).train()
    found: list[str] = []

    def look(model: Any, x: Any) -> Any:
        grads = px.grad(lambda m: m(x).sum())(model)
        found.append(grads._repr_html_())
        return grads

    px.compile(look)(model, px.ones((1, 4), device=Jax()))
    shown = Markup(found[0])
    assert not shown.is_fallback and shown.rows[0] == ["id of the parameter", "shape", "type"]
