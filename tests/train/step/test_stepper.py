from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.data import Loader
from phlox.train import LambdaCallback, Learner

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32) * 30.0
Y = X.sum(axis=1, keepdims=True) / 30.0
SCALE = 2.0**22
"""Of a loss: the gradients of the first steps overflow in f16."""

ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "numpy": (NumPy, {}),
    "jax": (Jax, {}),
    "jax, eager": (Jax, {"compile": False}),
    "torch": (Torch, {}),
    "torch, compiled": (Torch, {"compile": True}),
    "accumulated": (Jax, {"accumulate": 2}),
    "clipped by value": (Jax, {"clip": optim.GradientClipping.value(0.1)}),
    "clipped by value, eager": (NumPy, {"clip": optim.GradientClipping.value(0.1)}),
    "several steps a call": (Jax, {"steps_per_call": 5}),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_step_that_is_left_out_is_counted_and_told_and_no_schedule_knows_of_it(row: str) -> None:
    engine, options = ROWS[row]
    schedule = optim.CosineAnnealingLr(1e-4, num_iters=40)
    model = nn.Linear(3, 1).init(0, Autodiff(engine()).device())
    learner = Learner(
        model,
        optim.SgdConfig(),
        schedule,
        nn.mse_loss,
        precision="f16",
        loss_scaling=optim.LossScaler(SCALE),
        **options,
    )
    found: list[tuple[bool, float, int]] = []
    told: list[int] = []

    def look(learner: Learner[Any]) -> None:
        now = learner.model.weight.val().numpy().copy()
        moved = bool((now != before[0]).any())
        before[0] = now
        found.append((moved, float(learner.lr), learner.updates))

    before = [learner.model.weight.val().numpy().copy()]
    told_of = LambdaCallback(on_step_skipped=lambda one: told.append(one.step), on_step_end=look)
    learner.fit(Loader((X, Y), 4), epochs=2, callbacks=[told_of], progress=False)

    moved = [one for one, _, _ in found]
    assert not moved[0] and moved[-1]
    taken = optim.CosineAnnealingLr(1e-4, num_iters=40)
    rates = [taken.step() for _ in range(40)]
    if options.get("steps_per_call"):  # the rates of a call are known before it
        assert learner.updates + learner.skipped == learner.step == 20
        assert learner.schedule.taken == learner.updates and learner.skipped > 0 and told
        return
    if options.get("accumulate"):  # every second batch makes a step
        found, moved = found[1::2], moved[1::2]
    for number, (_, rate, updates) in enumerate(found):
        assert rate == pytest.approx(rates[sum(moved[:number])]), number
        assert updates == sum(moved[: number + 1])
    assert learner.schedule.taken == learner.updates == sum(moved)
    assert learner.skipped == len(told) == len(moved) - sum(moved)
    again = Learner(model, optim.SgdConfig(), schedule, nn.mse_loss, precision="f16", loss_scaling=True, **options)
    again.load_state(learner.snapshot())
    assert (again.skipped, again.updates, again.schedule.taken) == (learner.skipped, sum(moved), sum(moved))


def test_each_optimizer_leaves_out_its_own_steps() -> None:
    models = {name: nn.Linear(3, 1).init(0, Autodiff(Jax()).device()) for name in ("a", "b")}
    learner = Learner(
        models, {name: optim.SgdConfig().init(skip_nonfinite=True) for name in models},
        {name: optim.CosineAnnealingLr(1e-4, num_iters=40) for name in models},
        # The derivative of a root at zero is not finite.
        step=lambda models, batch: (
            nn.mse_loss(models["a"](batch[0]), batch[1]) + (models["b"](batch[0]).mean() * batch[2].mean()).abs().sqrt()
        ),
    )  # fmt: skip
    told: list[int] = []
    hears = LambdaCallback(on_step_skipped=lambda one: told.append(one.step))
    learner.fit(
        Loader((X, Y, np.arange(40.0, dtype=np.float32) // 12 % 2), 4), steps=8, callbacks=[hears], progress=False
    )
    assert told == [1, 2, 3, 7, 8] and learner.updates == 8 and learner.skipped == 5
    assert {name: one.taken for name, one in learner.schedule.items()} == {"a": 8, "b": 3}


def test_an_epoch_without_a_step_is_said() -> None:
    learner = Learner(
        nn.Linear(3, 1).init(0), optim.SgdConfig(), 0.1, nn.mse_loss, precision="f16",
        loss_scaling=optim.LossScaler(2.0**100),
    )  # fmt: skip
    learner.fit(Loader((X, Y), 20), epochs=2, progress=False)
    assert [step for step, text in learner.events if "took no step in epoch" in text] == [2, 4]
    assert learner.updates == 0 and learner.skipped == 4
