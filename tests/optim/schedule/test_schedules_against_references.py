"""Every schedule, step by step, against PyTorch's; where PyTorch has none, against Optax's or the formula in NumPy.

Serves: phlox/optim/schedule/
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import numpy as np
import optax
import pytest
import torch
from torch.optim import lr_scheduler as peer

from phlox import optim

STEPS = 300
LR = 0.3


def by_torch(make: Callable[[Any], Any], steps: int) -> list[float]:
    """The rates that one of PyTorch's schedulers gives, from a rate of `LR`."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR, momentum=0.9)
    rates: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a deprecated argument, which PyTorch's own sequence gives
        scheduler = make(optimizer)
        for number in range(steps):
            if number:
                optimizer.step()
                scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def cyclic(optimizer: Any, **options: Any) -> Any:
    return peer.CyclicLR(optimizer, 0.01, 0.5, cycle_momentum=False, **options)


def one_cycle(optimizer: Any, **options: Any) -> Any:
    return peer.OneCycleLR(optimizer, 0.5, cycle_momentum=False, **{"total_steps": STEPS, **options})


def warmed_up(optimizer: Any) -> Any:
    first = peer.LinearLR(optimizer, start_factor=0.1, total_iters=40)
    return peer.SequentialLR(optimizer, [first, peer.CosineAnnealingLR(optimizer, 100, 0.01)], milestones=[40])


def in_sequence(optimizer: Any) -> Any:
    parts = [
        peer.ConstantLR(optimizer, factor=1.0),
        peer.ExponentialLR(optimizer, 0.9),
        peer.StepLR(optimizer, 20, 0.5),
    ]
    return peer.SequentialLR(optimizer, parts, milestones=[50, 90])


def chained(optimizer: Any) -> Any:
    return peer.ChainedScheduler([peer.ExponentialLR(optimizer, 0.99), peer.MultiStepLR(optimizer, [50, 70], 0.2)])


TORCH: dict[str, tuple[optim.LrSchedule, Callable[[Any], Any], int]] = {
    "constant": (optim.ConstantLr(LR), lambda o: peer.ConstantLR(o, factor=1.0), STEPS),
    "linear, down": (
        optim.LinearLr(LR * 0.9, LR * 0.2, num_iters=120), lambda o: peer.LinearLR(o, 0.9, 0.2, 120), STEPS,
    ),
    "linear, up": (optim.LinearLr(LR * 0.1, LR, num_iters=250), lambda o: peer.LinearLR(o, 0.1, 1.0, 250), STEPS),
    "cosine": (optim.CosineAnnealingLr(LR, num_iters=200), lambda o: peer.CosineAnnealingLR(o, 200), 201),
    "cosine, min_lr": (
        optim.CosineAnnealingLr(LR, num_iters=299, min_lr=0.01), lambda o: peer.CosineAnnealingLR(o, 299, 0.01), STEPS,
    ),
    **{
        f"cosine with restarts, multiplier {n}": (
            optim.CosineRestartsLr(LR, num_iters=7, multiplier=n, min_lr=0.02),
            lambda o, n=n: peer.CosineAnnealingWarmRestarts(o, 7, n, 0.02),
            STEPS,
        )
        for n in (1, 2, 3)
    },
    "cosine with restarts at every step": (
        optim.CosineRestartsLr(LR, num_iters=1), lambda o: peer.CosineAnnealingWarmRestarts(o, 1), STEPS,
    ),
    "exponential": (optim.ExponentialLr(LR, gamma=0.97), lambda o: peer.ExponentialLR(o, 0.97), STEPS),
    "exponential, up": (optim.ExponentialLr(LR, gamma=1.01), lambda o: peer.ExponentialLR(o, 1.01), STEPS),
    "step": (optim.StepLr(LR, step_size=30), lambda o: peer.StepLR(o, 30), STEPS),
    "step, gamma": (optim.StepLr(LR, step_size=7, gamma=0.8), lambda o: peer.StepLR(o, 7, 0.8), STEPS),
    "multi-step": (
        optim.MultiStepLr(LR, milestones=[1, 50, 51, 200]), lambda o: peer.MultiStepLR(o, [1, 50, 51, 200]), STEPS,
    ),
    **{
        f"polynomial, power {power}": (
            optim.PolynomialLr(LR, num_iters=210, power=power),
            lambda o, power=power: peer.PolynomialLR(o, 210, power),
            STEPS,
        )
        for power in (1.0, 0.9, 2.0)
    },
    "function": (
        optim.FunctionLr(lambda step: LR / (1 + step)), lambda o: peer.LambdaLR(o, lambda step: 1 / (1 + step)), STEPS,
    ),
    "triangular": (optim.CyclicLr(0.01, 0.5, step_size_up=20), lambda o: cyclic(o, step_size_up=20), STEPS),
    "triangular, faster down": (
        optim.CyclicLr(0.01, 0.5, step_size_up=30, step_size_down=7),
        lambda o: cyclic(o, step_size_up=30, step_size_down=7),
        STEPS,
    ),
    "triangular2": (
        optim.CyclicLr(0.01, 0.5, step_size_up=10, step_size_down=13, mode="triangular2"),
        lambda o: cyclic(o, step_size_up=10, step_size_down=13, mode="triangular2"),
        STEPS,
    ),
    "exp_range": (
        optim.CyclicLr(0.01, 0.5, step_size_up=25, mode="exp_range", gamma=0.99),
        lambda o: cyclic(o, step_size_up=25, mode="exp_range", gamma=0.99),
        STEPS,
    ),
    **{
        f"one cycle, {anneal}, three_phase {three}, pct_start {start}": (
            optim.OneCycleLr(
                0.5, num_iters=STEPS, pct_start=start, anneal=anneal, three_phase=three, div_factor=20.0,
                final_div_factor=100.0,
            ),
            lambda o, anneal=anneal, three=three, start=start: one_cycle(
                o, pct_start=start, anneal_strategy=anneal, three_phase=three, div_factor=20.0, final_div_factor=100.0,
            ),
            STEPS,
        )
        for anneal, three, start in product(("cos", "linear"), (False, True), (0.0, 0.3, 0.47))
    },
    "one cycle, defaults": (optim.OneCycleLr(0.5, num_iters=STEPS), one_cycle, STEPS),
    "one cycle of one step": (optim.OneCycleLr(0.5, num_iters=1), lambda o: one_cycle(o, total_steps=1), 1),
    "one cycle, all of it up": (
        optim.OneCycleLr(0.5, num_iters=STEPS, pct_start=1.0), lambda o: one_cycle(o, pct_start=1.0), STEPS,
    ),
    "warm-up": (
        optim.WarmUpLr(optim.CosineAnnealingLr(LR, num_iters=100, min_lr=0.01), num_iters=40, start_lr=0.1 * LR),
        warmed_up,
        141,
    ),
    "sequence": (
        optim.SequenceLr(
            [LR, optim.ExponentialLr(LR, gamma=0.9), optim.StepLr(LR, step_size=20, gamma=0.5)], milestones=[50, 90]
        ),
        in_sequence,
        STEPS,
    ),
    "product": (
        LR * optim.ExponentialLr(1.0, gamma=0.99) * optim.MultiStepLr(1.0, milestones=[50, 70], gamma=0.2),
        chained,
        STEPS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_against_torch(name: str) -> None:
    schedule, reference, steps = TORCH[name]
    taken = [schedule.step() for _ in range(steps)]
    np.testing.assert_allclose(taken, by_torch(reference, steps), rtol=1e-12, atol=1e-15)
    assert [schedule.rate(step) for step in range(steps)] == taken  # and any can be asked for again


def test_one_cycle_may_begin_at_its_height() -> None:  # where PyTorch divides by zero
    schedule = optim.OneCycleLr(1.0, num_iters=4, pct_start=0.25, anneal="linear", final_div_factor=4.0)
    assert [schedule.rate(step) for step in range(5)] == pytest.approx([1.0, 0.67, 0.34, 0.01, 0.01])


OPTAX: dict[str, tuple[optim.LrSchedule, Callable[[int], Any]]] = {
    "warm-up from zero, cosine": (
        optim.WarmUpLr(optim.CosineAnnealingLr(LR, num_iters=150, min_lr=0.03), num_iters=50),
        optax.warmup_cosine_decay_schedule(0.0, LR, 50, 200, 0.03),
    ),
    "polynomial to a last rate": (
        optim.PolynomialLr(LR, num_iters=120, power=3.0, final_lr=0.1), optax.polynomial_schedule(LR, 0.1, 3.0, 120),
    ),
    "polynomial, up": (
        optim.PolynomialLr(0.1, num_iters=120, power=2.0, final_lr=LR), optax.polynomial_schedule(0.1, LR, 2.0, 120),
    ),
    "sequence": (
        optim.SequenceLr(
            [
                optim.LinearLr(0.0, LR, num_iters=20),
                LR,
                optim.WarmUpLr(optim.ExponentialLr(0.2, gamma=0.95), num_iters=30, start_lr=0.1),
            ],
            milestones=[20, 60],
        ),
        optax.join_schedules(
            [
                optax.linear_schedule(0.0, LR, 20),
                optax.constant_schedule(LR),
                optax.join_schedules(
                    [optax.linear_schedule(0.1, 0.2, 30), optax.exponential_decay(0.2, 1, 0.95)], [30]
                ),
            ],
            [20, 60],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTAX)
def test_against_optax(name: str) -> None:
    schedule, reference = OPTAX[name]
    rates = np.array([float(reference(step)) for step in range(0, STEPS, 3)])  # in f32
    np.testing.assert_allclose([schedule.rate(step) for step in range(0, STEPS, 3)], rates, rtol=2e-5, atol=1e-7)


N = np.arange(STEPS, dtype=np.float64)
FORMULAS: dict[str, tuple[optim.LrSchedule, Any]] = {
    "noam": (
        optim.NoamLr(model_size=512, warm_up=40, factor=2.0),
        2.0 / np.sqrt(512.0) * np.where(N < 40, (N + 1) / 40.0 / np.sqrt(40.0), 1.0 / np.sqrt(N + 1)),
    ),
    "noam without a warm-up": (optim.NoamLr(model_size=4, warm_up=1), 0.5 / np.sqrt(N + 1)),
    "inverse square root": (
        optim.InverseSqrtLr(LR, timescale=10), np.concatenate([[LR], LR * np.sqrt(10.0) / np.sqrt(N[1:] + 10.0)]),
    ),
    "inverse square root of all steps": (
        optim.WarmUpLr(optim.InverseSqrtLr(LR, timescale=30), num_iters=30),
        LR * np.minimum(N / 30.0, np.sqrt(30.0) / np.sqrt(np.maximum(N, 30.0))),
    ),
    "sum": (
        optim.StepLr(LR, step_size=100, gamma=0.5) + optim.LinearLr(0.2, 0.0, num_iters=100) + 0.01,
        LR * 0.5 ** np.floor(N / 100.0) + np.clip(0.2 - 0.002 * N, 0.0, None) + 0.01,
    ),
    "a factor of a sum": (
        0.5 * (0.1 + optim.ExponentialLr(LR, gamma=0.9)), 0.05 + 0.5 * LR * np.exp(N * np.log(0.9)),
    ),
    "sum by Python": (cast("Any", sum([optim.ConstantLr(0.1), optim.ConstantLr(0.2)])), np.full(STEPS, 0.1 + 0.2)),
    "cyclic factor": (
        optim.CyclicLr(0.5, 1.0, step_size_up=1) * optim.ConstantLr(LR), np.where(N % 2 == 0, 0.5 * LR, LR),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_against_the_formula(name: str) -> None:
    schedule, rates = FORMULAS[name]
    np.testing.assert_allclose([schedule.step() for _ in range(STEPS)], rates, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("threshold", [0.0, 1e-2, 0.5])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_plateau_against_torch(mode: Any, threshold_mode: Any, threshold: float) -> None:
    random = np.random.default_rng(3)
    for patience, cooldown, min_lr, factor in product((0, 3), (0, 4), (0.0, 0.02), (0.1, 0.7)):
        options = {
            "mode": mode, "threshold_mode": threshold_mode, "threshold": threshold,
            "patience": patience, "cooldown": cooldown, "min_lr": min_lr, "factor": factor,
        }  # fmt: skip
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
        reference = peer.ReduceLROnPlateau(optimizer, **options)
        schedule = optim.ReduceOnPlateauLr(LR, **options)
        metrics = np.exp(-np.arange(120) / 40.0) * (1.0 if mode == "min" else -1.0) + 0.1 * random.standard_normal(120)
        metrics[[7, 30]] = np.inf if mode == "min" else -np.inf
        assert schedule.step() == LR
        for metric in metrics:
            schedule.report(metric)
            reference.step(metric)
            assert schedule.step() == optimizer.param_groups[0]["lr"]
        assert schedule.rate(0) < LR


def test_the_first_metric_is_the_best_whatever_the_threshold() -> None:  # where PyTorch finds none better than infinity
    schedule = optim.ReduceOnPlateauLr(LR, threshold=1.0, patience=0)
    schedule.report(5.0)
    assert schedule.best == 5.0 and schedule.step() == LR
