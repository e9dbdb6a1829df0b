"""`compile` on PyTorch with `donate=`: what a program writes over, and what it must leave as it is.

Serves: phlox/backend/torch/compiler/graph.py, phlox/backend/torch/compiler/passes/multi_tensor.py
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import _inductor as inductor

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.codegen import VARIABLE
from phlox.backend.torch.compiler.passes import multi_tensor
from phlox.errors import CompileError, DonatedError, OptimizerError
from tests.transform.steps import step, values

BACKEND = Autodiff(Torch())
TAPE = BACKEND.device()
WIDE = 1100
GIVEN = ("model", "optimizer")
OPTIMIZERS = {
    "adamw": optim.AdamWConfig(),
    "sgd": optim.SgdConfig(momentum=0.9),
    "lion": optim.LionConfig(),
    "schedule-free": optim.ScheduleFreeAdamWConfig(),
    "adan": optim.AdanConfig(),
    "radam": optim.RAdamConfig(),
}
OTHERS = {
    "lamb": optim.LambConfig(),
    "adafactor": optim.AdafactorConfig(),
    "muon": optim.MuonConfig(),
    "decay in the gradient": optim.SgdConfig(momentum=0.9, weight_decay=0.1),
}
"""Whose updates need more than the elements of one array."""
rng = np.random.default_rng(0)
X = rng.normal(size=(4, WIDE)).astype(np.float32)


@pytest.fixture(autouse=True)
def as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs as for PyTorch's compiler, but run as they were traced, which takes no time to compile."""
    monkeypatch.setenv(VARIABLE, "inductor")
    monkeypatch.setattr(inductor, "compile", lambda graph, flat: graph.forward)


def linear(device: Any = TAPE) -> nn.Linear:
    return nn.Linear(WIDE, 1000, device=device).init(0)


def data(device: Any = TAPE) -> px.Tensor:
    return px.tensor(X, device=device)


def trained(
    run: Callable[..., Any], config: Any = OPTIMIZERS["adamw"], steps: int = 4, model: Any = None
) -> tuple[Any, Any]:
    """Model and optimizer after some steps."""
    model, optimizer = model or linear(), config.init()
    for _ in range(steps):
        model, _ = run(model, optimizer, 0.01, data())
    return model, optimizer


def same_given_or_not(made: Callable[[], tuple[Any, Any]], x: px.Tensor) -> None:
    """Three steps of a model and an optimizer, with both donated, come to what they come to without."""
    found = list[Any]()
    for donate in ((), GIVEN):
        (model, optimizer), run = made(), px.compile(step, donate=donate)
        for _ in range(3):
            model, _ = run(model, optimizer, 0.01, x)
        found.append(values(model))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_in_place_is_the_same_step(name: str) -> None:
    kept, _ = trained(px.compile(step), OPTIMIZERS[name])
    given, optimizer = trained(px.compile(step, donate=GIVEN), OPTIMIZERS[name])
    for a, b in zip(values(given), values(kept), strict=True):
        np.testing.assert_array_equal(a, b)
    again = px.compile(step, donate=GIVEN)
    model, addresses = given, set[int]()
    for number in range(4):
        model, _ = again(model, optimizer, 0.01, data())
        if number % 2:  # it has its fields, and parameters that hold the arrays
            addresses.add(model.weight.val().inner().primitive.data_ptr())
        else:
            addresses.add(model._phlox_pending[1][0].data_ptr())
    assert len(addresses) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_pytorchs_compiler_writes_over_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, "inductor")
    expected, _ = trained(step, OPTIMIZERS["sgd"], steps=3)
    run, model, optimizer = px.compile(step, donate=GIVEN), linear(), OPTIMIZERS["sgd"].init()
    addresses: set[int] = set()
    for _ in range(3):
        model, _ = run(model, optimizer, 0.01, data())
        addresses.add(model._phlox_pending[1][0].data_ptr())
    assert len(addresses) == 1 and run.traces == 1
    for a, b in zip(values(model), values(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


HOLDERS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "a tensor": lambda model: (lambda held: lambda: held.numpy())(model.weight.val()),
    "a view": lambda model: (lambda held: lambda: held.numpy())(model.weight.val()[3]),
    "an array": lambda model: (lambda held: lambda: held)(model.weight.val().numpy()),
    "PyTorch's tensor": lambda model: (lambda held: lambda: held.numpy())(model.weight.val().inner().primitive),
    "a detached one of it": lambda model: (lambda held: held.numpy)(model.weight.val().inner().primitive.detach()),
    "DLPack": lambda model: (lambda held: held.numpy)(torch.from_dlpack(model.weight.val().inner().primitive)),
    "a module for prediction": lambda model: (lambda held: lambda: held.weight.val().numpy())(model.valid()),
    "a record": lambda model: (lambda held: lambda: linear().load_record(held).weight.val().numpy())(
        model.into_record()
    ),
    "a copy": lambda model: (lambda held: lambda: held.weight.val().numpy())(copy.deepcopy(model)),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_somebody_else_looks_at_stays(name: str) -> None:
    run, plain = px.compile(step, donate=GIVEN), px.compile(step)
    expected, other = trained(plain, steps=2)
    model, optimizer = trained(run, steps=2)
    look = HOLDERS[name](model)
    before = np.array(look())
    for _ in range(2):
        model, _ = run(model, optimizer, 0.01, data())
        expected, _ = plain(expected, other, 0.01, data())
    np.testing.assert_array_equal(look(), before)
    for a, b in zip(values(model), values(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_states_that_somebody_looks_at_stay() -> None:
    run = px.compile(step, donate=GIVEN)
    model, optimizer = trained(run, steps=2)
    id = model.weight.id
    held, record = optimizer.states[id]["moment_1"], optimizer.into_record()
    before = np.array(held.numpy())
    run(model, optimizer, 0.01, data())
    assert (optimizer.states[id]["moment_1"].numpy() != before).any()
    optimizer.load_record(record)
    for moment in (held.numpy(), optimizer.states[id]["moment_1"].source()):
        np.testing.assert_array_equal(moment, before)


def test_memory_that_is_not_pytorchs_is_not_written_to() -> None:
    array = rng.normal(size=(1000, 1100)).astype(np.float32)
    before = array.copy()

    def doubled(model: Any) -> Any:
        return model.map(lambda _, param: param.holding(param.val() * 2.0))

    model = nn.Linear(1000, 1100, bias=False).init(0).to_device(TAPE)
    model.weight.set(px.tensor(array, device=TAPE))
    run = px.compile(doubled, donate="model")
    for factor in (2.0, 4.0):
        model = run(model)
        np.testing.assert_array_equal(array, before)
        np.testing.assert_array_equal(copy.deepcopy(model).weight.val().numpy(), before * factor)


@pytest.mark.parametrize("rows", [None, slice(2, 5)], ids=["all of it", "a view"])
@pytest.mark.parametrize("which", ["old", "new"])
def test_a_value_that_is_returned_stays_as_it_is(which: str, rows: Any) -> None:
    def showing(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
        after, _ = step(model, optimizer, lr, x)
        weight = (model if which == "old" else after).weight.val()
        return after, weight if rows is None else weight[rows]

    run = px.compile(showing, donate=GIVEN)
    model, optimizer, shown = linear(), OPTIMIZERS["adamw"].init(), list[Any]()
    for _ in range(4):
        before = np.array(copy.deepcopy(model).weight.val().numpy())
        model, weight = run(model, optimizer, 0.01, data())
        expected = before if which == "old" else np.array(copy.deepcopy(model).weight.val().numpy())
        shown.append((weight, expected if rows is None else expected[rows]))
        for tensor, array in shown:
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_what_is_used_up_says_so() -> None:
    run = px.compile(step, donate=GIVEN)
    old = linear()
    model, optimizer = old, OPTIMIZERS["adamw"].init()
    model, _ = run(model, optimizer, 0.01, data())
    again, _ = run(model, optimizer, 0.01, data())
    for used in (old, model):  # with its fields, and without
        for use in (
            lambda used=used: used(data()),
            lambda used=used: run(used, optimizer, 0.01, data()),
            lambda used=used: px.compile(lambda m, x: m(x))(used, data()),
            lambda used=used: used.into_record(),
        ):
            with pytest.raises(
                DonatedError, match=r"`weight` was donated to an earlier call of step, as its argument m"
            ):
                use()
        assert "donated and used up" in repr(used) and used.weight.shape == (WIDE, 1000)
        assert used.weight.device == TAPE and used.weight.kind is px.Float
    assert values(again)


def test_small_arrays_are_not_worth_it() -> None:
    run = px.compile(step, donate=GIVEN)
    model = nn.Linear(WIDE, 4, device=TAPE).init(0)
    after, _ = run(model, OPTIMIZERS["adamw"].init(), 0.01, data())
    assert (after.weight.val() != model.weight.val()).any().item()


def test_nothing_is_lost_when_recording_fails() -> None:
    run = px.compile(step, donate=GIVEN)
    model, optimizer = trained(run, steps=2)
    with pytest.raises(px.errors.PhloxError):
        run(model, optimizer, 0.01, px.ones((4, 3), device=TAPE))
    with pytest.raises(CompileError, match="value of a tensor or number is needed"):
        px.compile(lambda model, x: float(model(x).sum()), donate="model")(model, data())
    model, _ = run(model, optimizer, 0.01, data())
    for a, b in zip(values(model), values(trained(px.compile(step), steps=3)[0]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_that_fails_has_used_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise MemoryError("no memory left")

    monkeypatch.setattr(inductor, "compile", lambda graph, flat: failing)
    model, optimizer = linear(), OPTIMIZERS["adamw"].init()
    with pytest.raises(MemoryError):
        px.compile(step, donate=GIVEN)(model, optimizer, 0.01, data())
    with pytest.raises(DonatedError, match="`weight` was donated"):
        model(data())
    with pytest.raises(OptimizerError, match="interrupted while it wrote to its states"):
        _ = optimizer.states


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("looked_at", [False, True])
def test_an_interrupt_waits_and_the_step_is_not_lost(monkeypatch: pytest.MonkeyPatch, looked_at: bool) -> None:
    pressed = list[int]()

    def interrupted(graph: Any, flat: Any) -> Any:
        def run(*arrays: Any) -> Any:
            if pressed:
                signal.raise_signal(pressed.pop())
            return graph.forward(*arrays)

        return run

    monkeypatch.setattr(inductor, "compile", interrupted)
    run = px.compile(step, donate=GIVEN)
    model, optimizer = trained(run, steps=2)
    if looked_at:
        _ = model.weight
    pressed.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(model, optimizer, 0.01, data())
    expected, other = trained(px.compile(step), steps=3)
    for a, b in zip(values(model), values(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    model, _ = run(model, optimizer, 0.01, data())
    expected, _ = px.compile(step)(expected, other, 0.01, data())
    for a, b in zip(values(model), values(expected), strict=True):
        np.testing.assert_array_equal(a, b)


class Recurrent(px.Module):
    """Predictions pack its weights once."""

    def __init__(self) -> None:
        self.lstm = nn.Lstm(32, 400, device=TAPE)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.lstm(x)[0]


def test_what_follows_from_weights_is_found_anew() -> None:
    x = px.tensor(rng.normal(size=(2, 3, 32)).astype(np.float32), device=TAPE)
    run, predict = px.compile(step, donate=GIVEN), px.compile(lambda model, x: model(x))
    model, optimizer = Recurrent().init(0), OPTIMIZERS["sgd"].init()
    found = list[Any]()
    for _ in range(4):
        model, _ = run(model, optimizer, 0.5, x)
        found.append(predict(model, x).numpy())
        np.testing.assert_allclose(found[-1], copy.deepcopy(model)(x).numpy(), rtol=1e-5, atol=1e-6)
    assert all((a != b).any() for a, b in pairwise(found))


def test_several_steps_a_call() -> None:
    expected, _ = trained(px.compile(step), steps=6)
    run = px.compile(step, donate=GIVEN, steps=3)
    model, optimizer = linear(), OPTIMIZERS["adamw"].init()
    for _ in range(2):
        model, _ = run(model, optimizer, 0.01, data())
    for a, b in zip(values(model), values(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_half_precision_with_masters() -> None:
    device = Autodiff(Torch(float="bf16")).device()
    same_given_or_not(lambda: (linear(device), optim.AdamWConfig().init(master_weights=True)), data(device))


def test_one_array_in_two_places() -> None:
    class Tied(px.Module):
        def __init__(self, first: nn.Linear) -> None:
            self.first = first
            self.second = copy.copy(first)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.first(x) + 2.0 * self.second(x)

    same_given_or_not(lambda: (Tied(linear()), OPTIMIZERS["sgd"].init()), data())


# --- many parameters, whose updates are made code of once


def deep(depth: int = 10, wide: int = 300, device: Any = TAPE) -> nn.Sequential:
    layers = [nn.Linear(WIDE, wide, device=device), *[nn.Linear(wide, wide, device=device) for _ in range(depth - 1)]]
    return nn.Sequential([part for layer in layers for part in (layer, nn.Gelu())]).init(0)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of operations of every graph that is compiled."""
    found = list[int]()

    def noted(graph: Any, flat: Any) -> Any:
        found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(inductor, "compile", noted)
    return found


@pytest.mark.covering(1, "wide")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("wide", [300, 30], ids=["large", "small"])
def test_many_updates_are_compiled_once(graphs: list[int], name: str, wide: int) -> None:
    kept, _ = trained(px.compile(step), OPTIMIZERS[name], model=deep(wide=wide))
    assert len(graphs) == 1
    run = px.compile(step, donate=GIVEN)
    given, optimizer = trained(run, OPTIMIZERS[name], model=deep(wide=wide))
    for a, b in zip(values(given), values(kept), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    whole, update, rest = graphs
    assert update < 30 and rest < 0.8 * whole
    (given, _), addresses = run(given, optimizer, 0.01, data()), set[int]()
    for _ in range(3):
        given, _ = run(given, optimizer, 0.01, data())
        addresses.add(given._phlox_pending[1][2].data_ptr())
    assert (len(addresses) == 1) == (wide == 300)


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.usefixtures("graphs")
def test_other_updates_are_what_they_were(name: str) -> None:
    kept, _ = trained(px.compile(step), OTHERS[name], model=deep(4, 600))
    given, _ = trained(px.compile(step, donate=GIVEN), OTHERS[name], model=deep(4, 600))
    for a, b in zip(values(given), values(kept), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_updates_of_several_kinds(graphs: list[int]) -> None:
    biases = optim.Group("**.bias", optimizer=optim.SgdConfig(momentum=0.9))
    same_given_or_not(lambda: (deep(), optim.AdamWConfig(weight_decay=0.1).init(groups=[biases])), data())
    assert len(graphs) == 4  # the whole, weights, biases, and the rest


@pytest.mark.full
def test_gradients_that_are_clipped_together(graphs: list[int]) -> None:
    clipping = optim.GradientClipping.global_norm(0.01)
    same_given_or_not(lambda: (deep(), optim.AdamWConfig().init(grad_clipping=clipping)), data())
    assert len(graphs) == 3


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_pytorchs_compiler_makes_one_update_for_arrays_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, "inductor")
    expected, _ = trained(step, OPTIMIZERS["sgd"], steps=3, model=deep())
    given, _ = trained(px.compile(step, donate=GIVEN), OPTIMIZERS["sgd"], steps=3, model=deep())
    for a, b in zip(values(given), values(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_arrays_that_begin_alike_and_are_written_to_stay_two(graphs: list[int]) -> None:
    """What is computed twice from numbers alone may be computed once, but not the zeros that sums are written to."""

    class Two(px.Module):
        def __init__(self) -> None:
            self.tables = [nn.Embedding(WIDE, 200, device=TAPE) for _ in range(2)]
            self.head = deep(4)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            rows = (x.detach().inner() * 100.0).abs().int() % WIDE
            return self.head(x).mean() + (self.tables[0](rows) * self.tables[1](rows + 1 - 1)).square().mean() * 10.0

    found = list[Any]()
    for run in (step, px.compile(step, donate=GIVEN)):
        model, _ = trained(run, OPTIMIZERS["sgd"], steps=3, model=Two().init(0))
        found.append(values(model))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert len(graphs) == 2


def test_what_a_program_has_not_made_is_copied_once() -> None:
    run, model = px.compile(step, donate=GIVEN), linear()
    given, optimizer = model.weight.val().inner().primitive.data_ptr(), OPTIMIZERS["sgd"].init()
    addresses = [given]
    for _ in range(3):
        model, _ = run(model, optimizer, 0.01, data())
        addresses.append(model._phlox_pending[1][0].data_ptr())
    first, *others = addresses[1:]
    assert first != given and {*others} == {first}
    assert first % 64 == 0


@pytest.mark.parametrize("count", [1, 3])
def test_joined_updates_write_to_copies(count: int) -> None:
    """Also if only one update has these scalars: nothing may write to an argument that is not donated."""
    given = [torch.arange(6.0).reshape(2, 3) + number for number in range(count)]
    before = [x.clone() for x in given]
    parts = [multi_tensor._Part([(True, number)], [number]) for number in range(count)]
    calls = multi_tensor.SharedUpdateCalls([multi_tensor._Call(lambda x: x.mul_(2.0), parts, [0], False)], [], count)
    results = calls.together(given, [])
    for x, old, result in zip(given, before, results, strict=True):
        assert torch.equal(x, old) and torch.equal(result, old * 2.0)
