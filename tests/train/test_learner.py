"""The learner's public methods, against loops by hand and NumPy.

Serves: phlox/train/learner.py, phlox/train/control.py, phlox/train/arguments.py, phlox/train/step/functions.py
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import CompileError, DataError, KindError, RunError, ShapeError
from phlox.train import Learner, MetricInputs, NanGuard

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]]).astype(np.float32)
LABELS = (X.sum(axis=1) > 0).astype(np.int64) + (X[:, 0] > 1)
ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}


def linear(engine: str = "numpy", seed: int = 1) -> nn.Linear:
    return nn.Linear(3, 1).init(seed, device=ENGINES[engine].device())


def learner(engine: str = "numpy", lr: Any = 0.1, **options: Any) -> Learner[Any]:
    return Learner(linear(engine), optim.SgdConfig(), lr, nn.mse_loss, **options)


def loader(size: int = 16, **options: Any) -> Loader:
    return Loader((X, Y), size, **options)


def arrays(model: Any) -> dict[str, Any]:
    return {path: np.array(param.val().numpy()) for path, param in model.named_params()}


def assert_same(one: Any, other: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    first, second = arrays(one), arrays(other)
    assert first.keys() == second.keys()
    for path, array in first.items():
        np.testing.assert_allclose(array, second[path], rtol=rtol, atol=atol, err_msg=path)


def by_hand(model: Any, optimizer: Any, lr: float, batches: Any, loss: Callable[..., Any], every: int = 1) -> Any:
    """The loop that a learner stands for, without it."""
    place = model.params()[0].device
    model = copy.deepcopy(model).train()
    for x, y in batches:
        value = loss(model, px.tensor(x, device=place), px.tensor(y, device=place))
        grads = optim.GradientsParams.from_grads(value.backward(), model)
        model = optimizer.step(lr, model, grads)
    return model


# --- a step


@pytest.mark.parametrize("engine", ENGINES)
def test_sgd_against_numpy(engine: str) -> None:
    trained = learner(engine)
    w, b = (array.astype(np.float64) for array in arrays(trained.model).values())
    history = trained.fit(loader(), epochs=3, progress=False)
    for report in history:
        total = 0.0
        for start in range(0, 50, 16):
            x, y = X[start : start + 16].astype(np.float64), Y[start : start + 16]
            error = x @ w + b - y
            total += (error**2).sum()
            w, b = w - 0.1 * 2 * x.T @ error / len(x), b - 0.1 * 2 * error.mean(axis=0)
        assert report.train["loss"] == pytest.approx(total / 50, rel=1e-5)  # each row counts alike
    for array, expected in zip(arrays(trained.model).values(), (w, b), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_metrics_of_uneven_batches_are_those_of_all_rows(engine: str) -> None:
    model = nn.Linear(3, 3).init(0, device=ENGINES[engine].device())
    trained = Learner(
        model, optim.SgdConfig(), 0.0, nn.cross_entropy_loss,
        metrics={
            "accuracy": metrics.Accuracy(),
            "both": metrics.Collection({"f1": metrics.F1(num_classes=3), "auroc": metrics.Auroc(num_classes=3)}),
            "own": lambda output, labels: (output.argmax(axis=-1) == labels).float().mean(),
        },
    )  # fmt: skip
    data = Loader((X, LABELS), 16)
    report = trained.fit(data, epochs=1, validation=data, progress=False)[-1]
    logits = X @ arrays(model)["weight"] + arrays(model)["bias"]
    for values in (report.train, report.validation, trained.evaluate(data)):
        assert values["accuracy"] == pytest.approx((logits.argmax(-1) == LABELS).mean())
        assert values["own"] == pytest.approx(values["accuracy"])
        assert values["both/f1"] == pytest.approx(metrics.F1(num_classes=3)(logits.argmax(-1), LABELS))
        assert values["both/auroc"] == pytest.approx(metrics.Auroc(num_classes=3)(logits, LABELS), abs=1e-6)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_what_a_step_of_ones_own_may_give(engine: str) -> None:
    weights = (np.arange(50) % 2).astype(np.float32)

    def step(model: Any, batch: Any) -> Any:
        output = model(batch["x"])
        inputs = {
            "mae": (output, batch["y"]),
            "weighted": MetricInputs((output[:, 0], batch["y"][:, 0]), batch["w"]),
        }
        return nn.mse_loss(output, batch["y"]), inputs, {"size": output.abs().mean()}

    error = metrics.MeanAbsoluteError()
    trained = Learner(linear(engine), optim.SgdConfig(), 0.0, step=step, metrics={"mae": error, "weighted": error})
    report = trained.fit(Loader({"x": X, "y": Y, "w": weights}, 16), epochs=1, progress=False)[-1]
    model = arrays(trained.model)
    output = X @ model["weight"] + model["bias"]
    assert report.train["mae"] == pytest.approx(np.abs(output - Y).mean(), rel=1e-5)
    assert report.train["weighted"] == pytest.approx(np.abs(output - Y)[weights > 0].mean(), rel=1e-5)
    assert report.train["size"] == pytest.approx(np.abs(output).mean(), rel=1e-5)


def test_several_inputs_are_given_to_the_model_as_arguments() -> None:
    class Sum(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 1)

        def __call__(self, x: Any, shift: Any) -> Any:
            return self.layer(x) + shift

    trained = Learner(Sum(), optim.AdamConfig(), 0.05, nn.mse_loss)
    data = Loader(((X, np.ones_like(Y)), Y), 10)
    assert trained.fit(data, epochs=40, progress=False)[-1].train["loss"] < 1e-2
    assert trained.predict(data).shape == (50, 1)


# --- what goes into a step


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_gradients_of_several_batches_make_the_step_of_one_large_batch(engine: str) -> None:
    large = learner(engine).fit(loader(20, drop_last=True), epochs=2, progress=False)
    accumulated = learner(engine, accumulate=2)
    accumulated.fit(Loader((X[:40], Y[:40]), 10), epochs=2, progress=False)
    whole = learner(engine)
    whole.fit(loader(20, drop_last=True), epochs=2, progress=False)
    assert_same(whole.model, accumulated.model, rtol=1e-5)
    assert (accumulated.step, accumulated.updates, large[-1].step) == (8, 4, 4)


def test_what_is_left_of_an_epoch_is_a_step_too() -> None:
    trained = learner(accumulate=3)
    trained.fit(Loader((X[:40], Y[:40]), 10), epochs=1, progress=False)
    assert trained.updates == 2
    reference = by_hand(linear(), optim.SgdConfig().init(), 0.1, [(X[:30], Y[:30]), (X[30:40], Y[30:40])], _mse)
    assert_same(trained.model, reference, rtol=1e-5)


def _mse(model: Any, x: Any, y: Any) -> Any:
    return nn.mse_loss(model(x), y)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_clipping_and_average_are_those_of_optim(engine: str) -> None:
    clip = optim.GradientClipping.global_norm(0.5)
    trained = learner(engine, clip=clip, ema=0.8)
    trained.fit(loader(10), epochs=2, progress=False)
    model = linear(engine)
    place = model.params()[0].device
    optimizer, model = optim.SgdConfig().init(grad_clipping=clip), model.train()
    ema = optim.Ema(model, decay=0.8)
    for x, y in [*loader(10).epoch(), *loader(10).epoch()]:
        loss = _mse(model, px.tensor(x, device=place), px.tensor(y, device=place))
        model = optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))
        ema.update(model)
    assert_same(trained.model, model, rtol=1e-5)
    assert_same(trained.average, ema.average, rtol=1e-5)
    output = X @ arrays(ema.average)["weight"] + arrays(ema.average)["bias"]
    assert trained.evaluate(loader())["loss"] == pytest.approx(((output - Y) ** 2).mean(), rel=1e-4)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_several_steps_a_call_are_those_steps(engine: str) -> None:
    def trained(steps: int) -> Learner[Any]:
        px.random.seed(3)
        model = nn.Sequential([nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 3)]).init(0, ENGINES[engine].device())
        one = Learner(
            model, optim.AdamWConfig(), optim.CosineAnnealingLr(0.1, num_iters=14), nn.cross_entropy_loss,
            metrics={"accuracy": metrics.Accuracy()}, steps_per_call=steps,
        )  # fmt: skip
        one.fit(Loader((X, LABELS), 8, shuffle=True), epochs=2, progress=False)
        return one

    single, several = trained(1), trained(3)
    assert_same(single.model, several.model, rtol=1e-5, atol=1e-6)
    assert single.step == several.step == 14
    for one, other in zip(single.history, several.history, strict=True):
        assert one.train == pytest.approx(other.train, rel=1e-5)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_carry_goes_from_batch_to_batch_and_begins_anew_with_each_epoch(engine: str) -> None:
    seen: list[float] = []

    def step(model: Any, batch: Any, carry: Any) -> Any:
        x, y = batch
        output = model(x) + carry["mean"]
        return (nn.mse_loss(output, y), None, {"carry": carry["mean"].sum()}), {"mean": output.mean(axis=0)}

    def start(model: Any, batch: Any) -> Any:
        seen.append(float(batch[0].shape[0]))
        return {"mean": px.zeros((1,), device=batch[0].device)}

    trained = Learner(linear(engine), optim.SgdConfig(), 0.05, step=step, carry=start)
    history = trained.fit(Loader((X[:40], Y[:40]), 20), epochs=2, progress=False)
    model = linear().train()
    optimizer = optim.SgdConfig().init()
    for report in history:
        carry, carried = np.zeros(1, np.float32), []
        for first in (0, 20):
            carried.append(carry.item())
            output = model(px.tensor(X[first : first + 20])) + px.tensor(carry)
            grads = nn.mse_loss(output, px.tensor(Y[first : first + 20])).backward()
            model = optimizer.step(0.05, model, optim.GradientsParams.from_grads(grads, model))
            carry = output.numpy().mean(axis=0)
        assert report.train["carry"] == pytest.approx(np.mean(carried), rel=1e-4)
    assert_same(trained.model, model, rtol=1e-4, atol=1e-6)
    assert seen == [20.0, 20.0]


def test_a_carry_of_another_shape_is_refused() -> None:
    def step(model: Any, batch: Any, carry: Any) -> Any:
        output = model(batch[0])
        return nn.mse_loss(output + carry.mean(), batch[1]), output

    trained = Learner(linear(), optim.SgdConfig(), 0.1, step=step, carry=np.zeros((16, 1), np.float32))
    with pytest.raises(RunError, match=r"drop_last=True"):
        trained.fit(loader(), epochs=1, progress=False)


# --- several models


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_two_models_with_an_update_of_ones_own(engine: str) -> None:
    def update(models: Any, optimizers: Any, rates: Any, batch: Any) -> Any:
        x, y = batch
        loss_a, grads = px.value_and_grad(lambda a: nn.mse_loss(a(x), y))(models["a"])
        a = optimizers["a"].step(rates["a"], models["a"], grads)
        loss_b, grads = px.value_and_grad(lambda b: nn.mse_loss(b(x), a(x).detach()))(models["b"])
        b = optimizers["b"].step(rates["b"], models["b"], grads)
        return {"a": a, "b": b}, {"a_loss": loss_a, "b_loss": loss_b}

    models = {"a": linear(engine, 1), "b": linear(engine, 2)}
    trained = Learner(
        models, {"a": optim.AdamConfig(), "b": optim.SgdConfig()},
        {"a": 0.05, "b": optim.LinearLr(0.1, 0.0, num_iters=10)}, update=update,
    )  # fmt: skip
    report = trained.fit(loader(10), epochs=2, progress=False)[-1]
    a, b = (linear(engine, seed).train() for seed in (1, 2))
    first, second, schedule = (
        optim.AdamConfig().init(),
        optim.SgdConfig().init(),
        optim.LinearLr(0.1, 0.0, num_iters=10),
    )
    place = a.params()[0].device
    for x, y in [*loader(10).epoch(), *loader(10).epoch()]:
        x, y = px.tensor(x, device=place), px.tensor(y, device=place)
        loss = nn.mse_loss(a(x), y)
        a = first.step(0.05, a, optim.GradientsParams.from_grads(loss.backward(), a))
        loss = nn.mse_loss(b(x), a(x).detach())
        b = second.step(schedule.step(), b, optim.GradientsParams.from_grads(loss.backward(), b))
    assert_same(trained.model["a"], a, rtol=1e-4, atol=1e-6)
    assert_same(trained.model["b"], b, rtol=1e-4, atol=1e-6)
    assert set(report.train) == {"a_loss", "b_loss"}
    assert report.lr == {"a": 0.05, "b": pytest.approx(0.01)}


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_model_without_an_optimizer_is_a_teacher(engine: str) -> None:
    def step(models: Any, batch: Any) -> Any:
        assert models["teacher"].params()[0].backend.inner is None  # in inference, without a tape
        return nn.mse_loss(models["student"](batch), models["teacher"](batch))

    teacher, student = linear(engine, 1), linear(engine, 2)
    trained = Learner({"teacher": teacher, "student": student}, {"student": optim.AdamConfig()}, 0.1, step=step)
    trained.fit(Loader(X, 10), epochs=24, progress=False)
    assert_same(trained.model["teacher"], teacher)
    assert_same(trained.model["student"], teacher, atol=2e-2)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_lbfgs_minimizes(engine: str) -> None:
    config = optim.LbfgsConfig(line_search="strong_wolfe", max_iter=4)
    trained = Learner(linear(engine), config, loss=nn.mse_loss, metrics={"r2": metrics.R2()})
    history = trained.fit(loader(50), epochs=3, progress=False)
    model, optimizer = linear(engine).train(), config.init()
    place = model.params()[0].device
    x, y = px.tensor(X, device=place), px.tensor(Y, device=place)
    for report in history:
        before = X @ arrays(model)["weight"] + arrays(model)["bias"]
        assert report.train["loss"] == pytest.approx(((before - Y) ** 2).mean(), rel=1e-3, abs=1e-9)
        model = optimizer.minimize(1.0, model, lambda one: nn.mse_loss(one(x), y))
    assert_same(trained.model, model, rtol=1e-3, atol=1e-4)
    assert history[-1].train["r2"] > 0.99


# --- what is the caller's stays the caller's


@pytest.mark.parametrize("engine", ENGINES)
def test_model_optimizer_and_schedule_of_the_caller_stay_as_they_are(engine: str) -> None:
    model, optimizer, schedule = linear(engine), optim.AdamWConfig().init(), optim.LinearLr(0.1, 0.0, num_iters=9)
    before = arrays(model)
    trained = Learner(model, optimizer, schedule, nn.mse_loss, compile=engine != "numpy", ema=0.9)
    trained.fit(loader(drop_last=True), epochs=2, progress=False)
    assert schedule.taken == 0 and not optimizer.states
    for path, array in arrays(model).items():
        np.testing.assert_array_equal(array, before[path])
    assert not np.array_equal(arrays(trained.model)["weight"], before["weight"])
    model(px.tensor(X, device=model.params()[0].device))


def test_a_step_that_fails_takes_nothing_with_it() -> None:
    trained = learner(lr=optim.LinearLr(0.1, 0.0, num_iters=9))
    trained.fit(loader(), epochs=1, progress=False)
    taken, before = trained.schedule.taken, arrays(trained.model)
    with pytest.raises(Exception, match="shape") as error:
        trained.fit(Loader((X[:, :2], Y), 16), epochs=1, progress=False)
    assert any("step 5: batch 0 of epoch 2, rows 0, 1" in note for note in error.value.__notes__)
    assert trained.schedule.taken == taken
    for path, array in arrays(trained.model).items():
        np.testing.assert_array_equal(array, before[path])


# --- prediction


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_predict_gives_all_rows(engine: str) -> None:
    trained = learner(engine)
    expected = X @ arrays(trained.model)["weight"] + arrays(trained.model)["bias"]
    for data in (loader(), Loader(X, 7), Loader((X,), 50)):
        np.testing.assert_allclose(trained.predict(data), expected, rtol=1e-5)
    both = trained.predict(loader(), lambda model, batch: {"twice": model(batch[0]) * 2.0, "x": batch[0]})
    np.testing.assert_allclose(both["twice"], 2 * expected, rtol=1e-5)
    np.testing.assert_array_equal(both["x"], X)


def test_predict_says_how_the_model_was_called() -> None:
    one = Learner(linear(), optim.SgdConfig(), 0.1, step=lambda model, batch: model(batch["x"]).mean())
    with pytest.raises(Exception, match="dict") as error:
        one.predict(Loader({"x": X}, 10))
    assert any("give function=(model, batch)" in note for note in error.value.__notes__)
    assert one.predict(Loader({"x": X}, 10), lambda model, batch: model(batch["x"])).shape == (len(X), 1)


def test_dropout_is_off_where_nothing_is_trained() -> None:
    trained = Learner(nn.Sequential([nn.Dropout(0.9), nn.Linear(3, 1)]), optim.SgdConfig(), 0.1, nn.mse_loss)
    assert trained.evaluate(loader()) == trained.evaluate(loader())


def test_draws_of_others_do_not_change_a_training() -> None:
    def trained(draws: int) -> Any:
        px.random.seed(5)
        model = nn.Sequential([nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)])
        one = Learner(model, optim.SgdConfig(), 0.1, nn.mse_loss)
        px.random.normal((draws + 1,))
        one.fit(loader(), epochs=1, progress=False)
        return one.model

    assert_same(trained(0), trained(3))


# --- arguments


def _two(**options: Any) -> Any:
    return Learner({"a": linear(), "b": linear()}, {"a": optim.SgdConfig()}, 0.1, **options)


def _updating() -> Any:
    """With a step that must not be taken: what is wrong is said before."""
    return Learner(linear(), optim.SgdConfig(), 0.1, update=lambda *_: pytest.fail("a step was taken"))


def _step(model: Any, batch: Any) -> Any:
    return nn.mse_loss(model(batch[0]), batch[1])


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Learner(linear, optim.SgdConfig(), 0.1, nn.mse_loss), "model: give a module"),
    (lambda: Learner({}, optim.SgdConfig(), 0.1, nn.mse_loss), "model: give a module"),
    (lambda: Learner({"a.b": linear()}, {"a.b": optim.SgdConfig()}, 0.1, step=_step), "'a.b' is no name"),
    (lambda: Learner(nn.Relu(), optim.SgdConfig(), 0.1, nn.mse_loss), "has no parameters"),
    (lambda: Learner(linear(), optim.SimpleConfig, 0.1, nn.mse_loss), "optimizer: give a config"),
    (lambda: Learner(linear(), "adam", 0.1, nn.mse_loss), r"got 'adam'; in Phlox: optim\.AdamConfig\(\)"),
    (lambda: Learner(linear(), optim.SgdConfig(), 0.1, "cross_entropy"), "in Phlox: loss=nn.cross_entropy_loss"),  # type: ignore[arg-type]
    (lambda: Learner(nn.Linear, optim.SgdConfig(), 0.1, nn.mse_loss), "the class Linear; create it: Linear"),
    (lambda: Learner(linear(), optim.SgdConfig(), 0.1, nn.mse_loss, precision="half"), "in Phlox: 'f16' or 'bf16'"),  # type: ignore[arg-type]
    (lambda: learner().fit(X, Y), r"write learner\.fit\(Loader\(\(x, y\), batch_size"),  # type: ignore[call-arg]
    (lambda: learner().evaluate(X, Y), r"write learner\.evaluate\(Loader\("),  # type: ignore[call-arg]
    (lambda: Learner(linear(), {"a": optim.SgdConfig()}, 0.1, nn.mse_loss), "there is one model"),
    (lambda: Learner({"a": linear()}, optim.SgdConfig(), 0.1, step=_step), "give a dict by their names"),
    (lambda: Learner({"a": linear()}, {"b": optim.SgdConfig()}, 0.1, step=_step), "there is no model 'b'"),
    (lambda: Learner({"a": linear()}, {}, 0.1, step=_step), "nothing would be trained"),
    (lambda: Learner(linear(), optim.SgdConfig(), None, nn.mse_loss), "lr: give the learning rate"),
    (lambda: Learner(linear(), optim.SgdConfig(), "0.1", nn.mse_loss), "lr: give a number or a schedule"),  # type: ignore[arg-type]
    (lambda: Learner(linear(), optim.SgdConfig(), -0.1, nn.mse_loss), "lr: "),
    (lambda: learner(step=_step), "got loss and step"),
    (lambda: Learner(linear(), optim.SgdConfig(), 0.1), "got none of them"),
    (lambda: Learner(linear(), optim.SgdConfig(), 0.1, step="x"), "step: a function of tensors is needed"),  # type: ignore[arg-type]
    (lambda: Learner(linear(), optim.SgdConfig(), 0.1, nn.MseLoss), "class MseLoss; in Phlox: loss=nn.mse_loss"),
    (lambda: _two(loss=nn.mse_loss), "it is unclear which one to call"),
    (lambda: learner(accumulate=0), "accumulate: a whole number of 1 or more"),
    (lambda: learner(steps_per_call=1.5), "steps_per_call: a whole number"),
    (lambda: learner(steps_per_call=2, accumulate=2), "exclude each other"),
    (lambda: learner(clip=1.0), "clip: give optim.GradientClipping"),
    (lambda: learner(ema=1.0), r"ema: the decay of the average lies in \[0, 1\)"),
    (lambda: learner(metrics={"loss": metrics.Mean()}), "the loss's own name"),
    (lambda: learner(metrics={"accuracy": metrics.Accuracy}), "the class Accuracy"),
    (lambda: learner(metrics=[metrics.Mean()]), "metrics: give a dict by name, such as"),
    (lambda: _two(update=_step, accumulate=2), "it must accumulate, clip and scale"),
    (lambda: Learner(linear(), optim.LbfgsConfig(), loss=nn.mse_loss, accumulate=2), "L-BFGS"),
    (lambda: Learner(linear(), optim.SgdConfig().init(), 0.1, nn.mse_loss, loss_scaling=True), "skip_nonfinite=True"),
    (lambda: learner().fit(loader()), "give a limit"),
    (lambda: learner().fit(loader(), epochs=0), "epochs must be a whole number of 1 or more"),
    (lambda: learner().fit(loader(), epochs=True), "epochs must be a whole number"),
    (lambda: learner().fit(loader(), steps=1.0), "steps must be a whole number"),  # type: ignore[arg-type]
    (lambda: learner().fit(loader(), time=0), "time must be a number of seconds above 0"),
    (lambda: learner().fit((X, Y), epochs=1), r"data: a tuple is not an iterable of batches; give Loader\("),
    (lambda: learner().fit(X, epochs=1), "data: a ndarray is not"),
    (lambda: learner().fit(loader(), epochs=1, validation=[X]), "validation: a list is not"),
    (lambda: learner().fit(loader(), epochs=1, callbacks=[dict]), "instances of Callback, got dict"),  # type: ignore[list-item]
    (lambda: learner().fit(loader(), epochs=1, callbacks=NanGuard()), "callbacks: give a list of them"),  # type: ignore[arg-type]
    (lambda: learner().fit(loader(), epochs=1, config={"lr": 1}), "config is a phlox.Config .* got a dict"),  # type: ignore[arg-type]
    (lambda: learner().fit(loader(), epochs=1, validate_every=0), "validate_every: a whole number"),
    (lambda: learner().fit(loader(), epochs=1, validate_every_steps=0), "validate_every_steps: a whole number"),
    (lambda: learner().fit(Loader(X, 10), epochs=1, progress=False), r"\(input, target\), got a Tensor of shape \(10"),
    (lambda: learner().fit(Loader({"x": X}, 10), epochs=1, progress=False), "got a dict of x"),
    (lambda: _updating().fit(loader(), epochs=1, validation=loader()), r"give validate=\(models, batch\)"),
    (lambda: learner().value("validation/loss"), "none before the end of the first epoch"),
    (lambda: _two(step=_step).predict(loader()), "it is unclear which one to call"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments_are_refused_when_they_are_given(act: Callable[[], Any], message: str) -> None:
    with pytest.raises((RunError, DataError, KindError), match=message):
        act()


def test_values_of_other_libraries_are_answered() -> None:
    torch, optax = pytest.importorskip("torch"), pytest.importorskip("optax")
    arguments = {"model": linear(), "optimizer": optim.SgdConfig(), "lr": 0.1, "loss": nn.mse_loss}
    for name, value, message in (
        ("optimizer", torch.optim.SGD, "got the class SGD of torch; in Phlox: optim.SgdConfig()"),
        ("optimizer", optax.adam(0.1), "of optax; in Phlox: optim.OptaxAdaptor("),
        ("loss", torch.nn.MSELoss(), "got a MSELoss of torch; in Phlox: loss=nn.mse_loss"),
        ("loss", torch.nn.L1Loss, "got the class L1Loss of torch; in Phlox: loss=nn.l1_loss"),
        ("model", torch.nn.Linear(3, 1), "got a Linear of torch; phlox.interop.pytorch.wrap(...) makes it a module"),
    ):
        with pytest.raises(RunError, match=re.escape(message)):
            Learner(**{**arguments, name: value})


class Noting(px.Module):
    """Sets a field in its forward pass."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 1)
        self.last: Any = None

    def __call__(self, x: Any) -> Any:
        self.last = self.layer(x)
        return self.last


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_a_field_that_a_forward_pass_sets_is_refused_alike(backend: Any) -> None:
    learner = Learner(Noting().init(0, device=backend), optim.SgdConfig(), 0.1, nn.mse_loss)
    with pytest.raises(CompileError, match=r"the training step: .* a Noting \(model\.last was None and is"):
        learner.fit(loader(), epochs=1, progress=False)
    compiled = px.compile(lambda model, x: model(x))
    with pytest.raises(CompileError, match=r"changed a field of its argument, a Noting \(model\.last was None"):
        compiled(Noting().init(0, device=backend), px.ones((1, 3), device=backend))


def test_validation_is_tried_before_the_first_epoch() -> None:
    it = learner()
    with pytest.raises(ShapeError, match="prediction of shape") as caught:
        it.fit(loader(), epochs=2, validation=Loader((X, np.zeros((len(X), 3), np.float32)), 8), progress=False)
    assert it.step == 0 and "the first batch of the validation data" in caught.value.__notes__[0]


def test_the_class_of_a_config_means_its_defaults() -> None:
    by_class, by_config = (Learner(linear(), each, 0.1, nn.mse_loss) for each in (optim.SgdConfig, optim.SgdConfig()))
    for each in (by_class, by_config):
        each.fit(loader(), epochs=1, progress=False)
    assert by_class.history[0].train == by_config.history[0].train


STEPS: list[tuple[Callable[..., Any], str]] = [
    (lambda model, batch: None, "returns None"),
    (lambda model, batch: model(batch[0]), r"the loss must be a scalar, got a tensor of shape \(16, 1\)"),
    (lambda model, batch: (model(batch[0]).mean(), batch[0]), "must be a tuple of the metric's arguments"),
    (lambda model, batch: (model(batch[0]).mean(), {"x": (batch[0],)}), "a metric 'x' that the learner does not have"),
    (lambda model, batch: (1, 2, 3, 4), "returns 4 values"),
    (lambda model, batch: (model(batch[0]).mean(), None, [1]), "scalars of a step must be a dict"),
    (lambda model, batch: batch[1].mean(), "depends on no trained parameter of the model"),
    (lambda model, batch: {"a": 1.0}, "returns no loss to minimize"),
]


@pytest.mark.parametrize(("step", "message"), STEPS, ids=[message for _, message in STEPS])
def test_what_a_step_must_not_give(step: Callable[..., Any], message: str) -> None:
    trained = Learner(linear(), optim.SgdConfig(), 0.1, step=step, metrics={"mae": metrics.MeanAbsoluteError()})
    with pytest.raises(Exception, match=message):
        trained.fit(loader(), epochs=1, progress=False)


def test_a_loss_of_another_model_is_said() -> None:
    def step(models: Any, batch: Any) -> Any:
        return nn.mse_loss(models["a"](batch[0]), batch[1])

    trained = Learner({"a": linear(), "b": linear()}, {"a": optim.SgdConfig(), "b": optim.SgdConfig()}, 0.1, step=step)
    with pytest.raises(RunError, match="no trained parameter of the model 'b'"):
        trained.fit(loader(), epochs=1, progress=False)


@pytest.mark.parametrize(("engine", "compiled"), [("numpy", False), ("jax", True), ("torch", False)])
def test_a_step_is_compiled_by_default_where_single_operations_cost_much(engine: str, compiled: bool) -> None:
    assert learner(engine).compiles is compiled
    assert learner(engine, compile=not compiled).compiles is not compiled
