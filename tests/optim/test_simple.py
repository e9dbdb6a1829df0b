"""Optimizers whose step is taken block by block, and by engines' kernels: the same as one tensor at a time.

Serves: phlox/backend/contract/update.py, phlox/backend/numpy/update.py, phlox/backend/torch/ops/update.py
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import phlox as px
from phlox import optim
from phlox.backend import Jax, NumPy, Torch
from phlox.backend.contract.update import SHORT, bundles
from phlox.backend.torch import compat
from phlox.optim.step.multi_tensor import LEAST

CONFIGS: dict[str, Any] = {
    "sgd": optim.SgdConfig(), "sgd decay": optim.SgdConfig(weight_decay=0.1, maximize=True),
    "sgd momentum": optim.SgdConfig(momentum=0.9), "sgd nesterov": optim.SgdConfig(momentum=0.9, nesterov=True),
    "sgd dampening": optim.SgdConfig(momentum=0.9, dampening=0.5), "adam": optim.AdamConfig(),
    "adam decay": optim.AdamConfig(weight_decay=0.1), "adam amsgrad": optim.AdamConfig(amsgrad=True),
    "adamw": optim.AdamWConfig(weight_decay=0.1), "adamw maximize": optim.AdamWConfig(maximize=True),
    "adamax": optim.AdaMaxConfig(weight_decay=0.1), "nadam": optim.NAdamConfig(weight_decay=0.1, decoupled=True),
    "radam": optim.RAdamConfig(), "adagrad": optim.AdagradConfig(),
    "adagrad decay": optim.AdagradConfig(lr_decay=0.1, weight_decay=0.1, initial_accumulator=0.3),
    "adadelta": optim.AdadeltaConfig(), "rmsprop": optim.RmsPropConfig(momentum=0.9, centered=True),
    "lion": optim.LionConfig(weight_decay=0.1), "adan": optim.AdanConfig(weight_decay=0.1),
    "schedule-free": optim.ScheduleFreeAdamWConfig(warmup_steps=3, weight_decay=0.1),
}  # fmt: skip
WHOLE = {"lamb": optim.LambConfig(), "adafactor": optim.AdafactorConfig(), "muon": optim.MuonConfig()}
PLACES: dict[str, Any] = {
    "numpy": NumPy(), "numpy f64": NumPy(float="f64"), "numpy f16": NumPy(float="f16"), "torch": Torch(),
    "torch f64": Torch(float="f64"), "torch bf16": Torch(float="bf16"), "jax": Jax(),
}  # fmt: skip
SHAPES = ((307, 211), (1,), (), (201, 149), (0, 3), (41, 5), (1 << 17) + 1)
DONATE = pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])


def shaped(shape: Any) -> tuple[int, ...]:
    return shape if isinstance(shape, tuple) else (shape,)


class Weights(px.Module):
    def __init__(self, device: Any) -> None:
        rng = np.random.default_rng(0)
        self.weights = [
            px.Param(px.tensor(rng.normal(size=shaped(shape)), device=device, kind=px.Float)) for shape in SHAPES
        ]


def grads(model: Any, number: int) -> optim.GradientsParams:
    rng = np.random.default_rng(100 + number)
    return optim.GradientsParams({
        param.id: px.tensor(rng.normal(size=param.shape), device=param.device, kind=px.Float)
        for param in model.weights
    })  # fmt: skip


def one_by_one(simple: Any) -> Any:
    """The same optimizer, which may not be given parts."""
    cls = type(simple)
    twin = object.__new__(type(cls.__name__, (cls,), {"step": lambda self, *arguments: cls.step(self, *arguments)}))
    vars(twin).update(vars(simple))
    assert not twin.elementwise and type(twin).kernel is optim.SimpleOptimizer.kernel
    return twin


def after(simple: Any, place: str, donate: bool, steps: int = 4) -> tuple[list[Any], list[Any], list[Any]]:
    """Parameters, tensors of the states, and numbers of the states."""
    model: Any = Weights(PLACES[place])
    optimizer = optim.OptimizerAdaptor(simple, donate=donate)
    for number in range(steps):
        model = optimizer.step(0.01, model, grads(model, number))
    record = optimizer.into_record()
    tensors = [entry.tensor.read() for entry in record.tensors.values()]
    states = [optimizer.states[param.id] for param in model.weights]
    numbers = [
        [value for value in (state if isinstance(state, dict) else getattr(state, "state", None) or {}).values()
         if isinstance(value, (int, float))]
        for state in states
    ]  # fmt: skip
    return [param.val().numpy().copy() for param in model.weights], tensors, numbers


def test_which_are_elementwise() -> None:
    assert sum(int(np.prod(shaped(shape))) for shape in SHAPES) > LEAST
    assert all(config.simple().elementwise for config in CONFIGS.values())
    assert not any(config.simple().elementwise for config in WHOLE.values())


def has_kernel(name: str, place: str) -> bool:
    simple, backend = CONFIGS[name].simple(), PLACES[place].full_precision()
    found = simple.kernel(0.1, simple.init(px.ones((2,), device=backend)), backend)
    return found is not None and backend.kernel(found.name, found.numbers) is not None


@pytest.mark.covering(1)
@DONATE
@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize("place", list(PLACES))
def test_in_blocks_is_one_tensor_at_a_time(place: str, name: str, donate: bool) -> None:
    simple = CONFIGS[name].simple()
    got, expected = after(simple, place, donate), after(one_by_one(simple), place, False)
    assert got[2] == expected[2]  # numbers of the states advance once a step
    for new, old in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        assert new.dtype == old.dtype and new.shape == old.shape
        if has_kernel(name, place) and "torch" in place:  # which rounds in another order
            wide = {"rtol": 1e-12, "atol": 1e-14} if "64" in place else {"rtol": 2e-5, "atol": 2e-6}
            close: Any = {"rtol": 1e-2, "atol": 1e-2} if "16" in place else wide
            np.testing.assert_allclose(np.asarray(new, np.float64), np.asarray(old, np.float64), **close)
        else:
            np.testing.assert_array_equal(new, old)


@pytest.mark.every(3)
@DONATE
@pytest.mark.parametrize("name", list(WHOLE))
@pytest.mark.parametrize("place", ["numpy", "torch"])
def test_others_are_given_whole_tensors(place: str, name: str, donate: bool) -> None:
    simple = WHOLE[name].simple()
    got, expected = after(simple, place, donate, 2), after(one_by_one(simple), place, False, 2)
    for new, old in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        np.testing.assert_array_equal(new, old)


KERNELS = {
    "_fused_adam_": "adam",
    "_fused_adamw_": "adamw",
    "_fused_sgd_": "sgd momentum",
    "_fused_adagrad_": "adagrad",
}


@pytest.fixture
def looked_up_anew() -> Iterator[None]:
    """The kernels of PyTorch that a test has changed are forgotten after it."""
    yield
    compat.reset()


@pytest.mark.usefixtures("looked_up_anew")
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_torch_is_asked_for_its_kernels(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = getattr(torch, kernel)

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(len(arguments[0]))
        return whole(*arguments, **options)

    monkeypatch.setattr(torch, kernel, counted)
    compat.reset()
    expected = after(CONFIGS[KERNELS[kernel]].simple(), "torch", False)
    assert asked == [len(SHAPES)] * 4
    monkeypatch.delattr(torch, kernel)  # an older torch has none
    compat.reset()
    got = after(CONFIGS[KERNELS[kernel]].simple(), "torch", False)
    for new, old in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)


class Swapping(optim.SimpleOptimizer):
    """Gives back what it was given, in another place, and parts of it."""

    elementwise: ClassVar[bool] = True

    def init(self, tensor: Any) -> Any:
        return {"old": px.zeros_like(tensor), "older": [px.ones_like(tensor)], "grad": px.zeros_like(tensor), "n": 0.5}

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        after = {"old": tensor.reshape(tensor.shape), "older": [state["old"]], "grad": grad, "n": state["n"] * 2.0}
        return state["older"][0] + state["grad"] * lr, after


class Turning(Swapping):
    elementwise = True

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return state["old"], {**state, "old": tensor}


@DONATE
@pytest.mark.parametrize("cls", [Swapping, Turning])
@pytest.mark.parametrize("place", ["numpy", "torch"])
def test_results_that_are_what_was_given(place: str, cls: Any, donate: bool) -> None:
    """They are in the memory that is written to."""
    got, expected = after(cls(), place, donate), after(one_by_one(cls()), place, False)
    assert got[2] == expected[2]
    for new, old in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        np.testing.assert_array_equal(new, old)


class Growing(optim.SimpleOptimizer):
    """Its state gets another form, and not all of it is of the parameter's shape."""

    elementwise: ClassVar[bool] = True

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return tensor - grad * lr, {"seen": px.ones((2,), device=tensor.device) if state is None else state["seen"]}


def test_a_state_of_another_form_is_stepped_alone() -> None:
    got, expected = after(Growing(), "numpy", True), after(one_by_one(Growing()), "numpy", False)
    for new, old in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_step_of_its_own_is_not_taken_for_elementwise() -> None:
    class Norming(optim.Adam):
        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            return super().step(lr, tensor, grad / grad.square().sum().sqrt(), state)

    assert not Norming.elementwise and optim.Adam.elementwise

    class Scaled(optim.Adam):
        """Overrides something else."""

    assert Scaled.elementwise and Scaled.kernel is optim.Adam.kernel


@DONATE
def test_one_that_fails_at_once_changes_nothing(donate: bool) -> None:
    class Failing(optim.SimpleOptimizer):
        elementwise = True
        fails = False

        def init(self, tensor: Any) -> Any:
            return {"moment": px.zeros_like(tensor)}

        def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
            if self.fails:
                raise RuntimeError("no")
            return tensor - grad * lr, {"moment": state["moment"] + grad}

    simple = Failing()
    optimizer, model = optim.OptimizerAdaptor(simple, donate=donate), Weights(NumPy())
    model = optimizer.step(0.01, model, grads(model, 0))
    before = [param.val().numpy().copy() for param in model.weights]
    simple.fails = True
    with pytest.raises(RuntimeError, match="no"):
        optimizer.step(0.01, model, grads(model, 1))
    for param, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(param.val().numpy(), value)
    assert len(optimizer.into_record().tensors) == len(SHAPES)


def test_bundles_are_of_every_element_once() -> None:
    sizes = [3, SHORT, 0, 5 * SHORT + 7, SHORT - 1, 1, 1, SHORT - 2, 9]
    seen = [np.zeros(size, int) for size in sizes]
    for bundle in bundles(sizes, 2 * SHORT):
        total = 0
        for number, start, stop in bundle:
            seen[number][start:stop] += 1
            total += stop - start
        assert 0 < total <= 2 * SHORT
    assert all((one == 1).all() for one in seen)


def test_what_an_optimizer_begins_with_may_be_held_elsewhere() -> None:
    class Shared(optim.SimpleOptimizer):
        elementwise = True
        known: ClassVar[dict[Any, Any]] = {}

        def init(self, tensor: Any) -> Any:
            return {"sum": self.known.setdefault(tensor.shape, px.zeros(tensor.shape, device=tensor.device))}

        def step(self, lr: float, tensor: Any, grad: Any, state: Any) -> Any:
            total = state["sum"] + grad
            return tensor - total * lr, {"sum": total}

    for backend in (NumPy(), Torch()):
        Shared.known.clear()
        model = Weights(backend.device())
        optimizer = optim.OptimizerAdaptor(Shared())
        for number in range(2):
            model = optimizer.step(0.1, model, grads(model, number))
        assert optimizer._slots
        assert not any(tensor.numpy().any() for tensor in Shared.known.values())


def test_the_first_step_has_no_state_twice() -> None:
    device, side = NumPy().device(), 512
    model = Weights(device)
    model.weights = [px.Param(px.ones((side, side), device=device)) for _ in range(8)]
    given, size = grads(model, 0), 8 * side * side * 4
    tracemalloc.start()
    try:
        optim.AdamWConfig().init().step(0.1, model, given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size, "two moments and the new values, and what the kernel computes in"
