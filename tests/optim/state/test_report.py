"""State follows the parameter: through records, surgery, freezing, other backends and precisions; and the report."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import OptimizerError
from phlox.record import DOUBLE, FULL, Record, SafetensorsRecorder, difference, gather, load, save

ENGINES: dict[str, Any] = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}
ON = pytest.mark.parametrize("engine", list(ENGINES))
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
CONFIGS: dict[str, Any] = {
    "adamw": optim.AdamWConfig(),
    "momentum": optim.SgdConfig(momentum=0.9),
    "dampened": optim.SgdConfig(momentum=0.9, dampening=0.1),
    "adafactor": optim.AdafactorConfig(),
    "schedule-free": optim.ScheduleFreeAdamWConfig(),
}


def on_tape(backend: Backend) -> Any:
    return Autodiff(backend).device()


def net(backend: Backend, layers: int = 2) -> Any:
    device = on_tape(backend)
    return nn.Sequential(*[nn.Linear(3, 3, device=device) for _ in range(layers)]).init(seed=3)


def data(model: Any, number: int) -> Any:
    x = np.random.default_rng(number).normal(size=(5, 3)).astype(np.float32)
    return px.tensor(x, device=model.params()[0].device)


def one_step(model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    return optimizer.step(0.05, model, optim.GradientsParams.from_grads(loss.backward(), model))


def train(model: Any, optimizer: Any, numbers: range, compiled: bool) -> Any:
    run: Callable[..., Any] = px.compile(one_step) if compiled else one_step
    for number in numbers:
        model = run(model, optimizer, data(model, number))
    return model


def values(model: Any) -> dict[str, Any]:
    return {path: param.val().numpy() for path, param in model.named_params()}


def saved_and_loaded(path: Path, thing: Any, precision: Any = FULL) -> Any:
    recorder = SafetensorsRecorder(precision=precision)
    return recorder.load(recorder.save(thing.into_record(), path))


@pytest.mark.covering(1)
@COMPILED
@ON
@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize("target", ["itself", "another"])
def test_resuming_goes_on(target: str, name: str, engine: str, compiled: bool, tmp_path: Path) -> None:
    config, names = CONFIGS[name], list(ENGINES)
    there = engine if target == "itself" else names[(names.index(engine) + 1) % len(names)]
    optimizer = config.init()
    model = train(net(ENGINES[engine]), optimizer, range(4), compiled)
    record, weights = (saved_and_loaded(tmp_path / f"{n}", x) for n, x in (("state", optimizer), ("weights", model)))
    expected = values(train(model, optimizer, range(4, 8), compiled))
    resumed, other = config.init(), net(ENGINES[there]).load_record(weights)
    resumed.load_record(record)
    found = values(train(other, resumed, range(4, 8), compiled))
    for path, value in expected.items():
        if target == "itself":
            np.testing.assert_array_equal(found[path], value, err_msg=path)
        else:
            np.testing.assert_allclose(found[path], value, rtol=1e-6, atol=1e-6, err_msg=path)


@pytest.mark.covering(1)
@COMPILED
@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize(("one", "other"), [("numpy", "torch"), ("torch", "numpy")], ids=["to torch", "to numpy"])
def test_in_f64_resuming_elsewhere_goes_on_to_the_last_digits(
    one: str, other: str, name: str, compiled: bool, tmp_path: Path
) -> None:
    """What f32 rounds away in a few steps is seen here: state, weights, and many steps."""
    backends: dict[str, Any] = {"numpy": NumPy(float="f64"), "torch": Torch(float="f64")}
    compiles = [compiled and engine == "torch" for engine in (one, other)]
    optimizer = CONFIGS[name].init()
    model = train(net(backends[one]), optimizer, range(4), compiles[0])
    record = saved_and_loaded(tmp_path / "state", optimizer, DOUBLE)
    weights = saved_and_loaded(tmp_path / "weights", model, DOUBLE)
    resumed, there = CONFIGS[name].init(), net(backends[other]).load_record(weights)
    resumed.load_record(record)
    expected = values(train(model, optimizer, range(4, 24), compiles[0]))
    found = values(train(there, resumed, range(4, 24), compiles[1]))
    for path, value in expected.items():
        assert found[path].dtype == np.float64
        np.testing.assert_allclose(found[path], value, rtol=1e-12, atol=1e-12, err_msg=path)
    one_record, other_record = optimizer.into_record(), resumed.into_record()
    assert list(one_record.tensors) == list(other_record.tensors) and one_record.tensors
    for path, entry in one_record.tensors.items():
        got = other_record.tensors[path].tensor.read()
        np.testing.assert_allclose(got, entry.tensor.read(), rtol=1e-11, atol=1e-12, err_msg=path)


@COMPILED
@ON
def test_layers_may_be_inserted_removed_and_moved(engine: str, compiled: bool) -> None:
    """The moments of those that remain are those of a model in which nothing was changed."""
    optimizer, twin = optim.AdamWConfig().init(), optim.AdamWConfig().init()
    model = train(net(ENGINES[engine], 3), optimizer, range(3), compiled)
    first, gone, last = model.layers
    ids = [param.id for param in gone.params()]
    moments = {param.id: optimizer.states[param.id]["moment_1"].numpy().copy() for param in model.params()}
    new = nn.Linear(3, 3, device=on_tape(ENGINES[engine])).init(9)
    model.layers[:] = [last, new, first]
    report = optimizer.report(model)
    assert report.kept == ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
    assert report.anew == ["layers.1.weight", "layers.1.bias"]
    assert report.orphans == ids and not report.ok
    assert optimizer.states.keys() == moments.keys()

    # What the same parameters would come to if their optimizer had known nothing else.
    kept = {id: optimizer.states[id] for id in moments if id not in ids}
    twin.load_record(optimizer.into_record())
    assert twin.forget(model).orphans == ids
    assert twin.states.keys() == kept.keys()
    other = copy.deepcopy(model)
    model, other = (train(m, o, range(3, 5), compiled) for m, o in ((model, optimizer), (other, twin)))
    for path, param in model.named_params():
        np.testing.assert_array_equal(param.val().numpy(), values(other)[path])
        assert optimizer.states[param.id]["time"] == (2 if param in model.layers[1].params() else 5), path
    for id in ids:  # those that are not there any more wait, whatever is compiled
        np.testing.assert_array_equal(optimizer.states[id]["moment_1"].numpy(), moments[id])
    assert not set(ids) & set(twin.states)
    model.layers.append(gone)
    model = train(model, optimizer, range(5, 6), compiled)
    assert [optimizer.states[id]["time"] for id in ids] == [4, 4]
    assert optimizer.report(model).ok


@COMPILED
@ON
def test_frozen_parameters_keep_their_state(engine: str, compiled: bool) -> None:
    optimizer = optim.AdamWConfig().init()
    model = train(net(ENGINES[engine]), optimizer, range(2), compiled)
    id = model.layers[0].weight.id
    before = optimizer.states[id]["moment_1"].numpy().copy()
    model = train(model.freeze("layers.0.weight"), optimizer, range(2, 4), compiled)
    np.testing.assert_array_equal(optimizer.states[id]["moment_1"].numpy(), before)
    report = optimizer.report(model)
    assert report.frozen == ["layers.0.weight"] and len(report.kept) == 3 and report.ok
    model = train(model.unfreeze(), optimizer, range(4, 6), compiled)
    assert [optimizer.states[param.id]["time"] for param in model.params()] == [4, 6, 6, 6]


@COMPILED
@ON
def test_one_that_was_frozen_from_the_start_begins_when_it_thaws(engine: str, compiled: bool) -> None:
    optimizer = optim.AdamWConfig().init()
    model = train(net(ENGINES[engine]).freeze("layers.1"), optimizer, range(2), compiled)
    assert optimizer.report(model).kept == ["layers.0.weight", "layers.0.bias"]
    assert optimizer.report(model).frozen == []
    model = train(model.unfreeze(), optimizer, range(2, 3), compiled)
    assert [optimizer.states[param.id]["time"] for param in model.params()] == [3, 3, 1, 1]


@pytest.mark.every(5)
@COMPILED
@ON
@pytest.mark.parametrize("name", list(CONFIGS))
def test_of_another_shape_it_begins_anew(name: str, engine: str, compiled: bool) -> None:
    optimizer = CONFIGS[name].init()
    model = train(net(ENGINES[engine]), optimizer, range(2), compiled)
    head = model.layers[1]
    wide = np.zeros((3, 7), np.float32)
    wide[:, :3] = head.weight.val().numpy()
    head.weight = px.Param(px.tensor(wide, device=on_tape(ENGINES[engine])), id=head.weight.id)
    head.bias = None
    report = optimizer.report(model)
    assert list(report.misshapen) == ["layers.1.weight"]
    assert report.misshapen["layers.1.weight"] == "it was of shape (3, 3), and the parameter is of (3, 7)"
    loaded = CONFIGS[name].init()
    loaded.load_record(optimizer.into_record())
    fresh, twin = CONFIGS[name].init(), copy.deepcopy(model)
    model = train(model, optimizer, range(2, 4), compiled)
    twin = train(twin.freeze("layers.0"), fresh, range(2, 3), compiled)
    state = optimizer.states[model.layers[1].weight.id]
    if "time" in state:
        assert state["time"] == 2
    shapes = [part.shape for part in state.values() if isinstance(part, px.Tensor)]
    assert shapes == [(3, 1), (1, 7)] if name == "adafactor" else set(shapes) == {(3, 7)}
    if name != "dampened":  # whose state, begun with None, may have any shape
        assert list(loaded.report(model).misshapen) == ["layers.1.weight"]
        # One that comes from a record is not thrown away unasked.
        with pytest.raises(OptimizerError, match=r"layers\.1\.weight.*to start its state anew, call optimizer\.forget"):
            train(model, loaded, range(1), compiled)
        loaded.forget(model)
        assert loaded.report(model).anew == ["layers.1.weight"]
        train(model, loaded, range(1), compiled)


@COMPILED
@ON
def test_precision_may_change(engine: str, compiled: bool) -> None:
    """From f32 to f64 and back; what f32 has found goes on."""
    make: Callable[..., Any] = type(ENGINES[engine])
    optimizer, reference = optim.AdamWConfig().init(), optim.AdamWConfig().init()
    model = twin = net(ENGINES[engine])
    for start, element in ((0, "f32"), (2, "f64"), (4, "f32")):
        model = model.to_device(on_tape(make(float=element)))
        model = train(model, optimizer, range(start, start + 2), compiled)
        assert optimizer.report(model).ok
        for param in model.params():
            assert optimizer.states[param.id]["moment_1"].backend is make(float=element)
            assert optimizer.states[param.id]["time"] == start + 2
    twin = train(twin, reference, range(6), compiled)
    for path, value in values(twin).items():
        np.testing.assert_allclose(values(model)[path], value, rtol=1e-4, atol=1e-6)


@COMPILED
@ON
def test_tied_parameters_have_one_state(engine: str, compiled: bool) -> None:
    class Tied(px.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(3, 3, bias=False, device=on_tape(ENGINES[engine]))
            self.b = self.a.weight

        def __call__(self, x: Any) -> Any:
            return self.a(x) @ self.b.val()

    model, optimizer = Tied().init(0), optim.AdamWConfig().init()
    model = train(model, optimizer, range(3), compiled)
    assert model.b is model.a.weight
    assert [state["time"] for state in optimizer.states.values()] == [3]
    assert optimizer.report(model).kept == ["a.weight"]


def test_two_groups_and_their_states() -> None:
    """A parameter that goes to a group with another optimizer has another one's state, and the step says so."""
    groups = [optim.Group("layers.1", optimizer=optim.SgdConfig(momentum=0.9))]
    optimizer = optim.AdamWConfig().init(groups=groups)
    model = train(net(NumPy()), optimizer, range(2), False)
    assert optimizer.report(model).ok
    resumed = optim.AdamWConfig().init(groups=groups)
    resumed.load_record(optimizer.into_record())
    assert resumed.report(model).ok
    train(model, resumed, range(2), False)
    other = optim.AdamWConfig().init(groups=[optim.Group("layers.0", optimizer=optim.SgdConfig(momentum=0.9))])
    other.load_record(optimizer.into_record())
    assert list(other.report(model).misshapen) == [path for path, _ in model.named_params()]
    with pytest.raises(OptimizerError, match=r"layers\.0\.weight: the state that was loaded is not one of Sgd"):
        train(model, other, range(1), False)


def test_the_page() -> None:
    optimizer, model = optim.AdamWConfig().init(), net(NumPy(), 1)
    assert str(optimizer.report(model)) == (
        "0 of 2 parameters have a usable state: not ok\n  to start anew: layers.0.weight, layers.0.bias"
    )
    model = train(model, optimizer, range(1), False)
    id = model.layers[0].bias.id
    model.layers[0].bias = None
    model.layers[0].weight = px.Param(px.ones((3, 1)), id=model.layers[0].weight.id)
    assert str(optimizer.report(model)) == (
        "0 of 1 parameters have a usable state: not ok\n"
        "  of another shape: layers.0.weight: it was of shape (3, 3), and the parameter is of (3, 1)\n"
        f"  states of parameters that are not in the module (`forget` drops them): {id}"
    )
    many = net(NumPy(), 6)
    assert str(optim.SgdConfig().init().report(many)).endswith("layers.3.weight, layers.3.bias and 4 more")
    assert optimizer.forget(model).orphans == [id] and not optimizer.states
    assert str(optimizer.report(nn.Sequential())) == "no parameters to be stepped: ok"


@pytest.mark.parametrize("name", CONFIGS)
def test_two_runs_of_one_seed_are_compared_entry_by_entry(name: str, tmp_path: Path) -> None:
    def run(seed: int, file: str) -> Record:
        px.random.seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1)).train()
        optimizer = CONFIGS[name].init()
        for number in range(3):
            model = one_step(model, optimizer, data(model, number))
        return load(save(gather(model=model, optimizer=optimizer), tmp_path / file))

    first, second, other = run(0, "first"), run(0, "second"), run(1, "other")
    found = difference(first, second)
    assert found.ok and found.equal == len(first) and not found.identical
    assert not (found.only_first or found.only_second) and len(found.ids) == 6
    alone = difference(first.select("optimizer"), second.select("optimizer"))
    assert alone.ok and alone.equal == len(first.select("optimizer"))
    found = difference(first, other)
    assert found.tensors and not (found.only_first or found.only_second)
