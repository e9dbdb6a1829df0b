"""`find_nan`: the first operation that gives something not finite, forward and backward.

Serves: phlox/debug/{nonfinite,origins,operands,places,running}.py, phlox/debug/__init__.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.debug.operands import range_of_values
from phlox.debug.running import as_arguments
from phlox.errors import KindError, ModuleError

ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}
X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)

engines = pytest.mark.parametrize("engine", list(ENGINES.values()), ids=list(ENGINES))


class Root(px.Module):
    """The root of what a layer gives, less something."""

    def __init__(self, less: float = 100.0) -> None:
        self.inner = nn.Linear(8, 8)
        self.less = less

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return (self.inner(x) - self.less).sqrt()


class FlatRoot(px.Module):
    """A root whose slope is infinite: of zero."""

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return (x * 0.0).sqrt()


def around(middle: Any, engine: Backend) -> Any:
    return nn.Sequential([nn.Linear(8, 8), middle, nn.Linear(8, 2)]).init(0, engine.device()).valid()


@engines
def test_forward_the_layer_the_operation_the_line_and_the_ranges(engine: Backend) -> None:
    found = px.debug.find_nan(around(Root(), engine), px.tensor(X, device=engine))
    assert found is not None
    assert (found.phase, found.path, found.layer, found.operation, found.what) == (
        "forward", "layers.1", "Root", "sqrt", "NaN",
    )  # fmt: skip
    assert found.found.nans == 16 and found.found.size == 16
    (operand,) = found.inputs
    assert operand.shape == (2, 8) and -110 < operand.low <= operand.high < -90 and operand.is_finite
    assert found.place is not None
    assert found.place.file == __file__ and found.place.text == "return (self.inner(x) - self.less).sqrt()"
    assert "NaN (16 of 16 elements) in the output of `sqrt` in `layers.1` (Root)" in str(found)


@engines
def test_backward_the_operation_whose_derivative_it_is(engine: Backend) -> None:
    found = px.debug.find_nan(around(FlatRoot(), engine), X)  # an array becomes a tensor
    assert found is not None
    assert (found.phase, found.path, found.operation, found.what) == ("backward", "layers.1", "sqrt", "infinity")
    reaching, operand = found.inputs
    assert reaching.is_finite and reaching.high > 0.0 and (operand.low, operand.high) == (0.0, 0.0)
    assert "in the gradient through `sqrt`" in str(found) and "the gradient that reaches it" in str(found)
    assert px.debug.find_nan(around(FlatRoot(), engine), X, backward=False) is None


@engines
def test_the_branch_that_is_not_taken_still_has_a_gradient(engine: Backend) -> None:
    def branch(x: px.Tensor) -> px.Tensor:
        return px.where(x * 0.0 > 1.0, (x * 0.0).log(), x)

    found = px.debug.find_nan(around(branch, engine), X)
    assert found is not None
    assert (found.phase, found.path, found.operation, found.layer) == ("backward", "layers.1", "log", "branch")


def masked(threshold: float) -> Callable[[px.Tensor], px.Tensor]:
    return lambda x: px.where(x > threshold, -np.inf, x).softmax(-1)


@engines
def test_a_mask_of_infinities_is_no_fault_unless_it_masks_all(engine: Backend) -> None:
    assert px.debug.find_nan(around(masked(1e9), engine), X) is None
    assert px.debug.find_nan(around(masked(0.4), engine), X[:, :]) is None
    found = px.debug.find_nan(around(masked(-1e9), engine), X)
    assert found is not None and (found.operation, found.path) == ("softmax", "layers.1")
    assert found.inputs[0].infinities == 16 and np.isnan(found.inputs[0].low)


def test_an_infinity_is_followed_to_where_it_is_made_not_to_the_nan_that_it_becomes() -> None:
    model = nn.Sequential([nn.Linear(8, 8), lambda x: (x * 1e4).exp(), nn.Linear(8, 2), nn.LayerNorm(2)])
    found = px.debug.find_nan(model.init(0, "numpy").valid(), X)
    assert found is not None and (found.path, found.operation, found.what) == ("layers.1", "exp", "infinity")


def test_parameters_and_inputs_come_first() -> None:
    model = nn.Sequential([nn.Linear(8, 8), nn.Linear(8, 2)]).init(0, "numpy").valid()
    found = px.debug.find_nan(model, np.where(X.max() <= X, np.nan, X))
    assert found is not None and (found.phase, found.path) == ("input", "args[0]")
    assert str(found) == "NaN (1 of 16 elements) in the input `args[0]`"
    weight = model.layers[1].weight.val().numpy().copy()
    weight[0, 0] = np.inf
    model.layers[1].weight.set(px.tensor(weight))
    found = px.debug.find_nan(model, X)
    assert found is not None and (found.phase, found.path, found.what) == ("parameter", "layers.1.weight", "infinity")


def test_a_loss_of_ones_own_and_a_sum_that_overflows() -> None:
    model = nn.Linear(8, 2).init(0, "numpy").valid()
    found = px.debug.find_nan(model, X, loss=lambda y: (y * 0.0).abs().sqrt().mean())
    assert found is not None and (found.phase, found.path, found.layer) == ("backward", "", "")
    assert "through `sqrt` outside of all layers" in str(found)
    found = px.debug.find_nan(model, X, loss=lambda y: y.sum() / 0.0)
    assert found is not None and (found.phase, found.operation) == ("forward", "div")


def step(model: Any, optimizer: Any, x: px.Tensor) -> Any:
    loss, grads = px.value_and_grad(lambda m: (m(x) ** 2.0).mean())(model)
    return optimizer.step(1e-3, model, grads), loss


@engines
@pytest.mark.parametrize("middle, phase", [(Root, "forward"), (FlatRoot, "backward")])
def test_a_compiled_step_is_run_as_it_is_written_and_changes_nothing(engine: Backend, middle: Any, phase: str) -> None:
    model = around(middle(), engine).train()
    optimizer = optim.AdamWConfig().init()
    before = [param.val().numpy().copy() for param in model.params()]
    position = px.random.state()
    compiled = px.compile(step)
    found = px.debug.find_nan(compiled, model, optimizer, px.tensor(X, device=engine))
    assert found is not None
    assert (found.phase, found.model, found.path, found.operation) == (phase, "model", "layers.1", "sqrt")
    assert "`model.layers.1`" in str(found)
    assert not optimizer.states and compiled.traces == 0 and px.random.state() == position
    for param, value in zip(model.params(), before, strict=True):
        np.testing.assert_array_equal(param.val().numpy(), value)
    good = around(nn.Gelu(), engine).train()
    assert px.debug.find_nan(compiled, good, optimizer, px.tensor(X, device=engine)) is None


@engines
def test_a_compiled_model_and_one_that_is_compiled_inside(engine: Backend) -> None:
    model = around(Root(), engine)
    found = px.debug.find_nan(px.compile(model), px.tensor(X, device=engine))
    assert found is not None and (found.path, found.operation) == ("layers.1", "sqrt")
    inner = px.compile(lambda x: (x - 100.0).log())
    found = px.debug.find_nan(around(inner, engine), X)
    assert found is not None and (found.path, found.operation) == ("layers.1", "log")


@engines
def test_a_loop_and_a_batch(engine: Backend) -> None:
    class Loop(px.Module):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.scan(lambda carry, y: (carry + y, (carry - 3.0).sqrt()), x[0] * 0.0, x)[1]

    found = px.debug.find_nan(around(Loop(), engine), X)
    assert found is not None and (found.path, found.operation) == ("layers.1", "sqrt")
    found = px.debug.find_nan(around(px.vmap(lambda row: (row - 100.0).log()), engine), X)
    assert found is not None and (found.path, found.operation) == ("layers.1", "log")


def test_random_layers_draw_what_a_call_would_draw_now() -> None:
    class Unlucky(px.Module):
        def __init__(self) -> None:
            self.dropout = nn.Dropout(0.5)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return (self.dropout(x * 0.0 + 1.0).sum() - 3.0).sqrt()

    model = Unlucky().train(tape=False)
    answers: set[bool] = set()
    for seed in range(12):
        px.random.seed(seed)
        looked = px.debug.find_nan(model, px.ones((3,)), backward=False) is not None
        assert looked == bool(np.isnan(model(px.ones((3,))).item())), seed
        answers.add(looked)
    assert answers == {True, False}


def test_an_error_of_the_program_that_has_seen_the_nan_does_not_hide_it() -> None:
    def refuse(x: px.Tensor) -> px.Tensor:
        if np.isnan(x.numpy()).any():
            raise ValueError("bad")
        return x

    model = nn.Sequential([nn.Linear(8, 8), Root(), refuse]).init(0, "numpy").valid()
    found = px.debug.find_nan(model, X, backward=False)
    assert found is not None and found.operation == "sqrt"

    def fail(x: px.Tensor) -> px.Tensor:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="^bad$"):
        px.debug.find_nan(nn.Sequential([nn.Linear(8, 8), fail]), X)


def test_after_a_look_operations_are_the_backends_own() -> None:
    from phlox.tensor.dispatch import ops_of

    table = ops_of(NumPy(), px.Float)
    px.debug.find_nan(around(Root(), NumPy()), X)
    px.ones((2,)).sqrt()
    assert table["sqrt"] is not None and table["sqrt"] == NumPy().float_sqrt


def test_ranges_of_values() -> None:
    assert str(range_of_values(np.array([[1.0, np.nan], [np.inf, -2.0]]))) == "[2, 2] from -2 to 1, 1 NaN, 1 infinite"
    assert str(range_of_values(np.array(3.5))) == "3.5"
    assert str(range_of_values(np.zeros((0, 3)))) == "[0, 3] empty"
    assert range_of_values(np.array([np.inf])).what() == "infinity (1 of 1 elements)"


def test_what_it_cannot_look_at() -> None:
    with pytest.raises(KindError, match="find_nan: give a model or a function; got int"):
        px.debug.find_nan(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(KindError, match="loss= is for a model"):
        px.debug.find_nan(lambda x: x, X, loss=lambda y: y)
    with pytest.raises(ModuleError, match="returns one number, got a tensor of shape"):
        px.debug.find_nan(nn.Linear(8, 2), X, loss=lambda y: y)
    with pytest.raises(KindError, match="inputs are the arguments of a call"):
        as_arguments(3)
    assert as_arguments(X)[0][0] is X and as_arguments({"x": X})[1]["x"] is X


@pytest.mark.parametrize("engine", [NumPy(float="f16"), Jax(float="f16"), Torch(float="f16")], ids=repr)
def test_what_overflows_at_half_precision(engine: Backend) -> None:
    model = nn.Sequential([nn.Linear(8, 8), lambda x: x * 3e4, lambda x: x * 8.0, nn.LayerNorm(8)])
    found = px.debug.find_nan(model.init(0, engine.device()).train(), X)
    assert found is not None and (found.path, found.operation, found.what) == ("layers.2", "mul", "infinity")
    assert found.inputs[0].is_finite and found.inputs[1].high == 8.0
    model = nn.Linear(8, 8).init(0, engine.device()).train()
    found = px.debug.find_nan(model, X, loss=lambda y: ((y * 1e-4) * 6e4 * 1e-4).mean() * 6e4)
    assert found is None


@engines
def test_gradients_within_gradients_and_by_example(engine: Backend) -> None:
    def loss(model: Any, x: px.Tensor) -> px.Tensor:
        return (model(x) * 0.0).abs().sqrt().sum()

    model = nn.Linear(8, 2).init(0, engine.device()).train()
    x = px.tensor(X, device=engine)
    each = px.vmap(px.grad(loss), in_axes=(None, 0))
    for look in (each, px.compile(each)):
        found = px.debug.find_nan(look, model, x)
        assert found is not None and (found.phase, found.operation) == ("backward", "sqrt")
    found = px.debug.find_nan(lambda x: px.hvp(lambda y: y.abs().sqrt().sum(), x, x), x * 0.0)
    assert found is not None and found.operation == "sqrt"


def test_the_line_of_a_package_whose_name_begins_with_phlox() -> None:
    names: dict[str, Any] = {}
    file = f"{Path(px.__file__).parent}_extra/model.py"
    exec(compile("def layer(x):\n    return x.log()\n", file, "exec"), names)
    found = px.debug.find_nan(nn.Sequential([names["layer"]]), -px.ones((2,)))
    assert found is not None and found.place is not None and (found.place.file, found.place.line) == (file, 2)


def test_several_models_and_methods() -> None:
    first, second = nn.Linear(8, 2).init(0, "numpy"), nn.Linear(2, 1).init(0, "numpy")

    def run(one: Any, other: Any, x: px.Tensor) -> px.Tensor:
        return other(one(x)).sum() + Bad()(one(x)).sum()

    class Bad(px.Module):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return (x - 100.0).log()

    found = px.debug.find_nan(run, first, second, px.tensor(X))
    assert found is not None and found.operation == "log" and found.place is not None and "log" in found.place.text
    weight = px.zeros((2, 1)) / 0.0
    second.weight.set(weight)
    found = px.debug.find_nan(run, first, second, px.tensor(X))
    assert found is not None and (found.phase, found.full_path) == ("parameter", "other.weight")

    class Own(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(8, 8)

        def loss(self, x: px.Tensor) -> px.Tensor:
            return self.layer(x).log().sum()

    own = Own().init(0, "numpy")
    for look in (own.loss, px.compile(own.loss)):
        found = px.debug.find_nan(look, px.tensor(X))
        assert found is not None and found.operation == "log"
