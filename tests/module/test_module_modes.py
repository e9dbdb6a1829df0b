"""Training and inference: the four views of a module, side by side, and one layer by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError

INNER: list[Backend] = [NumPy(), Jax(), Torch()]


class Net(px.Module):
    def __init__(self, device: Any = None) -> None:
        self.linear = nn.Linear(3, 4, device=device)
        self.drop = [nn.Dropout(0.5), {"inner": nn.Dropout(0.5)}]
        self.shared = self.drop[0]

    def __call__(self, x: px.Tensor) -> px.Tensor:
        x = self.linear(x)
        return self.drop[1]["inner"](self.drop[0](x))


def dropped(model: Any, x: px.Tensor) -> bool:
    """Are there zeros in the output, which without dropout has none?"""
    return bool((model(x).numpy() == 0).any())


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_four_views_side_by_side(inner: Backend) -> None:
    model = Net(inner.device()).init(0)
    x = px.random.normal((64, 3), device=inner.device())
    taped = px.Tensor.from_inner(x)
    first = nn.Sequential([nn.Dropout(0.5)])  # which has no parameters whose tape it could see
    for start in (model, model.train(), model.valid(tape=True), model.train(tape=False)):
        views = start.train(), start.valid(), start.train(tape=False), start.valid(tape=True)
        for view, tape, training in zip(views, (True, False, False, True), (True, False, True, False), strict=True):
            assert view.linear.weight.backend is (Autodiff(inner) if tape else inner)
            assert dropped(view, x) == dropped(view, taped) == training
            assert [p.id for p in view.params()] == [p.id for p in model.params()]
            assert view.shared is view.drop[0]  # shared modules stay shared
            for mine, other in zip(view.params(), model.params(), strict=True):
                assert mine.leaf is other.val().primitive  # no array is made
            assert view.drop[0].training is view.drop[1]["inner"].training is training
    for value in (
        px.ones((64, 3), device=inner.device()),
        px.Tensor.from_inner(px.ones((64, 3), device=inner.device())),
    ):
        views = first.train(), first.valid(), first.train(tape=False), first.valid(tape=True)
        assert [dropped(view, value) for view in views] == [True, False, True, False]
        assert dropped(first, value) == value.backend.differentiates  # by the input, where no view was asked for


def test_gradients_in_evaluation() -> None:
    model = Net().init(0)
    x = px.random.normal((8, 3))
    view = model.valid(tape=True)
    loss = view(px.Tensor.from_inner(x)).square().sum()
    assert loss.item() == pytest.approx(model.valid()(x).square().sum().item(), rel=1e-6)
    assert len(px.GradientsParams.from_grads(loss.backward(), view)) == 2


def test_valid_takes_every_tape_off() -> None:
    twice = nn.Linear(2, 2, device=Autodiff(Autodiff(NumPy())).device()).init(0)
    assert twice.valid().weight.backend is NumPy()
    assert twice.train().weight.backend is Autodiff(Autodiff(NumPy()))
    assert twice.train(tape=False).weight.backend is NumPy()


def test_one_layer_by_hand() -> None:
    model = Net().init(0).train()
    model.drop[0].training = False
    model.drop[1]["inner"].training = False
    x = px.Tensor.from_inner(px.ones((64, 3)))
    assert not dropped(model, x) and model.is_training(x)
    assert not model.map(lambda path, p: p).drop[0].is_training(x)  # it is a field like another
    model.drop[0].training = None
    assert dropped(model, x) and "training" not in vars(model.drop[0])
    assert dropped(model.valid(tape=True).train(), x)  # views set it everywhere
    with pytest.raises(ModuleError, match="training is True, False or None.*'yes'"):
        model.training = "yes"  # type: ignore[assignment]


def test_views_are_trees_of_one_structure_and_programs_of_their_own() -> None:
    import jax

    model, x = Net(Jax().device()).init(0), px.ones((64, 3), device=Jax())
    views = [model, model.valid(), model.train(tape=False), model.train(), model.freeze(), model.freeze("**.bias")]
    structures = {jax.tree.structure(view) for view in views}
    assert len(structures) == 1
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *views)  # as an average of weights is made
    np.testing.assert_allclose(mean.linear.weight.val().numpy(), model.linear.weight.val().numpy(), rtol=1e-6)
    twin = jax.tree.map(lambda x: x, model.train(tape=False))
    assert twin._phlox_pending is not None  # built when first used, though a field has the name of a property
    assert twin.training is True and twin.drop[0].training is True
    traces: list[bool | None] = []

    @jax.jit
    def sample(model: Net, x: px.Tensor) -> px.Tensor:
        traces.append(model.drop[0].training)
        return model.linear(x)

    for view in (model, model.valid(), model.train(tape=False), twin, model.train(tape=False), model):
        sample(view, x)
    assert traces == [None, False, True]
    assert {jax.tree.structure(view) for view in views} == structures  # also after a trace was made with some of them
    jax.tree.map(lambda a, b: a + b, model, twin)


def test_views_of_deferred_models_make_nothing() -> None:
    model = Net(NumPy())
    for view in (model.train(), model.valid(), model.train(tape=False), model.valid(tape=True)):
        assert not any(p.is_initialized for p in view.params())
    with px.module.no_initializers():
        model.train(tape=False).valid(tape=True)
    np.testing.assert_array_equal(
        model.valid(tape=True).linear.weight.val().numpy(), model.train(tape=False).linear.weight.val().numpy()
    )


def test_printing_says_the_mode_once() -> None:
    text = repr(Net().train(tape=False))
    assert text.startswith("Net(") and text.count("training=True") == 1
    view = Net().valid(tape=True)
    view.drop[0].training = True
    assert "drop.0: Dropout(rate=0.5, training=True)" in repr(view)
    assert "training" not in repr(Net()) and repr(Net().train()).count("training=True") == 1


def test_a_class_may_say_what_holds_where_no_view_was_asked_for() -> None:
    class Always(px.Module):
        training = True  # type: ignore[assignment]

    assert Always().is_training(px.ones((1,)))
    assert not any(view.is_training(px.ones((1,))) for view in (Always().valid(), Always().valid(tape=True)))
