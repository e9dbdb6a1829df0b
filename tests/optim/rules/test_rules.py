"""Every optimizer against an independent implementation: over 50 steps, on every engine, eager and compiled.

Serves: phlox/optim/rules/
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest

from phlox import optim
from phlox.backend import Backend, Jax, NumPy, Torch
from tests.optim.problem import RATES, Arrays, arrays, run
from tests.optim.references import Reference, adan, by_optax, by_torch, by_torch_muon, schedule_free


class Case(NamedTuple):
    config: optim.SimpleConfig
    reference: Reference
    rtol: float = 1e-9
    """Of float64; that of float32 is fixed."""


BETAS: dict[str, Any] = {"betas": (0.8, 0.99), "eps": 1e-6}
LOOSE: dict[str, Any] = {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-6}

CASES: dict[str, Case] = {
    "sgd": Case(optim.SgdConfig(), by_torch("SGD")),
    "adam": Case(optim.AdamConfig(), by_torch("Adam")),
    "adamw": Case(optim.AdamWConfig(), by_torch("AdamW")),
    "adamax": Case(optim.AdaMaxConfig(), by_torch("Adamax")),
    "nadam": Case(optim.NAdamConfig(), by_torch("NAdam")),
    "radam": Case(optim.RAdamConfig(), by_torch("RAdam")),
    "adagrad": Case(optim.AdagradConfig(), by_torch("Adagrad")),
    "adadelta": Case(optim.AdadeltaConfig(), by_torch("Adadelta")),
    "rmsprop": Case(optim.RmsPropConfig(), by_torch("RMSprop")),
    "lion": Case(optim.LionConfig(), by_optax(lambda lr: optax.lion(lr, weight_decay=0.0))),
    "adan": Case(optim.AdanConfig(), adan(0.0)),
    "lamb": Case(optim.LambConfig(), by_optax(optax.lamb)),
    "adafactor": Case(optim.AdafactorConfig(), by_torch("Adafactor")),
    "muon": Case(optim.MuonConfig(), by_torch_muon({})),
    "schedule-free": Case(optim.ScheduleFreeAdamWConfig(), by_optax(schedule_free)),
}
"""Every optimizer as it comes."""

VARIANTS: dict[str, Case] = {
    "sgd, decay": Case(optim.SgdConfig(weight_decay=0.1), by_torch("SGD", weight_decay=0.1)),
    "sgd, momentum": Case(optim.SgdConfig(momentum=0.9), by_torch("SGD", momentum=0.9)),
    "sgd, dampening": Case(
        optim.SgdConfig(momentum=0.9, dampening=0.3, weight_decay=0.05),
        by_torch("SGD", momentum=0.9, dampening=0.3, weight_decay=0.05),
    ),
    "sgd, nesterov": Case(
        optim.SgdConfig(momentum=0.8, nesterov=True), by_torch("SGD", momentum=0.8, nesterov=True)
    ),
    "adam, decay": Case(optim.AdamConfig(**LOOSE, weight_decay=0.1), by_torch("Adam", **BETAS, weight_decay=0.1)),
    "adam, amsgrad": Case(
        optim.AdamConfig(**LOOSE, amsgrad=True, weight_decay=0.1),
        by_torch("Adam", **BETAS, amsgrad=True, weight_decay=0.1),
    ),
    "adam, maximize": Case(optim.AdamConfig(maximize=True), by_torch("Adam", maximize=True)),
    "adamw, decay": Case(optim.AdamWConfig(weight_decay=0.3), by_torch("AdamW", weight_decay=0.3)),
    "adamw, amsgrad, maximize": Case(
        optim.AdamWConfig(beta_2=0.9, amsgrad=True, maximize=True),
        by_torch("AdamW", betas=(0.9, 0.9), amsgrad=True, maximize=True),
    ),
    "adamax, decay": Case(optim.AdaMaxConfig(**LOOSE, weight_decay=0.1), by_torch("Adamax", **BETAS, weight_decay=0.1)),
    "nadam, decay": Case(
        optim.NAdamConfig(**LOOSE, weight_decay=0.1, momentum_decay=0.1),
        by_torch("NAdam", **BETAS, weight_decay=0.1, momentum_decay=0.1),
    ),
    "nadam, decoupled": Case(
        optim.NAdamConfig(weight_decay=0.1, decoupled=True),
        by_torch("NAdam", weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "radam, decay": Case(optim.RAdamConfig(**LOOSE, weight_decay=0.1), by_torch("RAdam", **BETAS, weight_decay=0.1)),
    "radam, decoupled": Case(
        optim.RAdamConfig(weight_decay=0.1, decoupled=True),
        by_torch("RAdam", weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "radam, never rectified": Case(optim.RAdamConfig(beta_2=0.5), by_torch("RAdam", betas=(0.9, 0.5))),
    "adagrad, decay": Case(
        optim.AdagradConfig(lr_decay=0.1, weight_decay=0.1, initial_accumulator=0.2, epsilon=1e-6),
        by_torch("Adagrad", lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2, eps=1e-6),
    ),
    "adadelta, decay": Case(
        optim.AdadeltaConfig(rho=0.7, epsilon=1e-4, weight_decay=0.1),
        by_torch("Adadelta", rho=0.7, eps=1e-4, weight_decay=0.1),
    ),
    "rmsprop, momentum": Case(
        optim.RmsPropConfig(alpha=0.9, epsilon=1e-6, weight_decay=0.1, momentum=0.7),
        by_torch("RMSprop", alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.7),
    ),
    "rmsprop, centered": Case(
        optim.RmsPropConfig(centered=True, momentum=0.5), by_torch("RMSprop", centered=True, momentum=0.5)
    ),
    "lion, decay": Case(
        optim.LionConfig(beta_1=0.8, beta_2=0.95, weight_decay=0.3),
        by_optax(lambda lr: optax.lion(lr, b1=0.8, b2=0.95, weight_decay=0.3)),
    ),
    "adan, decay": Case(optim.AdanConfig(weight_decay=0.3), adan(0.3)),
    # It weighs differences by 1 - b2, where the paper and its authors' program do by b2: here, these are one.
    "adan, optax": Case(
        optim.AdanConfig(beta_2=0.5), by_optax(lambda lr: optax.adan(lr, b2=0.5, eps_root=0.0))
    ),
    "lamb, decay": Case(optim.LambConfig(weight_decay=0.1), by_optax(lambda lr: optax.lamb(lr, weight_decay=0.1))),
    "adafactor, decay": Case(
        optim.AdafactorConfig(
            decay_rate=0.6, epsilon=0.1, epsilon_scale=0.5, clip_threshold=1.5, weight_decay=0.1, maximize=True
        ),
        by_torch("Adafactor", beta2_decay=-0.6, eps=(0.1, 0.5), d=1.5, weight_decay=0.1, maximize=True),
    ),
    # Its decay rate is rounded to float32.
    "adafactor, optax": Case(
        optim.AdafactorConfig(epsilon=1e-30),
        by_optax(lambda lr: optax.adafactor(lr, min_dim_size_to_factor=1, eps=1e-60)),
        rtol=1e-6,
    ),
    "muon, rms": Case(
        optim.MuonConfig(
            momentum=0.8, nesterov=False, weight_decay=0.3, iterations=3, coefficients=(2.0, -1.5, 0.5),
            scale="match_rms_adamw", fallback=optim.AdamWConfig(weight_decay=0.2),
        ),
        by_torch_muon(
            {"weight_decay": 0.2}, momentum=0.8, nesterov=False, weight_decay=0.3, ns_steps=3,
            ns_coefficients=(2.0, -1.5, 0.5), adjust_lr_fn="match_rms_adamw",
        ),
    ),
    "muon, one iteration": Case(optim.MuonConfig(iterations=1), by_torch_muon({}, ns_steps=1)),
    # It adds epsilon to the norm, and mixes gradient and momentum by another formula.
    "muon, optax": Case(
        optim.MuonConfig(nesterov=False, fallback=optim.AdamConfig()),
        by_optax(lambda lr: optax.contrib.muon(lr, eps=1e-8, weight_decay=0.1, nesterov=False)),
        rtol=1e-6,
    ),
    "schedule-free, decay": Case(
        optim.ScheduleFreeAdamWConfig(beta_1=0.7, weight_decay=0.1, warmup_steps=12, weight_lr_power=1.5),
        by_optax(
            lambda lr: schedule_free(lr, b1=0.7, decay=0.1, power=1.5),
            rates=[lr * min(1.0, (number + 1) / 12) for number, lr in enumerate(RATES)],
        ),
    ),
}  # fmt: skip
"""With options."""

BOTH = {**CASES, **VARIANTS}
EAGER: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), NumPy(), Torch()]
EAGER_ON_JAX: list[Any] = [pytest.param(one, marks=pytest.mark.full) for one in (Jax(float="f64"), Jax())]
COMPILED: list[Any] = [
    Jax(float="f64"), Jax(), *(pytest.param(one, marks=pytest.mark.full) for one in (Torch(float="f64"), Torch())),
]  # fmt: skip
"""In the small run each optimizer is compiled by XLA, and eager on the other engines."""


@cache
def expected(name: str) -> Arrays:
    return BOTH[name].reference()


def check(name: str, backend: Backend, compiled: bool) -> None:
    wide = "f64" in repr(backend)
    rtol = BOTH[name].rtol if wide else 2e-4
    for got, wanted in zip(arrays(run(BOTH[name].config.init(), backend, compiled)), expected(name), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * 0.1)


@pytest.fixture(autouse=True)
def without_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "none")


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", [*EAGER, *EAGER_ON_JAX], ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_eager(name: str, backend: Backend) -> None:
    check(name, backend, compiled=False)


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", COMPILED, ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str, backend: Backend) -> None:
    check(name, backend, compiled=True)


@pytest.mark.covering(1, "name")
@pytest.mark.parametrize(
    ("backend", "compiled"), [(NumPy(float="f64"), False), (Torch(float="f64"), False), (Jax(), True)], ids=repr
)
@pytest.mark.parametrize("name", VARIANTS)
def test_options(name: str, backend: Backend, compiled: bool) -> None:
    check(name, backend, compiled)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_average_of_the_schedule_free(decay: float) -> None:
    optimizer = optim.ScheduleFreeAdamWConfig(weight_decay=decay).init()
    model = run(optimizer, NumPy(float="f64"))
    reference = by_optax(lambda lr: schedule_free(lr, decay=decay), optax.contrib.schedule_free_eval_params)
    for got, wanted in zip(arrays(optimizer.averaged(model)), reference(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
