"""Updates of many parameters at once, in the optimizer's own memory: the same numbers, and nobody sees it."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import optim
from phlox.backend import NumPy, Torch
from phlox.errors import OptimizerError
from phlox.optim.step.multi_tensor import LEAST
from phlox.record import FULL, SafetensorsRecorder
from tests.optim.interference import press_ctrl_c, run_out_of_memory, updates_that

SHAPES = ((300, 200), (7,), (), (200, 150), (0, 3), (41, 5))
assert sum(int(np.prod(shape)) for shape in SHAPES) > LEAST
DEVICES: dict[str, Any] = {
    "numpy": NumPy(), "torch": Torch(), "numpy f64": NumPy(float="f64"), "torch f64": Torch(float="f64"),
    "numpy bf16": NumPy(float="bf16"), "torch f16": Torch(float="f16"),
}  # fmt: skip
ON = pytest.mark.parametrize("place", ["numpy", "torch"])


class Weights(px.Module):
    def __init__(self, device: Any, shapes: Any = SHAPES) -> None:
        rng = np.random.default_rng(0)
        self.weights = [px.Param(px.tensor(rng.normal(size=shape), device=device, kind=px.Float)) for shape in shapes]


class OneByOne(optim.Adam):
    """Adam whose step is another's own, so that it is taken one tensor at a time."""

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return super().step(lr, tensor, grad, state)


def grads(model: Any, number: int) -> optim.GradientsParams:
    rng = np.random.default_rng(100 + number)
    return optim.GradientsParams({
        param.id: px.tensor(rng.normal(size=param.shape), device=param.device, kind=px.Float)
        for param in model.params()
    })  # fmt: skip


def train(model: Any, optimizer: Any, numbers: range) -> Any:
    for number in numbers:
        model = optimizer.step(0.01, model, grads(model, number))
    return model


def values(model: Any) -> list[Any]:
    return [param.val().numpy().copy() for param in model.params()]


def moments(optimizer: Any) -> list[Any]:
    return [state[name].numpy().copy() for state in optimizer.states.values() for name in ("moment_1", "moment_2")]


def equal(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def addresses(optimizer: Any) -> list[int]:
    """Where the first moments are, without the optimizer knowing of the look."""
    arrays = [slot.arrays[0] for slot in optimizer._slots.values()]
    return [x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data for x in arrays if 0 not in x.shape]


@pytest.mark.parametrize("decoupled", [True, False], ids=["adamw", "adam with decay"])
@pytest.mark.parametrize("place", list(DEVICES))
def test_all_at_once_is_one_by_one(place: str, decoupled: bool) -> None:
    config = optim.AdamWConfig(weight_decay=0.1) if decoupled else optim.AdamConfig(weight_decay=0.1)
    together, alone = config.init(), optim.OptimizerAdaptor(OneByOne(config, decoupled=decoupled))
    one, other = Weights(DEVICES[place]), Weights(DEVICES[place])
    one, other = train(one, together, range(6)), train(other, alone, range(6))
    fine: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-15} if "64" in place else {"rtol": 2e-5, "atol": 2e-6}
    tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-3} if "16" in place else fine  # of the last digit
    for a, b in zip(values(one), values(other), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), **tolerance)
    for a, b in zip(moments(together), moments(alone), strict=True):
        np.testing.assert_allclose(a, b, **fine)
    assert {state["time"] for state in together.states.values()} == {6}


@ON
def test_memory_is_used_again_until_somebody_looks(place: str) -> None:
    model, optimizer = Weights(DEVICES[place]), optim.AdamWConfig().init()
    model = train(model, optimizer, range(1))
    where = addresses(optimizer)
    model = train(model, optimizer, range(1, 3))
    assert addresses(optimizer) == where
    held = optimizer.states
    model = train(model, optimizer, range(3, 4))
    assert not set(addresses(optimizer)) & set(where)
    assert held is not None


@ON
@pytest.mark.parametrize("look", ["states", "record", "pack", "copy", "deepcopy", "pickle"])
def test_what_was_handed_out_stays(look: str, place: str) -> None:
    model, optimizer = train_two(place)
    twin_model, twin = train_two(place)
    expected = moments(twin)
    after = values(train(twin_model, twin, range(2, 5)))
    ends = moments(twin)
    names = ("moment_1", "moment_2")
    how: dict[str, Any] = {
        "states": lambda: [state[name] for state in optimizer.states.values() for name in names],
        "record": optimizer.into_record,
        "pack": lambda: optimizer.pack(model.weights[0].device),
        "copy": lambda: copy.copy(optimizer),
        "deepcopy": lambda: copy.deepcopy(optimizer),
        "pickle": lambda: pickle.loads(pickle.dumps(optimizer)),  # noqa: S301  (its own)
    }
    held: Any = how[look]()
    equal(values(train(model, optimizer, range(2, 5))), after)
    if look == "record":
        equal([entry.tensor.read() for entry in held.tensors.values()], expected)
    elif look == "pack":
        equal([state[name].numpy() for state in held.unpack().values() for name in names], expected)
    elif look == "states":
        equal([tensor.numpy() for tensor in held], expected)
    else:
        again = train_two(place)[0]
        for old, new in zip(model.params(), again.params(), strict=True):
            new.set_id(old.id)
        equal(values(train(again, held, range(2, 5))), after)
        equal(moments(held), ends)
    equal(moments(optimizer), ends)


def train_two(place: str) -> tuple[Any, Any]:
    model, optimizer = Weights(DEVICES[place]), optim.AdamWConfig().init()
    return train(model, optimizer, range(2)), optimizer


@ON
def test_old_parameters_and_gradients_stay(place: str) -> None:
    model, optimizer = Weights(DEVICES[place]), optim.AdamWConfig().init()
    models, seen, given, copies = [model], [values(model)], [], []
    for number in range(4):
        step = grads(model, number)
        given.append(step)
        copies.append([tensor.numpy().copy() for _, tensor in step.items()])
        model = optimizer.step(0.01, model, step)
        models.append(model)
        seen.append(values(model))
    for old, before in zip(models, seen, strict=True):
        equal(values(old), before)
    for step, before in zip(given, copies, strict=True):
        equal([tensor.numpy() for _, tensor in step.items()], before)


@ON
def test_two_parameters_of_one_tensor_and_gradients_of_one(place: str) -> None:
    tensor = px.ones((300, 300), device=DEVICES[place])
    twins, alone = Weights(DEVICES[place], ()), Weights(DEVICES[place], ())
    twins.weights = [px.Param(tensor), px.Param(tensor)]
    alone.weights = [px.Param(tensor)]
    one, other = optim.AdamWConfig().init(), optim.AdamWConfig().init()
    for number in range(3):
        grad = tensor * (number + 0.5)
        named = optim.GradientsParams(dict.fromkeys([param.id for param in twins.params()], grad))
        twins = one.step(0.1, twins, named)
        alone = other.step(0.1, alone, optim.GradientsParams({alone.weights[0].id: grad}))
    equal(values(twins), values(alone) * 2)
    np.testing.assert_array_equal(tensor.numpy(), 1.0)


@ON
def test_states_of_a_record_are_not_written_to(place: str, tmp_path: Path) -> None:
    """Mapped files and arrays that others hold: the first step makes memory of its own."""
    model, optimizer = train_two(place)
    recorder = SafetensorsRecorder(precision=FULL)
    path = recorder.save(optimizer.into_record(), tmp_path / "state")
    bytes_before = Path(path).read_bytes()
    in_memory = recorder.from_bytes(recorder.to_bytes(optimizer.into_record()))
    arrays = [entry.tensor.read().copy() for entry in in_memory.tensors.values()]
    expected = values(train(model, optimizer, range(2, 5)))
    for record in (recorder.load(path), in_memory):
        resumed = optim.AdamWConfig().init()
        resumed.load_record(record)
        equal(values(train(model, resumed, range(2, 5))), expected)
    assert Path(path).read_bytes() == bytes_before
    equal([entry.tensor.read() for entry in in_memory.tensors.values()], arrays)


@ON
def test_a_step_that_is_refused_changes_nothing(place: str) -> None:
    model, optimizer = train_two(place)
    before = moments(optimizer)
    model = train(model, optimizer, range(2, 3))  # the states are the optimizer's own again
    where = addresses(optimizer)
    bad = dict(grads(model, 3).items())
    bad[model.weights[-1].id] = px.ones((2,), device=DEVICES[place])
    with pytest.raises(OptimizerError, match=r"weights\.5: the gradient is Float of shape \(2,\)"):
        optimizer.step(0.01, model, optim.GradientsParams(bad))
    assert addresses(optimizer) == where
    other_model, other = train_two(place)
    equal(moments(other), before)
    equal(values(train(model, optimizer, range(3, 4))), values(train(other_model, other, range(2, 4))))


@ON
def test_one_that_is_cut_short_says_so(place: str) -> None:
    model, optimizer = train_two(place)
    record = optimizer.into_record()
    train(model, optimizer, range(2, 3))
    with updates_that(run_out_of_memory, type(DEVICES[place])), pytest.raises(MemoryError):
        train(model, optimizer, range(3, 4))
    for use in (lambda: optimizer.states, optimizer.into_record, lambda: train(model, optimizer, range(3, 4))):
        with pytest.raises(OptimizerError, match="interrupted while it wrote to its states"):
            use()
    assert "6 states" in repr(optimizer)
    optimizer.load_record(record)
    other_model, other = train_two(place)
    equal(values(train(model, optimizer, range(2, 4))), values(train(other_model, other, range(2, 4))))


@ON
@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupt_waits_until_the_states_are_whole(place: str) -> None:
    model, optimizer = train_two(place)
    train(model, optimizer, range(2, 3))
    twin_model, twin = train_two(place)
    train(twin_model, twin, range(2, 3))
    train(twin_model, twin, range(3, 4))
    with updates_that(press_ctrl_c, type(DEVICES[place])), pytest.raises(KeyboardInterrupt):
        train(model, optimizer, range(3, 4))
    equal(moments(optimizer), moments(twin))
    with pytest.raises(KeyboardInterrupt):  # and Ctrl-C is what it was
        signal.raise_signal(signal.SIGINT)


@ON
def test_threads_that_look_while_others_step(place: str) -> None:
    """What a thread is shown is one step's state, whole, and stays."""
    model, optimizer = Weights(DEVICES[place], ((400, 200),)), optim.AdamWConfig().init()
    grad = px.ones((400, 200), device=DEVICES[place])
    named = optim.GradientsParams({model.weights[0].id: grad})
    model = optimizer.step(0.01, model, named)
    seen: list[tuple[int, Any]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            state = optimizer.states[model.weights[0].id]
            seen.append((state["time"], state["moment_1"]))
            del seen[:-50]

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(60):
            model = optimizer.step(0.01, model, named)
    finally:
        ended.set()
        thread.join()
    assert seen
    for time, moment in seen:
        np.testing.assert_allclose(moment.numpy(), 1.0 - 0.9**time, rtol=1e-4)


@ON
def test_optimizers_in_threads_are_independent(place: str) -> None:
    expected = values(train(Weights(DEVICES[place]), optim.AdamWConfig().init(), range(8)))
    found: list[Any] = [None] * 3

    def work(number: int) -> None:
        found[number] = values(train(Weights(DEVICES[place]), optim.AdamWConfig().init(), range(8)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        equal(one, expected)


@ON
def test_parameters_of_several_groups_times_and_devices(place: str) -> None:
    """Those of each group go together; one that thaws late counts for itself; another engine's go apart."""
    model, twin = Weights(DEVICES[place]), Weights(DEVICES[place])
    for one in (model, twin):
        one.weights.append(px.Param(px.ones((5, 5), device=Torch() if place == "numpy" else NumPy())))
    groups = [optim.Group("weights.0", weight_decay=0.0), optim.Group("weights.3", optimizer=optim.SgdConfig())]
    together = optim.AdamWConfig(weight_decay=0.3).init(groups=groups)
    alone = optim.OptimizerAdaptor(
        OneByOne(optim.AdamWConfig(weight_decay=0.3), decoupled=True),
        groups=[
            optim.Group("weights.0", optimizer=OneByOne(optim.AdamWConfig(weight_decay=0.0), decoupled=True)),
            optim.Group("weights.3", optimizer=optim.SgdConfig()),
        ],
    )
    model, twin = model.freeze("weights.5"), twin.freeze("weights.5")
    for number in range(4):
        if number == 2:
            model, twin = model.unfreeze(), twin.unfreeze()
        model, twin = (
            train(one, optimizer, range(number, number + 1)) for one, optimizer in ((model, together), (twin, alone))
        )
    for a, b in zip(values(model), values(twin), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    counts = [together.states[param.id]["time"] for place, param in enumerate(model.params()) if place != 3]
    assert counts == [4, 4, 4, 4, 2, 4]


def test_a_state_that_moves_to_another_engine_and_back(tmp_path: Path) -> None:
    model, optimizer = train_two("numpy")
    twin_model, twin = train_two("numpy")
    model = train(model.to_device(Torch()), optimizer, range(2, 4))
    model = train(model.to_device(NumPy()), optimizer, range(4, 6))
    for a, b in zip(values(model), values(train(twin_model, twin, range(2, 6))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
