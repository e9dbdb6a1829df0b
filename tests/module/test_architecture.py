"""Architectures: every layer and model is built again from plain values, and only from what they name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy, Torch
from phlox.config import Config
from phlox.errors import ModuleError
from phlox.module.architecture import architecture, build_module, classes_in
from phlox.module.calls import FunctionLayer
from tests.export.cases import ALL


class Side(Enum):
    LEFT = "l"
    RIGHT = "r"


class Options(Config):
    rate: float = 0.5


@dataclass(frozen=True)
class Window:
    size: int
    side: Side


def halved(x: Any) -> Any:
    return x * 0.5


class Own(px.Module):
    """Every kind of field."""

    def __init__(self) -> None:
        self.layers: dict[str, Any] = {"a": nn.Linear(3, 3), "b": [nn.Relu(), (nn.Dropout(0.1),)]}
        self.tied = self.layers["a"]
        self.again = self.layers["a"].weight
        self.scale = px.Param(px.ones((3,)), trained=False)
        self.count = px.Param(px.tensor([1, 2]), trained=False)
        self.function, self.kind, self.window = halved, Options, Window(3, Side.RIGHT)
        self.options, self.limit, self.names = Options(rate=0.25), float("inf"), {"x", "y"}
        self.table = np.array([[1.0, 2.0]], np.float32)

    def __call__(self, x: Any) -> Any:
        return self.function(self.tied(self.layers["a"](x)) * self.scale.val())


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_every_layer_and_model_is_built_again(case: Any) -> None:
    model = case.model()
    if isinstance(model, FunctionLayer):
        return  # of a lambda, as some here are
    plain = json.loads(json.dumps(architecture(model)))
    again = build_module(plain)
    again.load_record(model.into_record())
    assert again.structure().skeleton == model.structure().skeleton
    assert [param.id for param in again.params()] == [param.id for param in model.params()]


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), NumPy(float="f16")], ids=repr)
def test_every_kind_of_field(backend: Any) -> None:
    model = Own().init(0).freeze("layers.a.bias")
    again = build_module(json.loads(json.dumps(architecture(model))), device=backend)
    assert {param.backend for param in again.params()} <= {backend, backend.full_precision()}
    again.load_record(model.into_record())
    assert again.tied is again.layers["a"] and again.again is again.layers["a"].weight
    assert again.function is halved and again.kind is Options and again.options == Options(rate=0.25)
    assert again.window == Window(3, Side.RIGHT) and again.limit == float("inf") and again.names == {"x", "y"}
    np.testing.assert_array_equal(again.table, model.table)
    assert [param.trained for param in again.params()] == [param.trained for param in model.params()]
    x = px.tensor([[1.0, 2.0, 3.0]])
    got = again(x.to_device(backend)).numpy().astype(np.float64)
    np.testing.assert_allclose(got, model(x).numpy(), rtol=5e-3 if backend.float_element == "f16" else 1e-6)


def test_nothing_has_a_value_before_it_is_loaded() -> None:
    model = build_module(architecture(nn.Linear(3, 2).init(0)))
    with pytest.raises(ModuleError, match=r"a parameter of shape \(3, 2\) has no value; load a record"):
        model(px.ones((1, 3)))


def _with(value: Any) -> Any:
    layer: Any = nn.Sequential([nn.Linear(2, 2)])
    layer.layers[0].extra = value
    return layer


class _Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, "`layers.0.extra`: another program cannot import .*<lambda>"),
        (_Opaque(), "`layers.0.extra` is an? _Opaque, which cannot be described; make it a Config or a dataclass"),
        (type("Local", (), {"__qualname__": "f.<locals>.Local"}), "another program cannot import f.<locals>.Local"),
    ],
)
def test_what_cannot_be_described(value: Any, message: str) -> None:
    with pytest.raises(ModuleError, match=message):
        architecture(_with(value))


def test_damaged_and_hostile_descriptions() -> None:
    plain = architecture(nn.Sequential([nn.Linear(3, 2), nn.Dropout(0.1)]))
    assert set(classes_in(plain)) == {
        "phlox.nn.sequential:Sequential", "phlox.nn.linear:Linear", "phlox.nn.dropout:Dropout"
    }  # fmt: skip
    rng = np.random.default_rng(0)
    text = json.dumps(plain)
    for _ in range(300):
        damaged = list(text)
        for at in rng.integers(len(text), size=rng.integers(1, 4)):
            damaged[at] = chr(rng.integers(32, 127))
        try:
            value = json.loads("".join(damaged))
        except ValueError:
            continue
        try:
            build_module(value)
        except ModuleError:
            pass
    for name, message in {
        "os:system": "is of Python itself",
        "phlox.train.learner:os.system": "is not defined in phlox.train.learner",
        "phlox.nn:NoSuch": "cannot be imported",
        "no_such_module:X": "cannot be imported",
        f"{Config.__module__}:Config": "is not that of a module",
    }.items():
        with pytest.raises(ModuleError, match=message):
            build_module({"params": [], "module": {"class": name, "fields": [], "number": 0}})
