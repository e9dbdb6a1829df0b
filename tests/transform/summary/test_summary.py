"""`Module.summary`: rows, totals, what it leaves alone, and how it looks.

Serves: phlox/transform/summary/, phlox/module/summary.py
"""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import BackendError, CompileError, ModuleError
from phlox.models import GptConfig
from phlox.transform.summary import Summary
from tests.markup import Markup

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(Jax()), Torch(float="bf16")]


def small(backend: Backend | None = None) -> nn.Sequential:
    layers = [nn.Linear(4, 8, device=backend), px.functional.relu, nn.BatchNorm(8, device=backend), nn.Dropout(0.5)]
    return nn.Sequential([*layers, nn.Linear(8, 3, bias=False, device=backend)])


def values(model: px.Module) -> list[Any]:
    return [param.val().numpy() for param in model.params()]


# --- what it leaves alone


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("training", [False, True])
def test_nothing_changes(backend: Backend, training: bool) -> None:
    px.random.seed(3)
    model = small(backend)
    before = px.random.state()
    with px.default_device(backend):
        found = model.summary(px.TensorSpec((5, 4)), training=training, optimizer=optim.AdamWConfig())
    assert found.rows[0].outputs.shape == (5, 3)
    assert all(param.is_deferred for param in model.params())
    assert px.random.state() == before
    ready = small(backend).init(seed=1)
    held = values(ready)
    ready.train().summary(px.TensorSpec((5, 4)), training=training)
    for one, other in zip(held, values(ready), strict=True):
        np.testing.assert_array_equal(one, other)


OUTSIDE = nn.BatchNorm(4).init(seed=0, device="numpy").train(tape=False)


def test_running_statistics_outside_of_the_model_stay_too() -> None:
    held = values(OUTSIDE)
    found = nn.Sequential([lambda x: OUTSIDE(x)]).summary(px.TensorSpec((5, 4)))
    assert found.rows[0].outputs.shape == (5, 4)
    for one, other in zip(held, values(OUTSIDE), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_too_large_to_be_made() -> None:
    model = nn.Sequential([nn.Linear(10**6, 10**6), nn.Relu(), nn.Linear(10**6, 10)])
    found = model.summary(px.TensorSpec((64, 10**6)), training=True, optimizer=optim.AdamWConfig())
    assert found.parameters == 10**12 + 10**6 + 10**7 + 10
    assert found.memory.optimizer == 2 * 4 * found.parameters and found.memory.parameters == 4 * found.parameters


# --- inputs


class Pairs(px.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(10, 6)

    def __call__(self, tokens: px.Tensor, others: Any, *, mask: px.Tensor, scale: float = 1.0) -> dict[str, Any]:
        x = self.embedding(tokens.int())
        return {"x": x * scale, "rest": (others["a"][0] @ others["a"][1], mask)}


@pytest.mark.parametrize("how", ["specs", "tensors", "arrays"])
def test_inputs_of_all_sorts(how: str) -> None:
    shapes: list[tuple[tuple[int, ...], Any, Any]] = [
        ((2, 5), px.Int, np.int64), ((3, 4), px.Float, np.float64), ((4, 7), px.Float, np.float32),
        ((2,), px.Bool, np.bool_),
    ]  # fmt: skip
    make: dict[str, Any] = {
        "specs": lambda shape, kind, dtype: px.TensorSpec(shape, kind),
        "arrays": lambda shape, kind, dtype: np.zeros(shape, dtype),
        "tensors": lambda shape, kind, dtype: px.tensor(np.zeros(shape, dtype)),
    }
    tokens, left, right, mask = (make[how](*one) for one in shapes)
    found = Pairs().summary(tokens, {"a": [left, right]}, mask=mask, scale=2.0)
    outputs = found.rows[0].outputs
    assert outputs["x"] == px.TensorSpec((2, 5, 6))
    assert outputs["rest"] == (px.TensorSpec((3, 7)), px.TensorSpec((2,), px.Bool))
    assert "(2, 5, 6), (3, 7), (2,) Bool" in str(found)


def test_specs_go_to_where_the_model_is() -> None:
    found = small(Autodiff(Jax())).summary(px.TensorSpec((5, 4)))  # of the default device
    assert found.rows[0].outputs.backend == Jax()


def test_bad_inputs() -> None:
    with pytest.raises(px.errors.ShapeError, match=r"layers\.0.*\(5, 3\)"):
        small().summary(px.TensorSpec((5, 3)))
    with pytest.raises(TypeError):
        small().summary(px.TensorSpec((5, 4)), px.TensorSpec((5, 4)))
    with pytest.raises(ModuleError, match="no column 'flop'; there are output, parameters, trained, flops, memory"):
        small().summary(columns=["flop"])
    with pytest.raises(ModuleError, match="optimizer is an optimizer or its config, got float"):
        small().summary(optimizer=1e-3)
    with pytest.raises(ModuleError, match="no module `layers.9`"):
        small().summary().row("layers.9")


def test_a_model_that_asks_for_a_value() -> None:
    class Asks(px.Module):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return x * x.sum().item()

    with pytest.raises(CompileError, match="Asks: item: the values .* are unknown during tracing"):
        Asks().summary(px.TensorSpec((3,)))


def test_another_engine_in_the_model() -> None:
    class Mixed(px.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(3, 3, device="numpy")

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.inner(x) + px.ones((3,), device="jax")

    with pytest.raises(BackendError):
        Mixed().summary(px.TensorSpec((3, 3)))


# --- rows


def test_rows() -> None:
    found = small().freeze("layers.0.bias").summary(px.TensorSpec((5, 4)))
    assert [row.path for row in found.rows] == ["", *[f"layers.{n}" for n in range(5)]]
    names = ["Sequential", "Linear", "relu", "BatchNorm", "Dropout", "Linear"]
    assert [row.name for row in found.rows] == names
    assert [row.parameters for row in found.rows] == [96, 40, 0, 32, 0, 24]
    assert [row.trained for row in found.rows] == [72, 32, 0, 16, 0, 24]
    assert [row.depth for row in found.rows] == [0, 1, 1, 1, 1, 1]
    assert (found.parameters, found.trained) == (96, 72)
    assert found.row("layers.2").calls == 1 and found.row("layers.4").outputs.shape == (5, 3)


def test_parameters_alone() -> None:
    found = small().summary()
    assert found.flops is None and found.products is None and found.memory.activations is None
    assert found.columns == ("parameters", "trained", "memory") and "not called" not in str(found)
    assert found.parameters == 96 and found.rows[1].outputs is None


class Often(px.Module):
    def __init__(self) -> None:
        self.twice = nn.Linear(4, 4)
        self.never = nn.Linear(4, 9)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.twice(self.twice(x))


def test_called_twice_and_never() -> None:
    found = Often().summary(px.TensorSpec((2, 4)))
    assert found.row("twice").calls == 2 and found.row("never").calls == 0
    assert found.row("twice").products == 2 * (2 * 2 * 4 * 4) and found.row("never").flops == 0
    assert found.row("never").parameters == 45 and found.parameters == 65
    lines = str(found).splitlines()
    assert any("Linear x2" in line and line.startswith("  twice") for line in lines)
    assert any("not called" in line and line.startswith("  never") for line in lines)


class Tied(px.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.second(self.first(x))


def test_tied_parameters_are_counted_once_and_said_so() -> None:
    found = Tied().summary(px.TensorSpec((2, 4)))
    assert found.parameters == 16 + 4 == found.rows[0].parameters
    assert (found.row("first").parameters, found.row("second").parameters) == (16, 4)
    assert found.row("second").tied == (("second.weight", "first.weight"),) and found.row("first").tied == ()
    assert "tied, and counted once: second.weight = first.weight" in str(found)


# --- memory


def test_memory() -> None:
    model = nn.Sequential([nn.Linear(4, 8), nn.Relu(), nn.Linear(8, 3)])
    found = model.summary(px.TensorSpec((5, 4)), training=True, optimizer=optim.AdamWConfig().init())
    memory = found.memory
    assert memory.parameters == 4 * (40 + 27) == memory.gradients
    assert memory.activations == 4 * 5 * (8 + 8 + 3)
    assert memory.optimizer == 2 * memory.parameters
    assert memory.total == 4 * memory.parameters + 4 * 5 * 19
    assert found.row("layers.1").activations == 4 * 5 * 8


def test_memory_of_states_is_what_a_step_makes() -> None:
    """Of half precision with master copies, in groups, and of an optimizer without a state."""
    device = Autodiff(NumPy(float="bf16")).device()
    group = optim.Group("layers.0", optimizer=optim.SgdConfig(momentum=0.9))
    for optimizer in (optim.AdamWConfig().init(), optim.SgdConfig().init(), optim.AdamWConfig().init(groups=[group])):
        model = nn.Sequential([nn.Linear(4, 8, device=device), nn.Linear(8, 3, device=device)])
        found = model.summary(optimizer=optimizer)
        assert not optimizer.states
        loss = model(px.ones((2, 4), device=device)).sum()
        optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))
        tensors: list[Any] = []
        for state in optimizer.states.values():
            _collect(state, tensors)
        assert found.memory.optimizer == sum(tensor.numpy().nbytes for tensor in tensors)


def _collect(value: Any, found: list[Any]) -> None:
    if isinstance(value, px.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, found)
    elif hasattr(value, "master"):
        _collect(value.master, found)
        _collect(value.state, found)


def test_states_that_are_not_known() -> None:
    found = small().summary(optimizer=optim.LbfgsConfig().init())
    assert found.memory.optimizer is None and "optimizer" not in str(found)


# --- looks


def test_text() -> None:
    model = nn.Sequential([nn.Linear(64, 32), nn.Relu(), nn.Linear(32, 10)]).freeze("layers.0.bias")
    found = model.summary(px.TensorSpec((1, 64)))
    wanted = """
layer        class       output   parameters  trained   FLOPs   memory
(the model)  Sequential  (1, 10)       2,410  in part  4.81 k  9.94 kB
  layers.0   Linear      (1, 32)       2,080  in part  4.13 k  8.45 kB
  layers.1   Relu        (1, 32)                           32    128 B
  layers.2   Linear      (1, 10)         330  yes         650  1.36 kB

parameters  2,410, of which 32 are not trained
FLOPs       4.81 k forward, 4.74 k of them in products
memory      parameters 9.64 kB + activations 296 B = 9.94 kB
"""
    assert str(found) == repr(found) == wanted.strip()


def gpt(layers: int) -> Any:
    return GptConfig(vocabulary=32, context=16, n_layers=layers, d_model=32, n_heads=4, dropout=0.1).init()


def test_long_models() -> None:
    found = gpt(100).summary(px.TensorSpec((2, 16), px.Int))
    assert len(found.rows) > 1000
    shown = found.shown()
    assert len(shown) < 25
    block = next(row for row in shown if row.repeats > 1)
    assert (block.span, block.repeats) == ("blocks.0-99", 100) and block.parameters == found.row("blocks.7").parameters
    assert any(line.startswith("  blocks.0-99  x100") for line in str(found).splitlines())
    whole = gpt(100).summary(px.TensorSpec((2, 16), px.Int), collapse=False, depth=1)
    assert [row.path for row in whole.shown()].count("blocks.99") == 1 and len(whole.shown()) == 105


def test_only_equal_blocks_are_collapsed() -> None:
    model = gpt(6)
    model.blocks[3] = gpt(1).freeze().blocks[0]
    shown = model.summary(px.TensorSpec((2, 16), px.Int), depth=1).shown()
    assert [row.span or row.path for row in shown if "blocks" in row.path] == ["blocks.0-2", "blocks.3", "blocks.4-5"]
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5), nn.Relu(), nn.Relu()]
    spans = [row.span or row.path for row in nn.Sequential(layers).summary(px.TensorSpec((1, 4))).shown()]
    assert spans == ["", "layers.0-1", "layers.2", "layers.3-4"]


def test_depth_and_columns() -> None:
    found = gpt(2).summary(px.TensorSpec((2, 16), px.Int), depth=0, columns=["flops", "output"])
    lines = str(found).splitlines()
    assert lines[0].split() == ["layer", "class", "FLOPs", "output"] and len(lines) == 2 + 1 + 3


def test_html() -> None:
    def strange(x: px.Tensor) -> px.Tensor:
        return x

    strange.__name__ = "<script>&"
    found = nn.Sequential([nn.Linear(4, 8), strange]).summary(px.TensorSpec((1, 4)))
    text = found.to_html()
    assert text == found._repr_html_() and "<script" not in text and "url(" not in text
    shown = Markup(text)
    assert [row[0] for row in shown.rows[: 1 + len(found.shown())]] == ["layer", "(the model)", "layers.0", "layers.1"]
    assert {"layers.0", "Linear", "(1, 8)", "40", "<script>&", "parameters"} <= set(shown.texts)
    assert text.count('<td class="n">40</td>') == 2, "numbers are aligned to the right"


def test_it_is_a_method_of_every_module() -> None:
    assert typing.get_type_hints(px.Module.summary)["return"] is Summary
    model = nn.Linear(2, 2)
    with pytest.raises(ModuleError, match="a field cannot be called `summary`"):
        setattr(model, "summary", 1)  # noqa: B010


# --- other things that models do


def test_models_of_all_sorts() -> None:
    import jax

    class Sorts(px.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 4, device="jax")
            self.lifted = px.lift(jax.nn.relu)
            self.mask = px.tensor([1.0, 0.0, 1.0, 0.0], device="jax")

        @px.compile
        def part(self, x: px.Tensor) -> px.Tensor:
            return self.inner(x)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            x = self.lifted(self.part(x)) * self.mask
            noise = px.random.normal(x.shape, device=x.device)
            return px.where(noise > 0.0, x, px.zeros((), device=x.device))

    found = Sorts().summary(px.TensorSpec((3, 4)))
    assert found.row("inner").calls == 1 and found.rows[0].outputs.shape == (3, 4)
    assert Sorts().summary(px.TensorSpec((3, 4)), training=True).products == 2 * 2 * 3 * 4 * 4


def test_tensors_made_on_the_default_device() -> None:
    class Makes(px.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 4)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.inner(x) + px.zeros((10**6, 1, 4)) + px.tensor([1.0, 2.0, 3.0, 4.0])

    found = Makes().summary(px.TensorSpec((10**6, 4)))
    assert found.rows[0].outputs.shape == (10**6, 10**6, 4)
