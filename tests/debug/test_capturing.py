from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import CompileError, ModuleError

ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}
engines = pytest.mark.parametrize("engine", list(ENGINES.values()), ids=list(ENGINES))


class Block(px.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential([nn.Linear(4, 8), nn.Gelu(), nn.Linear(8, 4)])

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return x + self.mlp(self.norm(x))


class Net(px.Module):
    def __init__(self) -> None:
        self.blocks = [Block(), Block()]
        self.head = nn.Linear(4, 2)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(engine: Backend) -> Net:
    return Net().init(0, engine.device()).valid()


def parts(model: Net, x: px.Tensor) -> list[px.Tensor]:
    """What the two networks in the blocks give, computed by hand."""
    first = model.blocks[0].mlp(model.blocks[0].norm(x))
    after = x + first
    return [first, model.blocks[1].mlp(model.blocks[1].norm(after))]


@engines
def test_outputs_by_pattern(engine: Backend) -> None:
    model, x = net(engine), px.random.normal((3, 4), device=engine)
    with px.debug.capture(model, "blocks.*.mlp") as seen:
        model(x)
    assert list(seen.outputs) == ["blocks.0.mlp", "blocks.1.mlp"]
    for path, wanted in zip(seen.outputs, parts(model, x), strict=True):
        np.testing.assert_allclose(seen[path].numpy(), wanted.numpy(), atol=1e-6)
    model(x)
    assert [len(one) for one in seen.outputs.values()] == [1, 1]  # the scope has ended


@engines
def test_in_a_compiled_function_they_are_results(engine: Backend) -> None:
    model = net(engine)

    def run(model: Net, x: px.Tensor) -> Any:
        with px.debug.capture(model, "blocks.*.mlp", keep=lambda y: y.abs().max()) as seen:
            y = model(x)
        return y, seen.outputs

    compiled = px.compile(run)
    for _ in range(2):
        x = px.random.normal((3, 4), device=engine)
        _, outputs = compiled(model, x)
        wanted = [float(np.abs(one.numpy()).max()) for one in parts(model, x)]
        np.testing.assert_allclose([outputs[f"blocks.{n}.mlp"][0].item() for n in (0, 1)], wanted, rtol=1e-5)
    assert compiled.traces == (engine.compiles and 1)


@pytest.mark.parametrize("engine", [Jax(), Torch()], ids=["jax", "torch"])
def test_outside_of_a_compiled_function_it_says_what_to_do(engine: Backend) -> None:
    model, compiled = net(engine), px.compile(lambda model, x: model(x))
    x = px.ones((3, 4), device=engine)
    with pytest.raises(CompileError, match="open the scope inside"), px.debug.capture(model, "head"):
        compiled(model, x)
    compiled(model, x)
    with pytest.raises(ModuleError, match="no layer of the model was called"), px.debug.capture(model, "head"):
        compiled(model, x)  # which runs, and calls nothing


def test_several_calls_inputs_and_gradients() -> None:
    model = net(NumPy()).train()
    x = px.ones((3, 4))
    with px.debug.capture(model, "head", inputs=True) as seen:
        first, second = model(x), model(x * 2.0)
    assert len(seen.outputs["head"]) == 2 and seen["head"][0].shape == (3, 4)
    with px.debug.capture(model, "head") as seen:
        loss = (model(x) * 3.0).sum()
    assert seen["head"].is_require_grad() and loss.is_require_grad() and first.shape == second.shape
    with px.debug.capture(model) as seen:
        model(x)
    assert {"", "blocks.0", "blocks.1.mlp.layers.2", "head"} <= set(seen.outputs)


def test_a_view_of_the_model_is_the_model() -> None:
    model = net(NumPy())
    with px.debug.capture(model, "head") as seen:
        model.freeze("blocks")(px.ones((1, 4)))
    assert seen["head"].shape == (1, 2)


def test_what_is_wrong_is_said() -> None:
    model = net(NumPy())
    with pytest.raises(ModuleError, match=r"no layer matches `block\.\*\.mlp`"):
        px.debug.capture(model, "block.*.mlp")
    with pytest.raises(ModuleError, match="3 is not a pattern"):
        px.debug.capture(model, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleError, match="the model is a Module, got int"):
        px.debug.capture(3)  # pyright: ignore[reportArgumentType]
    seen = px.debug.capture(model, "head")
    with seen:
        model(px.ones((1, 4)))
        with pytest.raises(ModuleError, match="is open already"):
            seen.__enter__()
    with pytest.raises(ModuleError, match="nothing was kept of `blocks`, .*: head"):
        seen["blocks"]
    with pytest.raises(ZeroDivisionError), seen:
        _ = 1 // 0
