"""Models that are only referred to: no children, and what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, cast

import jax
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]

ON = pytest.mark.parametrize("backend", BACKENDS, ids=repr)


class Student(px.Module):
    def __init__(self, teacher: px.Module) -> None:
        self.layer = nn.Linear(2, 2, device=teacher.params()[0].device)
        self.teachers = {"best": px.reference(teacher)}

    def loss(self, x: px.Tensor) -> px.Tensor:
        return (self.layer(x) - self.teachers["best"](x)).square().mean()


@ON
def test_a_model_that_is_only_referred_to(backend: Backend, tmp_path: Path) -> None:
    teacher = nn.Linear(2, 2, device=backend.device()).init(0)
    student = Student(teacher).init(1)
    assert list(dict(student.named_params())) == ["layer.weight", "layer.bias"] and student.num_params() == 6
    assert student.into_record().paths() == ["layer.weight", "layer.bias"]
    assert Student(teacher).load(student.save(tmp_path / "student")).ok
    x = px.ones((3, 2), device=backend)
    views = [student, student.valid(), copy.deepcopy(student), copy.copy(student), student.map(lambda path, p: p)]
    for one in views:
        assert one.teachers["best"].model is teacher
        assert one.loss(x).item() == student.loss(x).item()
    assert student.to_device(NumPy(float="f64")).teachers["best"].model is teacher
    loaded = pickle.loads(pickle.dumps(student))  # noqa: S301
    assert loaded.teachers["best"].model is not teacher and loaded.loss(x).item() == student.loss(x).item()
    _, twin = copy.deepcopy((teacher, student))
    assert twin.teachers["best"].model is not teacher
    trained, optimizer = student.train(), optim.SgdConfig().init()
    _, grads = px.value_and_grad(lambda model: model.loss(x))(trained)
    assert len(grads) == 2 and optimizer.step(0.1, trained, grads).teachers["best"].model is teacher
    assert "reference(Linear)" in repr(student)


def test_a_reference_in_compiled_functions_and_trees() -> None:
    teacher = nn.Linear(2, 2, device="jax").init(0)
    student, x = Student(teacher).init(1), px.ones((3, 2), device="jax")
    doubled = jax.tree.map(lambda x: x * 2, student)
    assert doubled.teachers["best"].model is teacher
    out = px.compile(lambda model, x: model.map(lambda path, p: p.map(lambda v: v + x.sum())))(student, x)
    assert out.teachers["best"].model is teacher
    for run in (
        px.compile(lambda model, x: model.loss(x)),
        jax.jit(lambda model, x: model.loss(px.ones((3, 2), device="jax"))),
    ):
        with pytest.raises(ModuleError, match="only referred to .*pass the model to the function as an argument"):
            run(student, x)
    loss = px.compile(lambda model, teacher, x: (model.layer(x) - teacher(x)).square().mean())(student, teacher, x)
    assert loss.item() == pytest.approx(student.loss(x).item())


def test_what_cannot_be_referred_to() -> None:
    with pytest.raises(ModuleError, match="reference: expected a module, or a layer or an array of .*, got int"):
        px.reference(cast("Any", 3))
    model = Student(nn.Linear(2, 2).init(0))
    model.teachers["best"] = px.reference(model.layer)
    with pytest.raises(ModuleError, match=r"`teachers\.best` is a reference to the Linear at `layer`.*every copy"):
        model.params()
    model.teachers["best"] = px.reference(model)
    with pytest.raises(ModuleError, match=r"`teachers\.best` is a reference to the Student itself"):
        model.params()
