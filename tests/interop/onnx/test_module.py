"""`OnnxModule`: how it is called, on every engine; trained, compiled, printed; and inputs that do not fit.

Serves: src/phlox/interop/onnx/{module,graph}.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.errors import CompileError, KindError, ModuleError, ShapeError
from phlox.interop.onnx import load

pytest.importorskip("onnx")

from onnx import helper

from tests.interop.onnx.support import BOOL, INT64, mlp, mlp_by_hand, model, node, normal, value

X = normal(7, 2, 3, seed=2)
ENGINES = [NumPy(), Jax(), Torch()]


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_every_engine(backend: Any) -> None:
    loaded = load(mlp(), device=backend.device())
    assert all(param.backend == backend for param in loaded.params())
    y = loaded(px.tensor(X, device=backend.device()))
    assert y.backend == backend
    np.testing.assert_allclose(y.numpy(), mlp_by_hand(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load(mlp()).to_device(backend.device())(X).numpy(), y.numpy(), rtol=1e-5)


@pytest.mark.parametrize("backend", [NumPy(float="f64"), NumPy(float="bf16"), Jax(float="bf16")], ids=repr)
def test_other_precisions(backend: Any) -> None:
    y = load(mlp(), device=backend.device())(px.tensor(X, device=backend.device()))
    rounding = 1e-6 if "f64" in repr(backend) else 0.05
    np.testing.assert_allclose(y.numpy().astype(np.float64), mlp_by_hand(X), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_compiled_shapes_are_folded(backend: Any) -> None:
    loaded = load(mlp(), device=backend.device())
    compiled = px.compile(lambda m, x: m(x))
    for count in (7, 3):
        y = compiled(loaded, px.tensor(X[:count], device=backend.device()))
        np.testing.assert_allclose(y.numpy(), mlp_by_hand(X[:count]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_gradients_are_pytorchs(backend: Any) -> None:
    loaded = load(mlp(), device=backend.device()).train()
    x = px.tensor(X, device=backend.device())
    grads = loaded(x).square().mean().backward()
    weights = [torch.tensor(one, requires_grad=True) for one in (normal(5, 6), normal(5), normal(5, 4, seed=1))]
    hidden = torch.relu(torch.tensor(X).reshape(7, 6) @ weights[0].T + weights[1])
    (hidden @ weights[2] * 0.5).square().mean().backward()
    for param, weight in zip(loaded.params(), weights, strict=True):
        grad = param.val().grad(grads)
        assert grad is not None and weight.grad is not None
        np.testing.assert_allclose(grad.numpy(), weight.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_training(backend: Any) -> None:
    loaded = load(mlp(), device=backend.device()).train()
    optimizer = optim.AdamConfig().init()
    x = px.tensor(X, device=backend.device())
    target = px.tensor(normal(7, 4, seed=3), device=backend.device())

    @px.compile
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss = nn.mse_loss(model(x), target)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(5e-2, model, grads), loss

    losses = []
    for _ in range(60):
        loaded, loss = step(loaded, optimizer, x)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    frozen = load(mlp(), trained="up", device=backend.device()).train()
    after, _ = step(frozen, optim.AdamConfig().init(), x)
    changed = {p for (p, a), (_, b) in zip(after.named_params(), load(mlp()).named_params(), strict=True)
               if not np.array_equal(a.val().numpy(), b.val().numpy())}  # fmt: skip
    assert changed == {"up.weight", "up.bias"}


# --- inputs and outputs


def several() -> Any:
    nodes = [
        node("Gather", ["table", "tokens"], ["e"]),
        node("Where", ["mask", "e", "zero"], ["kept"]),
        node("ReduceSum", ["kept", "axis"], ["total"], keepdims=0),
        node("Shape", ["tokens"], ["size"]),
    ]
    weights = {"table": normal(9, 2), "zero": np.array(0.0, np.float32), "axis": np.array([1])}
    inputs = [value("tokens", ["batch", "time"], INT64), value("mask", ["batch", "time", 1], BOOL)]
    return model(nodes, inputs, [value("total", ["batch", 2]), value("size", [2], INT64)], weights)


def test_names_and_several_outputs() -> None:
    loaded = load(several())
    tokens, mask = np.array([[1, 2, 8]]), np.array([[[True], [False], [True]]])
    wanted = normal(9, 2)[[1, 8]].sum(0)
    for found in (loaded(tokens, mask), loaded(mask=mask, tokens=tokens), loaded(px.tensor(tokens), mask=mask)):
        assert list(found) == ["total", "size"]
        np.testing.assert_allclose(found["total"].numpy()[0], wanted, rtol=1e-6)
        assert found["size"].tolist() == [1, 3] and found["size"].kind is px.Int
        assert found["size"].backend == NumPy()
    assert [str(one) for one in loaded.inputs] == ["tokens: int64 [batch, time]", "mask: bool [batch, time, 1]"]


@pytest.mark.parametrize(
    ("inputs", "named", "error", "says"),
    [
        ((1, 2, 3), {}, ModuleError, "takes 2 inputs, got 3"),
        ((np.zeros((1, 2), int),), {}, ModuleError, "`mask` is not given"),
        ((np.zeros((1, 2), int),), {"masks": 1}, ModuleError, "no input `masks`; it takes tokens: int64"),
        ((np.zeros((1, 2), int),), {"tokens": 1}, ModuleError, "`tokens` is given twice"),
        (
            (np.zeros((1, 2)), np.ones((1, 2, 1), bool)),
            {},
            KindError,
            "is Int, got a Float tensor; convert it with .int",
        ),
        ((np.zeros((1, 2), int), np.ones((1, 2), bool)), {}, ShapeError, r"mask: bool \[batch, time, 1\].*\(1, 2\)"),
        (
            (np.zeros((1, 2), int), np.ones((1, 2, 3), bool)),
            {},
            ShapeError,
            r"does not take a tensor of shape \(1, 2, 3\)",
        ),
        ((1.5, np.ones((1, 2, 1), bool)), {}, KindError, "is Int, got a Float"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, named: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        load(several())(*inputs, **named)


def choice() -> Any:
    def branch(operator: str, name: str) -> Any:
        return helper.make_graph([node(operator, ["x", "k"], ["r"])], name, [], [value("r", None)])

    nodes = [
        node("Equal", ["mode", "one"], ["is_one"]),
        node("If", ["is_one"], ["y"], then_branch=branch("Add", "a"), else_branch=branch("Tile", "b"), name="choose"),
    ]
    del nodes[1].attribute[:]
    wide = helper.make_graph([node("Concat", ["x", "x"], ["r"], axis=0)], "b", [], [value("r", None)])
    nodes[1].attribute.extend([helper.make_attribute("then_branch", branch("Add", "a")),
                               helper.make_attribute("else_branch", wide)])  # fmt: skip
    weights = {"one": np.array(1), "k": np.array(2.0, np.float32)}
    return model(nodes, [value("x", ["n"]), value("mode", [], INT64)], [value("y", None)], weights)


@pytest.mark.parametrize("backend", ENGINES, ids=repr)
def test_python_numbers_are_known_while_compiling(backend: Any) -> None:
    loaded = load(choice(), device=backend.device())
    x = px.tensor([1.0, 2.0], device=backend.device())
    compiled = px.compile(lambda m, x: (m(x, 1), m(x, 5)))
    for one, other in (compiled(loaded, x), (loaded(x, 1), loaded(x, px.tensor(5, device=backend.device())))):
        assert one.tolist() == [3.0, 4.0] and other.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_a_choice_by_a_traced_value_is_an_error_with_the_node() -> None:
    loaded = load(choice(), device="jax")
    with pytest.raises(CompileError, match=r"`choose` \(If, opset 18\).*`is_one`.*Python numbers"):
        px.compile(lambda m, x, k: m(x, k))(loaded, px.tensor([1.0], device="jax"), px.tensor(1, device="jax"))


def test_a_loop_is_unrolled_and_has_a_gradient() -> None:
    body = helper.make_graph(
        [node("Mul", ["a", "w"], ["b"]), node("Identity", ["go"], ["on"]), node("Identity", ["b"], ["kept"])],
        "body", [value("i", [], INT64), value("go", [], BOOL), value("a", ["n"])],
        [value("on", [], BOOL), value("b", ["n"]), value("kept", ["n"])],
    )  # fmt: skip
    nodes = [node("Loop", ["times", "", "x"], ["y", "all"], body=body)]
    weights = {"times": np.array(3), "w": np.array([2.0, 3.0], np.float32)}
    loaded = load(model(nodes, [value("x", ["n"])], [value("y", ["n"]), value("all", ["t", "n"])], weights)).train()
    found = loaded(px.ones((2,)))
    assert found["y"].tolist() == [8.0, 27.0] and found["all"].shape == (3, 2)
    grads = found["y"].sum().backward()
    grad = loaded.params()[0].val().grad(grads)
    assert grad is not None and grad.tolist() == [12.0, 27.0]


def test_a_default_input_may_be_given() -> None:
    proto = model(
        [node("Add", ["x", "b"], ["y"])], [value("x", [2]), value("b", [2])], [value("y", [2])], {"b": normal(2)}
    )
    loaded = load(proto)
    x = np.ones(2, np.float32)
    np.testing.assert_allclose(loaded(x).numpy(), x + normal(2))
    np.testing.assert_allclose(loaded(x, b=x).numpy(), 2 * x)


def test_constants_are_computed_once_and_placed_once() -> None:
    nodes = [node("Mul", ["k", "k"], ["kk"]), node("Pow", ["x", "kk"], ["y"])]
    loaded = load(
        model(nodes, [value("x", ["n"])], [value("y", ["n"])], {"k": np.array([2.0], np.float32)}), trained=False
    )
    assert loaded(np.full(3, 2.0, np.float32)).tolist() == [16.0] * 3
    kept = loaded.program.kept
    assert len(kept.folded) <= 1
    before = dict(kept.on_device)
    loaded(np.full(3, 2.0, np.float32))
    assert kept.on_device == before


# --- how it looks


def test_repr_and_summary() -> None:
    loaded = load(mlp(), trained="up")
    common = "Shape 1, Gather 1, Unsqueeze 1, Concat 1, Reshape 1, Gemm 1, Relu 1, MatMul 1"
    assert repr(loaded).splitlines() == [
        f"OnnxModule(<9 nodes, opset ai.onnx 18: {common}, ... (9 operators)>)",
        "  input  x: float [batch, 2, 3]",
        "  output y: float [batch, 4]",
        "  up.weight [5, 6]",
        "  up.bias [5]",
        "  down.weight [5, 4] not trained",
    ]
    summary = str(loaded.summary(px.TensorSpec((4, 2, 3))))
    assert "(4, 4)" in summary and "OnnxModule" in summary and "55" in summary


def test_errors_show_some_shapes_of_many() -> None:
    weights = {f"w{number}.x": normal(2, 2) for number in range(9)}
    names = ["x", *(f"h{number}" for number in range(8)), "y"]
    nodes = [node("MatMul", [names[n], f"w{n}.x"], [names[n + 1]]) for n in range(9)]
    loaded = load(model(nodes, [value("x", ["a", "b"])], [value("y", None)], weights))
    with pytest.raises(ShapeError, match=r"OnnxModule\(w0.x \[2, 2\], .* and 3 more\)"):
        loaded(normal(2, 3))
