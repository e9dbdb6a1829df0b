"""Parameters given away to a step: their memory is used again, and nothing that can be seen changes.

Serves: phlox/module/donated.py
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import DonatedError, OptimizerError
from phlox.record import FULL, SafetensorsRecorder
from tests.optim.interference import press_ctrl_c, run_out_of_memory, updates_that

INNER: dict[str, Any] = {
    "numpy": NumPy(), "torch": Torch(), "numpy f64": NumPy(float="f64"), "torch f64": Torch(float="f64"),
    "jax": Jax(), "numpy bf16": NumPy(float="bf16"), "torch bf16": Torch(float="bf16"), "torch f16": Torch(float="f16"),
}  # fmt: skip
EVERY = pytest.mark.parametrize("place", list(INNER))
IN_PLACE = pytest.mark.parametrize("place", ["numpy", "torch"])
SHAPES = ((300, 200), (7,), (), (200, 150), (0, 3), (41, 5))


class Weights(px.Module):
    """Parameters on the tape, a statistic, and a frozen one."""

    def __init__(self, device: Any, shapes: Any = SHAPES) -> None:
        rng = np.random.default_rng(0)

        def value(shape: Any) -> Any:
            return px.tensor(rng.normal(size=shape), device=Autodiff(device), kind=px.Float)

        self.weights = [px.Param(value(shape)) for shape in shapes]
        self.statistic = px.Param(value((300,)), trained=False)


def grads(model: Any, number: int) -> optim.GradientsParams:
    rng = np.random.default_rng(100 + number)
    return optim.GradientsParams({
        param.id: px.tensor(rng.normal(size=param.shape), device=param.backend.inner, kind=px.Float)
        for param in model.weights
    })  # fmt: skip


def train(model: Any, optimizer: Any, numbers: range) -> Any:
    for number in numbers:
        model = optimizer.step(0.01, model, grads(model, number))
    return model


def values(model: Any) -> list[Any]:
    return [param.val().numpy().copy() for param in model.weights]


def equal(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def places(model: Any) -> list[int]:
    """Where the values are, without keeping hold of them."""
    arrays = [param.leaf for param in model.weights if 0 not in param.shape]
    return [x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr() for x in arrays]


CONFIGS: dict[str, Any] = {
    "adamw": optim.AdamWConfig(), "sgd": optim.SgdConfig(), "momentum": optim.SgdConfig(momentum=0.9),
    "lion": optim.LionConfig(), "lamb": optim.LambConfig(), "schedule-free": optim.ScheduleFreeAdamWConfig(),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CONFIGS))
@EVERY
def test_steps_are_the_same_and_old_modules_are_used_up(place: str, name: str) -> None:
    plain, donating = CONFIGS[name].init(), CONFIGS[name].init(donate=True)
    kept, given = Weights(INNER[place]), Weights(INNER[place])
    for number in range(4):
        before = given
        kept = plain.step(0.01, kept, grads(kept, number))
        given = donating.step(0.01, given, grads(given, number))
        for position, param in enumerate(before.weights):
            with pytest.raises(DonatedError, match=rf"^`weights\.{position}` was donated to step {number + 1} of"):
                param.val()
        assert before.statistic.val().numpy() is not None  # was not stepped
    equal(values(given), values(kept))
    equal(_leaves(donating), _leaves(plain))


def _leaves(optimizer: Any) -> list[Any]:
    return [entry.tensor.read() for entry in optimizer.into_record().tensors.values()]


@IN_PLACE
def test_memory_goes_from_module_to_module(place: str) -> None:
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(1))
    where = places(model)
    for number in range(1, 4):
        model = train(model, optimizer, range(number, number + 1))
        assert places(model) == where
    twin = optim.AdamWConfig().init()
    equal(values(model), values(train(Weights(INNER[place]), twin, range(4))))


@IN_PLACE
def test_with_gradients_of_a_loss_memory_is_used_again(place: str) -> None:
    """The tape keeps hold of no parameter."""
    device = Autodiff(INNER[place])
    model = nn.Sequential(nn.Linear(300, 400), nn.Relu(), nn.Linear(400, 3)).init(seed=0).to_device(device)
    x = px.tensor(np.random.default_rng(0).normal(size=(8, 300)), device=device)
    optimizer = optim.AdamWConfig().init(donate=True)
    seen: list[int] = []
    gc.disable()  # what goes, goes at once
    try:
        for _ in range(4):
            _, given = px.value_and_grad(lambda model: model(x).square().sum())(model)
            model = optimizer.step(0.01, model, given)
            leaf = model.layers[0].weight.leaf
            seen.append(leaf.ctypes.data if isinstance(leaf, np.ndarray) else leaf.data_ptr())
            del leaf
    finally:
        gc.enable()
    assert len(set(seen)) == 1


USES: dict[str, Callable[[Any], Any]] = {
    "val": lambda model: model.weights[0].val(),
    "an operation": lambda model: model.weights[0].val() + 1.0,
    "numpy": lambda model: model.weights[0].val().numpy(),
    "leaf": lambda model: model.weights[0].leaf,
    "record": lambda model: model.into_record(),
    "state dict": lambda model: SafetensorsRecorder(precision=FULL).to_bytes(model.into_record()),
    "valid": lambda model: model.valid().weights[0].val(),
    "device": lambda model: model.to_device(NumPy(float="f64")),
    "pickle": pickle.dumps,
    "copy": lambda model: copy.deepcopy(model).weights[0].val(),
    "compile": lambda model: px.compile(lambda model: model.weights[0].val())(model),
    "gradient": lambda model: px.value_and_grad(lambda model: model.weights[0].val().sum())(model),
    "from_grads": lambda model: optim.GradientsParams.from_grads(
        px.ones((), device=Autodiff(NumPy())).require_grad().backward(), model
    ),
    "step": lambda model: optim.SgdConfig().init().step(
        0.1, model, optim.GradientsParams({param.id: px.ones(param.shape) for param in model.weights})
    ),
    "ema": optim.Ema,
    "init": lambda model: model.init(seed=0).weights[0].val(),
}  # fmt: skip


@pytest.mark.covering(2)
@pytest.mark.parametrize("use", list(USES))
@pytest.mark.parametrize("place", ["numpy", "torch", "jax"])
def test_every_use_says_what_happened(place: str, use: str) -> None:
    model = Weights(INNER[place])
    train(model, optim.AdamWConfig().init(donate=True), range(1))
    with pytest.raises(
        DonatedError, match=r"`weights\.0` was donated to step 1 of OptimizerAdaptor\(Adam\).*result of that"
    ):
        USES[use](model)


def test_jax_functions_too() -> None:
    import jax

    model = Weights(INNER["jax"])
    train(model, optim.AdamWConfig().init(donate=True), range(1))
    for use in (jax.tree.leaves, lambda model: jax.jit(lambda model: model.weights[0].val())(model)):
        with pytest.raises(DonatedError, match=r"`weights\.0` was donated"):
            use(model)


def test_printing_says_so_and_does_not_fail() -> None:
    model = nn.Linear(300, 300).init(seed=0).train()
    _, given = px.value_and_grad(lambda model: model(px.Tensor.from_inner(px.ones((1, 300)))).sum())(model)
    optim.AdamWConfig().init(donate=True).step(0.1, model, given)
    assert repr(model) == "Linear(weight [300, 300] donated and used up, bias [300] donated and used up, training=True)"
    assert "donated and used up" in repr(model.weight) and model.weight.shape == (300, 300)
    assert model.weight.device == px.ones((1,), device=Autodiff(NumPy())).device


def test_a_used_up_module_can_be_loaded_again() -> None:
    model = Weights(INNER["numpy"])
    record = SafetensorsRecorder(precision=FULL).from_bytes(
        SafetensorsRecorder(precision=FULL).to_bytes(model.into_record())
    )
    expected = values(model)
    train(model, optim.AdamWConfig().init(donate=True), range(1))
    equal(values(model.load_record(record)), expected)


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "tensor": lambda model, x: x,
    "detached": lambda model, x: x.detach(),
    "inner": lambda model, x: x.inner(),
    "numpy": lambda model, x: x.numpy(),
    "view": lambda model, x: x.inner().mT,
    "slice": lambda model, x: x.inner()[:, 3:].reshape(-1),
    "valid": lambda model, x: model.valid(),
    "record": lambda model, x: model.into_record(),
    "ema": lambda model, x: optim.Ema(model, decay=0.5),
    "copy": lambda model, x: copy.deepcopy(model),
    "twin": lambda model, x: px.Param(x),
    "dlpack": lambda model, x: np.from_dlpack(x.inner()),
    "tape": lambda model, x: (x * x).sum(),
}


@pytest.mark.parametrize("look", list(LOOKS))
@IN_PLACE
def test_whoever_looks_at_a_value_keeps_it(look: str, place: str) -> None:
    """Seen by nobody else, memory is used again; seen, it is left to those who look."""
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(2))
    expected = values(model)
    held: Any = LOOKS[look](model, model.weights[0].val())
    model = train(model, optimizer, range(2, 4))
    twin = train(Weights(INNER[place]), optim.AdamWConfig().init(), range(4))
    equal(values(model), values(twin))
    first = expected[0]
    match look:
        case "tensor" | "detached" | "inner":
            np.testing.assert_array_equal(held.numpy(), first)
        case "numpy" | "dlpack":
            np.testing.assert_array_equal(held, first)
        case "view":
            np.testing.assert_array_equal(held.numpy(), first.T)
        case "slice":
            np.testing.assert_array_equal(held.numpy(), first[:, 3:].reshape(-1))
        case "record":
            np.testing.assert_array_equal(held["weights.0"].tensor.read(), first)
        case "ema":
            equal(values(held.average), expected)
        case "twin":
            np.testing.assert_array_equal(held.val().numpy(), first)
        case "tape":
            assert held.item() == pytest.approx((first.astype(np.float64) ** 2).sum(), rel=1e-5)
        case _:
            equal(values(held), expected)


@IN_PLACE
def test_a_gradient_that_is_the_parameter(place: str) -> None:
    models = [Weights(INNER[place]), Weights(INNER[place])]
    for number, donate in enumerate((False, True)):
        optimizer = optim.AdamWConfig().init(donate=donate)
        for _ in range(3):
            model = models[number]
            given = {param.id: param.val().inner() for param in model.weights}
            models[number] = optimizer.step(0.01, model, optim.GradientsParams(given))
            del given
    equal(values(models[1]), values(models[0]))


@IN_PLACE
def test_two_parameters_of_one_tensor_and_tied_ones(place: str) -> None:
    found: list[Any] = []
    for donate in (False, True):
        tensor = px.ones((300, 300), device=Autodiff(INNER[place]))
        model = Weights(INNER[place], ())
        tied = px.Param(tensor)
        model.weights = [px.Param(tensor), px.Param(tensor), tied]
        model.again = tied
        model = train(model, optim.AdamWConfig().init(donate=donate), range(3))
        assert model.again is model.weights[2]
        found.append(values(model))
        np.testing.assert_array_equal(tensor.numpy(), 1.0)
    equal(found[1], found[0])


@IN_PLACE
def test_values_of_mapped_files_and_of_odd_layout_are_not_written_to(place: str, tmp_path: Path) -> None:
    recorder = SafetensorsRecorder(precision=FULL)
    path = Path(recorder.save(Weights(INNER[place]).into_record(), tmp_path / "model"))
    before = path.read_bytes()
    expected = values(train(Weights(INNER[place]), optim.AdamWConfig().init(), range(3)))
    model = Weights(INNER[place]).load_record(recorder.load(path))
    equal(values(train(model, optim.AdamWConfig().init(donate=True), range(3))), expected)
    assert path.read_bytes() == before
    odd = Weights(INNER[place])
    turned = odd.weights[0].val().detach().mT.numpy().copy()
    odd.weights[0].set(px.tensor(turned, device=Autodiff(INNER[place])).mT)
    equal(values(train(odd, optim.AdamWConfig().init(donate=True), range(3))), expected)


@IN_PLACE
def test_values_set_from_outside_go_on_from_there(place: str) -> None:
    found: list[Any] = []
    for donate in (False, True):
        optimizer = optim.AdamWConfig().init(donate=donate)
        model = train(Weights(INNER[place]), optimizer, range(2))
        mine = px.ones((300, 200), device=Autodiff(INNER[place]))
        model.weights[0].set(mine)
        model = train(model, optimizer, range(2, 4))
        np.testing.assert_array_equal(mine.numpy(), 1.0)
        found.append(values(model))
    equal(found[1], found[0])


@IN_PLACE
def test_a_step_that_is_refused_uses_nothing_up(place: str) -> None:
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(2))
    expected = values(model)
    bad = dict(grads(model, 2).items())
    bad[model.weights[-1].id] = px.ones((2,), device=INNER[place])
    with pytest.raises(OptimizerError, match=r"weights\.5: the gradient is Float of shape \(2,\)"):
        optimizer.step(0.01, model, optim.GradientsParams(bad))
    equal(values(model), expected)


@pytest.mark.parametrize("steps", [0, 2])
@IN_PLACE
def test_without_memory_nothing_is_used_up(place: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the new values is found before anything is written to, and what was taken is given back."""
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(steps))
    expected, held = values(model), model.weights[3].val().numpy()  # which makes one of them need memory
    calls: list[int] = []
    whole = type(INNER[place]).memory_like

    def short(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == (1 if steps else 3):
            raise MemoryError
        return whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(INNER[place]), "memory_like", short)
        with pytest.raises(MemoryError):
            train(model, optimizer, range(steps, steps + 1))
    equal(values(model), expected)
    shown = held.copy()
    model = train(model, optimizer, range(steps, 4))
    equal(values(model), values(train(Weights(INNER[place]), optim.AdamWConfig().init(), range(4))))
    np.testing.assert_array_equal(held, shown)


@IN_PLACE
def test_one_that_is_cut_short_says_so(place: str) -> None:
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(2))
    with updates_that(run_out_of_memory, type(INNER[place])), pytest.raises(MemoryError):
        train(model, optimizer, range(2, 3))
    with pytest.raises(DonatedError, match=r"weights\.0"):
        model.weights[0].val()
    with pytest.raises(OptimizerError, match="interrupted while it wrote to its states"):
        train(Weights(INNER[place]), optimizer, range(1))


@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupt_waits() -> None:
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER["numpy"]), optimizer, range(2))
    with updates_that(press_ctrl_c, NumPy), pytest.raises(KeyboardInterrupt):
        train(model, optimizer, range(2, 3))
    assert {state["time"] for state in optimizer.states.values()} == {3}  # the step was whole


def test_a_step_that_is_skipped_uses_nothing_up() -> None:
    model = Weights(INNER["numpy"])
    optimizer = optim.AdamWConfig().init(donate=True, skip_nonfinite=True)
    given = optim.GradientsParams({param.id: px.full(param.shape, float("nan")) for param in model.weights})
    assert optimizer.step(0.1, model, given) is model
    assert values(model)


@pytest.mark.parametrize("place", ["jax", "torch"])
def test_in_a_compiled_function_it_means_nothing(place: str) -> None:
    optimizer, plain = optim.AdamWConfig().init(donate=True), optim.AdamWConfig().init()

    def step(model: Any, optimizer: Any, given: Any) -> Any:
        after = optimizer.step(0.01, model, given)
        return after, model.weights[0].val().inner() * 2.0

    run = px.compile(step)
    model, kept = Weights(INNER[place]), Weights(INNER[place])
    for number in range(3):
        (model, _), _ = run(model, optimizer, grads(model, number)), model.weights[0].val()
        kept = plain.step(0.01, kept, grads(kept, number))
    for a, b in zip(values(model), values(kept), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    model = train(model, optimizer, range(3, 5))  # and eagerly it goes on
    kept = train(kept, plain, range(3, 5))
    for a, b in zip(values(model), values(kept), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@IN_PLACE
def test_frozen_parameters_and_those_without_gradients_stay(place: str) -> None:
    model = Weights(INNER[place]).freeze("weights.3")
    optimizer = optim.AdamWConfig().init(donate=True)
    given = dict(grads(model, 0).items())
    del given[model.weights[1].id]
    after = optimizer.step(0.01, model, optim.GradientsParams(given))
    for position in (1, 3):
        np.testing.assert_array_equal(model.weights[position].val().numpy(), after.weights[position].val().numpy())
    with pytest.raises(DonatedError):
        model.weights[0].val()


@IN_PLACE
def test_two_optimizers_of_one_module(place: str) -> None:
    """What one has lent is to the other like any other value."""
    found: list[Any] = []
    for donate in (False, True):
        one, other = optim.AdamWConfig().init(donate=donate), optim.LionConfig().init(donate=donate)
        model = Weights(INNER[place])
        for number in range(3):
            model = train(model, one, range(number, number + 1))
            model = train(model, other, range(10 + number, 11 + number))
        found.append(values(model))
    equal(found[1], found[0])


@IN_PLACE
def test_copies_of_the_optimizer_share_no_memory(place: str) -> None:
    optimizer = optim.AdamWConfig().init(donate=True)
    model = train(Weights(INNER[place]), optimizer, range(2))
    twin, other = copy.deepcopy(optimizer), copy.deepcopy(model)
    for one, two in zip(model.params(), other.params(), strict=True):
        two.set_id(one.id)
    equal(values(train(model, optimizer, range(2, 4))), values(train(other, twin, range(2, 4))))
