"""What accumulates over steps, at half precision: against the same in float64, on every engine, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import OptimizerError
from phlox.optim.state.tree import flatten
from phlox.record import BFLOAT16, HALF, PrecisionSettings, Record, RecordError, SafetensorsRecorder, gather, restore

MAKE: dict[str, Callable[..., Any]] = {"numpy": NumPy, "jax": Jax, "torch": Torch}
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
HALVES = [(engine, element) for engine in MAKE for element in DTYPES]
EVERY = [*HALVES, *[(engine, "f32") for engine in MAKE]]
DOUBLE = NumPy(float="f64")


def how(backends: list[tuple[str, str]]) -> Any:
    """These backends eagerly, and compiled on JAX."""
    ways = [(*one, False) for one in backends] + [(*one, True) for one in backends if one[0] == "jax"]
    ids = ["-".join([engine, element, "compiled" if compiled else "eager"]) for engine, element, compiled in ways]
    return pytest.mark.parametrize(("engine", "element", "compiled"), ways, ids=ids)


def host(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.numpy(), np.float64)


class Weights(px.Module):
    def __init__(self, values: Any, device: Any) -> None:
        self.weight = px.Param(px.tensor(values, device=device))


# --- optimizers

CONFIGS: dict[str, optim.SimpleConfig] = {
    "sgd": optim.SgdConfig(momentum=0.99),
    "adam": optim.AdamConfig(),
    "adamw": optim.AdamWConfig(),
    "amsgrad": optim.AdamConfig(amsgrad=True),
    "adamax": optim.AdaMaxConfig(),
    "nadam": optim.NAdamConfig(),
    "radam": optim.RAdamConfig(),
    "adan": optim.AdanConfig(),
    "adagrad": optim.AdagradConfig(),
    "adadelta": optim.AdadeltaConfig(),
    "rmsprop": optim.RmsPropConfig(alpha=0.999, centered=True, momentum=0.9),
    "lion": optim.LionConfig(),
    "lamb": optim.LambConfig(),
    "adafactor": optim.AdafactorConfig(),
    "muon": optim.MuonConfig(),
    "schedule free": optim.ScheduleFreeAdamWConfig(),
}
GRADS = [np.array([[1.0, 2.0**-8, -1.5], [2.0**-7, -0.75, 2.0]]) * (1.0 + number % 2) for number in range(80)]
"""Of few digits: each is the same at every precision."""


def step_all(models: list[Any], optimizers: list[Any], grad: Any) -> list[Any]:
    return [
        optimizer.step(2.0**-10, model, optim.GradientsParams({model.weight.id: grad}))
        for model, optimizer in zip(models, optimizers, strict=True)
    ]


def trained(backend: Backend, *, masters: bool, compiled: bool = False) -> tuple[list[Any], list[Any]]:
    optimizers: list[Any] = [config.init(master_weights=masters) for config in CONFIGS.values()]
    models: list[Any] = [Weights(GRADS[0] * 0.5, backend) for _ in optimizers]
    run: Callable[..., Any] = px.compile(step_all) if compiled else step_all
    for grad in GRADS:
        models = run(models, optimizers, px.tensor(grad, device=backend))
    return models, optimizers


@pytest.fixture(scope="module")
def exact() -> tuple[list[Any], list[Any]]:
    return trained(DOUBLE, masters=True)


@pytest.mark.every(4)
@how(HALVES)
@pytest.mark.parametrize("masters", [True, False], ids=["masters", "no masters"])
def test_moments_are_those_of_float64(
    masters: bool, engine: str, element: str, compiled: bool, exact: tuple[list[Any], list[Any]]
) -> None:
    backend = MAKE[engine](float=element)
    models, optimizers = trained(backend, masters=masters, compiled=compiled)
    for name, model, optimizer, twin, reference in zip(CONFIGS, models, optimizers, *exact, strict=True):
        state, expected = optimizer.states[model.weight.id], reference.states[twin.weight.id]
        assert hasattr(state, "master") == masters
        found: list[Any] = []
        wanted: list[Any] = []
        flatten(state.state if masters else state, found)
        flatten(expected, wanted)
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            if isinstance(one, px.Tensor):
                assert one.backend is backend.full_precision(), name
                # Without masters, what depends on the weights goes by rounded ones.
                np.testing.assert_allclose(
                    host(one), host(two), rtol=1e-3 if masters else 0.05, atol=1e-12, err_msg=name
                )
        if masters:
            np.testing.assert_allclose(host(state.master), host(twin.weight.val()), rtol=1e-3, err_msg=name)
        assert model.weight.val().backend is backend


@how(HALVES)
def test_a_step_without_masters_is_rounded_once(engine: str, element: str, compiled: bool) -> None:
    """x = -0.1, whose step of 0.3 x is exact in f32."""
    backend = MAKE[engine](float=element)
    run: Callable[..., Any] = px.compile(step_all) if compiled else step_all
    rng = np.random.default_rng(0)
    start, grad = (rng.normal(size=(2, 300)).astype(DTYPES[element]) for _ in range(2))
    optimizer = optim.SgdConfig().init(master_weights=False)
    model = Weights(start, backend)
    run_one: Callable[..., Any] = run
    (after,) = run_one([model], [optimizer], px.tensor(grad, device=backend))
    expected = (start.astype(np.float64) - grad.astype(np.float64) * 2.0**-10).astype(np.float32)
    np.testing.assert_array_equal(host(after.weight.val()), expected.astype(DTYPES[element]).astype(np.float64))


@how([("jax", "f16"), ("jax", "bf16")])
def test_states_of_optax_are_in_f32(engine: str, element: str, compiled: bool) -> None:
    import optax

    results: list[Any] = []
    for backend in (MAKE[engine](float=element), Jax()):
        models: list[Any] = [Weights(GRADS[0] * 0.5, backend)]
        optimizers: list[Any] = [optim.OptaxAdaptor(optax.scale_by_adam())]
        run: Callable[..., Any] = px.compile(step_all) if compiled else step_all
        for grad in GRADS:
            models = run(models, optimizers, px.tensor(grad, device=backend))
        assert models[0].weight.val().backend is backend
        results.append({name: host(x) for name, x in optimizers[0].states[models[0].weight.id].items()})
    assert results[0].keys() == results[1].keys() and len(results[0]) >= 2
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-5, err_msg=name)


# --- averages, sums, statistics


def follow(ema: Any, model: Any) -> None:
    ema.update(model)


@how(HALVES)
def test_averages_move_by_less_than_half_precision_has(engine: str, element: str, compiled: bool) -> None:
    backend = MAKE[engine](float=element)
    run: Callable[..., Any] = px.compile(follow) if compiled else follow
    ema, away = optim.Ema(Weights([1.0, -2.0], backend), decay=0.999), Weights([1.5, -2.5], backend)
    for _ in range(200):
        run(ema, away)
    expected = np.array([1.5, -2.5]) - np.array([0.5, -0.5]) * 0.999**200
    np.testing.assert_allclose(host(ema.masters[0].val()), expected, rtol=1e-5)
    eps = float(ml_dtypes.finfo(DTYPES[element]).eps)
    np.testing.assert_allclose(host(ema.average.weight.val()), expected, rtol=eps)
    assert ema.average.weight.val().backend is backend


@pytest.mark.parametrize("engine", list(MAKE))
def test_an_average_goes_on_from_what_it_is_changed_to_and_at_other_precisions(engine: str) -> None:
    full, half = MAKE[engine](), MAKE[engine](float="bf16")
    ema = optim.Ema(Weights([1.0, 1.0], full), decay=0.999)
    assert not ema.masters
    ema = ema.to_device(half)
    for number in range(1, 4):
        ema.update(Weights([2.0, 2.0], half))
        np.testing.assert_allclose(host(ema.masters[0].val()), 2.0 - 0.999**number, rtol=1e-6)
    back = ema.to_device(full)
    assert back.into_record().paths() == ["average.weight", "updates"] and not back.masters
    np.testing.assert_array_equal(host(back.average.weight.val()), host(ema.average.weight.val()))
    ema.average.weight.set(px.tensor([1.0, 4.0], device=half))
    ema.update(Weights([2.0, 2.0], half))
    np.testing.assert_allclose(host(ema.masters[0].val()), [2.0 - 0.999**4, 4.0 - 0.002], rtol=1e-6)


@pytest.mark.parametrize("engine", list(MAKE))
def test_records_of_averages_fit_every_precision(engine: str, tmp_path: Path) -> None:
    half, full = MAKE[engine](float="bf16"), NumPy()
    ema = optim.Ema(Weights([1.0, 1.0], half), decay=0.999)
    ema.update(Weights([2.0, 3.0], half))
    exact = host(ema.masters[0].val())
    record, path = ema.into_record(), ema.save(tmp_path / "ema", precision=HALF)
    assert record.paths() == ["average.weight", "updates"]
    for backend in (half, full, NumPy(float="f16")):
        for way in ("record", "file", "restored"):
            other = optim.Ema(Weights([0.0, 0.0], backend), decay=0.999)
            if way == "record":
                assert other.load_record(record) is other and other.load_report(record).matches
            elif way == "file":
                assert "loaded" in str(other.load(path))
            else:
                restore(gather(ema=ema), ema=other)
            found = other.masters[0] if backend is not full else other.average.weight
            np.testing.assert_array_equal(host(found.val()), exact)
            assert other.average.weight.id == ema.average.weight.id and other.updates.val().item() == 1
            other.update(Weights([2.0, 3.0], backend))
    for old in ({"average.weight": np.array([1.5, 2.5], np.float16)}, {"average.weight": np.array([1.5, 2.5])}):
        other = optim.Ema(Weights([0.0, 0.0], half)).load_record(Record({**old, "updates": np.array(7)}))
        np.testing.assert_array_equal(host(other.masters[0].val()), [1.5, 2.5])
        np.testing.assert_array_equal(host(other.average.weight.val()), [1.5, 2.5])
    other = optim.Ema(Weights([0.0, 0.0], half))
    before = host(other.average.weight.val())
    for wrong in ({"average.weight": np.array([1.5])}, {"weight": np.array([1.5, 2.5])}):
        with pytest.raises(RecordError, match="cannot load the record into Ema"):
            other.load_record(Record({**wrong, "updates": np.array(7)}))
        np.testing.assert_array_equal(host(other.average.weight.val()), before)


def add(accumulator: Any, model: Any, grad: Any) -> None:
    accumulator.add(optim.GradientsParams({model.weight.id: grad}), model)


@how(HALVES)
def test_sums_of_gradients_do_not_saturate(engine: str, element: str, compiled: bool) -> None:
    backend = MAKE[engine](float=element)
    run: Callable[..., Any] = px.compile(add) if compiled else add
    model = Weights([0.0, 0.0], backend)
    accumulator = optim.GradientsAccumulator(model)
    for _ in range(600):  # the sum of the second one is beyond f16
        run(accumulator, model, px.tensor([1.0, 2.0**14], device=backend))
    taken = accumulator.take(model).get(model.weight.id)
    assert taken is not None and taken.backend is backend.full_precision()
    np.testing.assert_allclose(host(taken), [1.0, 2.0**14], rtol=1e-6)


def normalise(layer: Any, x: Any) -> Any:
    return layer(x)


@how(EVERY)
def test_running_statistics_are_those_of_the_batches(engine: str, element: str, compiled: bool) -> None:
    backend = MAKE[engine](float=element)
    x = np.array([[9.0, 300.0], [11.0, -300.0], [10.0, 30.0]])  # squares of the second are beyond f16
    layer = nn.BatchNorm(2, momentum=0.01, device=Autodiff(backend).device()).train()
    assert layer.running_mean is not None and layer.running_var is not None
    run: Callable[..., Any] = px.compile(normalise) if compiled else normalise
    data = px.Tensor.from_inner(px.tensor(x, device=backend))
    steps = 400
    for _ in range(steps):
        run(layer, data)
    left = 0.99**steps
    mean, var = x.mean(0), x.var(0, ddof=1)
    np.testing.assert_allclose(host(layer.running_mean.val()), mean * (1 - left), rtol=1e-4)
    np.testing.assert_allclose(host(layer.running_var.val()), var * (1 - left) + left, rtol=1e-4)
    found = host(layer.valid()(px.tensor(x, device=backend)))
    expected = (x - mean * (1 - left)) / np.sqrt(var * (1 - left) + left + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


# --- gradients that are clipped, skipped, scaled


def clipped(grads: list[Any], kind: str, limit: float) -> list[Any]:
    params = optim.GradientsParams({px.module.ParamId(str(n)): grad for n, grad in enumerate(grads)})
    clipping = {
        "norm": optim.GradientClipping.norm,
        "global": optim.GradientClipping.global_norm,
    }[kind](limit)
    return [params.norm(), *[x for _, x in clipping.of_all(params).items()]]


@how(EVERY)
@pytest.mark.parametrize("kind", ["norm", "global"])
def test_norms_whose_squares_do_not_fit(kind: str, engine: str, element: str, compiled: bool) -> None:
    backend = MAKE[engine](float=element)

    def run_all(every: list[list[Any]]) -> list[list[Any]]:
        return [clipped(grads, kind, 0.5) for grads in every]

    run: Callable[..., Any] = px.compile(run_all) if compiled else run_all
    scales = [6e4, 300.0, 1.0, 0.0, 1e-4] if element == "f16" else [1e38, 1e25, 1e-25, 1e-30, 1.0, 0.0]
    arrays = [[np.array([0.6, -0.3, 0.0]) * scale, np.array([[0.5]]) * scale] for scale in scales]
    arrays = [[x.astype(DTYPES.get(element, np.float32)).astype(np.float64) for x in pair] for pair in arrays]
    results = run([[px.tensor(x, device=backend) for x in pair] for pair in arrays])
    for pair, (norm, *found) in zip(arrays, results, strict=True):
        norms = [np.linalg.norm(x) for x in pair]
        together = math.hypot(*norms)
        np.testing.assert_allclose(host(norm), together, rtol=1e-5)
        for x, got, own in zip(pair, found, norms, strict=True):
            size = own if kind == "norm" else together
            np.testing.assert_allclose(host(got), x * min(1.0, 0.5 / size if size else 1.0), rtol=1e-5)


CLIPPINGS = {
    "none": None,
    "value": optim.GradientClipping.value(1.0),
    "norm": optim.GradientClipping.norm(1.0),
    "global": optim.GradientClipping.global_norm(1.0),
}


@how(EVERY)
def test_what_is_not_finite_is_seen_however_gradients_come(engine: str, element: str, compiled: bool) -> None:
    """Clipped in any way, unscaled, added up, in groups."""
    backend = MAKE[engine](float=element)
    groups = [optim.Group("weight", lr_factor=0.5)]
    optimizers: list[Any] = [
        optim.SgdConfig().init(grad_clipping=clipping, skip_nonfinite=True, groups=group)
        for clipping in CLIPPINGS.values()
        for group in ((), groups)
    ]

    def step(models: list[Any], optimizers: list[Any], accumulator: Any, scaler: Any, grad: Any) -> list[Any]:
        found: list[Any] = []
        for model, optimizer in zip(models, optimizers, strict=True):
            given = optim.GradientsParams({model.weight.id: grad})
            accumulator.add(scaler.unscaled(given), model)
            accumulator.add(scaler.unscaled(given), model)
            found.append(optimizer.step(0.1, model, accumulator.take(model)))
        return found

    run: Callable[..., Any] = px.compile(step) if compiled else step
    ids = Weights([1.0, 2.0], backend)
    models: list[Any] = [ids.map(lambda path, param: param.map(lambda x: x * 1.0)) for _ in optimizers]
    accumulator, scaler = optim.GradientsAccumulator(ids), optim.LossScaler(device=backend)
    with np.errstate(all="ignore"):
        for bad in (math.inf, -math.inf, math.nan):
            after = run(models, optimizers, accumulator, scaler, px.tensor([bad, 1.0], device=backend))
            for model in after:
                np.testing.assert_array_equal(host(model.weight.val()), [1.0, 2.0])
        for model in run(models, optimizers, accumulator, scaler, px.tensor([2.0**10, 1.0], device=backend)):
            assert host(model.weight.val())[0] < 1.0


@how(EVERY)
def test_the_scale_never_reaches_zero(engine: str, element: str, compiled: bool) -> None:
    backend = MAKE[engine](float=element)

    def unscaled(scaler: Any, grad: Any) -> Any:
        return scaler.unscaled(optim.GradientsParams({px.module.ParamId("a"): grad})).norm()

    run: Callable[..., Any] = px.compile(unscaled) if compiled else unscaled
    scaler = optim.LossScaler(device=backend, interval=1)
    bad, good = (px.full((2,), value, device=backend) for value in (math.inf, 1.0))
    with np.errstate(all="ignore"):
        for _ in range(200):
            run(scaler, bad)
    assert scaler.scale.val().item() == scaler.minimum == 2.0**-14
    assert run(scaler, good).item() == pytest.approx(2.0**14 * 2**0.5)
    for _ in range(40):  # beyond what f16 has
        run(scaler, good)
    assert scaler.scale.val().item() == 2.0**27
    moved = scaler.to_device(NumPy(float="f16"))
    assert moved.scale.val().item() == 2.0**27


@pytest.mark.parametrize("minimum", [0.0, -1.0, math.nan, 1e6])
def test_minima_that_make_no_sense(minimum: float) -> None:
    with pytest.raises(OptimizerError, match="LossScaler: the minimum lies above zero"):
        optim.LossScaler(minimum=minimum)


# --- moved, saved, loaded


def parts(device: Any) -> dict[str, Any]:
    layer = nn.BatchNorm(2, device=device).init(0)
    return {
        "model": layer,
        "ema": optim.Ema(layer),
        "accumulator": optim.GradientsAccumulator(layer),
        "scaler": optim.LossScaler(2.0**20, device=device),
    }


WIDE = ["model.running_mean", "model.running_var", "ema.average.running_mean", "ema.average.running_var"]


@pytest.mark.parametrize("precision", [HALF, BFLOAT16, PrecisionSettings()], ids=str)
@pytest.mark.parametrize("engine", list(MAKE))
def test_what_accumulates_is_moved_saved_and_loaded_in_f32(engine: str, precision: Any) -> None:
    half = MAKE[engine](float="bf16")
    state = parts(half)
    state["model"].running_var.set(px.tensor([1e5, 1e-9], device=MAKE[engine]()))  # which f16 has not
    recorder = SafetensorsRecorder(precision)
    record = recorder.from_bytes(recorder.to_bytes(gather(state)))
    wide = [
        path
        for path, entry in record.tensors.items()
        if entry.tensor.kind == "float" and entry.tensor.dtype.itemsize == 4
    ]
    sums = [*(f"accumulator.sums.{number}" for number in range(4)), "accumulator.weight"]
    assert set(wide) == {*WIDE, "ema.average.gamma", "ema.average.beta", *sums, "scaler.scale"}
    for target in (NumPy(float="f16"), NumPy(), Jax(float="bf16")):
        again = parts(target)
        restore(record, again)
        moved = {name: part.to_device(target) for name, part in state.items()}
        for found in (again, moved):
            layer = found["model"]
            assert layer.running_var.backend is target.full_precision() and layer.gamma.backend is target
            np.testing.assert_allclose(host(layer.running_var.val()), [1e5, 1e-9], rtol=1e-6)
            assert found["scaler"].scale.val().item() == 2.0**20
    deferred = nn.BatchNorm(2, device=half).to_device(NumPy(float="f16"))
    assert deferred.running_mean is not None and deferred.running_mean.is_deferred
    assert deferred.running_mean.backend is NumPy()


def test_records_of_before_hold_statistics_of_half_precision() -> None:
    record = Record(
        {path: np.array([1.5, 2.5], np.float16) for path in ("gamma", "beta", "running_mean", "running_var")}
    )
    layer = nn.BatchNorm(2, device=NumPy(float="f16")).load_record(record)
    assert layer.running_mean is not None and layer.running_mean.backend is NumPy()
    np.testing.assert_array_equal(host(layer.running_mean.val()), [1.5, 2.5])


def test_a_training_state_at_half_precision_does_not_ruin_the_run() -> None:
    def start() -> dict[str, Any]:
        return {"model": nn.Linear(3, 1).init(0).train(), "optimizer": optim.AdamWConfig().init()}

    def advance(run: dict[str, Any], steps: int) -> float:
        x = px.tensor(np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32))
        x = px.Tensor.from_inner(x)
        loss = math.nan
        for _ in range(steps):
            model = run["model"]
            value = (model(x) * 1e-4).square().mean()  # second moments below what f16 has
            loss = value.item()
            grads = optim.GradientsParams.from_grads(value.backward(), model)
            run["model"] = run["optimizer"].step(1e-3, model, grads)
        return loss

    run = start()
    advance(run, 20)
    record = gather(run)
    losses: list[float] = []
    for precision in (PrecisionSettings(), HALF, BFLOAT16):
        recorder = SafetensorsRecorder(precision)
        # And once more, of a file whose record knows nothing of optimizers but paths.
        loaded = recorder.from_bytes(recorder.to_bytes(recorder.from_bytes(recorder.to_bytes(record))))
        again = start()
        restore(loaded, again)
        losses.append(advance(again, 3))
    np.testing.assert_allclose(losses, losses[0], rtol=0.02)
    with pytest.raises(RecordError, match="PrecisionSettings"):
        PrecisionSettings(state="half")  # pyright: ignore[reportArgumentType]
