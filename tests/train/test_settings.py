"""Settings of every optimizer and schedule are plain values, and equal for equal ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.train import Learner
from phlox.train.settings import differences, settings_of


class Own(optim.LrSchedule):
    """A schedule of a user."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def rate(self, step: int) -> float:
        return 0.1


def rate(step: int) -> float:
    return 0.1


CASES: list[tuple[Any, Any, dict[str, tuple[str, str]]]] = [
    (optim.AdamWConfig(), optim.AdamWConfig(weight_decay=0.1), {"one.weight_decay": ("0.01", "0.1")}),
    (optim.SgdConfig().init(), optim.SgdConfig(momentum=0.9).init(), {"one.momentum": ("0.0", "0.9")}),
    (
        optim.SgdConfig().init(grad_clipping=optim.GradientClipping.norm(1.0)),
        optim.SgdConfig().init(grad_clipping=optim.GradientClipping.norm(2.0)),
        {"one.grad_clipping.limit": ("1.0", "2.0")},
    ),
    (
        optim.SgdConfig().init(groups=[optim.Group("**.bias", lr_factor=0.5)]),
        optim.SgdConfig().init(groups=[optim.Group("**.bias", lr_factor=0.25)]),
        {"one.groups.0.lr_factor": ("0.5", "0.25")},
    ),
    (
        optim.SgdConfig().init(groups=[optim.Group("**.bias", weight_decay=0.0)]),
        optim.SgdConfig().init(groups=[optim.Group("**.weight", weight_decay=0.5)]),
        {"one.groups.0.which": ("\"['**.bias']\"", "\"['**.weight']\""), "one.groups.0.weight_decay": ("0.0", "0.5")},
    ),
    (optim.LbfgsConfig().init(), optim.LbfgsConfig(max_iter=5).init(), {"one.max_iter": ("20", "5")}),
    (optim.ConstantLr(0.1), optim.ConstantLr(float(np.float32(0.5))), {"one": ("0.1", "0.5")}),
    (optim.ConstantLr(0.1), optim.ExponentialLr(0.1, gamma=0.5), {
        "one": ("0.1", "ExponentialLr(initial_lr=0.1, gamma=0.5)"),
    }),
    (
        optim.WarmUpLr(optim.LinearLr(0.1, 0.0, num_iters=5), num_iters=2),
        optim.WarmUpLr(optim.LinearLr(0.2, 0.0, num_iters=5), num_iters=3),
        {"one.schedule.initial_lr": ("0.1", "0.2"), "one.num_iters": ("2", "3")},
    ),
    (optim.MultiStepLr(0.1, milestones=[3]), optim.MultiStepLr(0.1, milestones=[3, 4]), {
        "one.milestones": ("'[3]'", "'[3, 4]'"),
    }),
    (optim.GroupedLr({"a": 0.1, "*": 0.2}), optim.GroupedLr({"a": 0.1, "*": 0.3}), {"one.schedules.*": ("0.2", "0.3")}),
    (optim.ConstantLr(0.1) * 2.0, optim.ConstantLr(0.1) * 3.0, {"one.factors.1": ("2.0", "3.0")}),
    (Own(a=[1, {"b": 2}]), Own(a=[1, {"b": 3}]), {"one.given.a.1.b": ("2", "3")}),
    (optim.FunctionLr(rate), optim.FunctionLr(abs), {"one.function": ("'rate'", "'abs'")}),
    ({"a": optim.SgdConfig(), "b": 1}, {"a": optim.SgdConfig()}, {"one": ("a, b(a=SgdConfig(", "a(a=SgdConfig(")}),
    (Own(table=np.zeros(10**6)), Own(table=np.zeros(5)), {
        "one.given.table": ("'an array of shape (1000000,)'", "'an array of shape (5,)'"),
    }),
    ([*range(10**4)], [*range(10**4), 1], {"one": ("'[0, 1, ", "'[0, 1, ")}),
    (float("nan"), float("nan"), {}),
    (object(), object(), {}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "expected"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_what_differs(before: Any, now: Any, expected: dict[str, tuple[str, str]]) -> None:
    one, other = settings_of({"one": before}), settings_of({"one": now})
    for each in (one, other):
        assert differences(each, json.loads(json.dumps(each))) == {}  # plain values
    found = differences(one, other)
    assert found.keys() == expected.keys()
    for name, texts in expected.items():
        for text, start in zip(found[name], texts, strict=True):
            assert text.startswith(start) if start.endswith(("(", ", ")) else text == start
            assert len(text) < 1000


def test_what_changes_while_it_trains_is_no_setting() -> None:
    schedule = optim.WarmUpLr(optim.ReduceOnPlateauLr(0.1, patience=0), num_iters=1)
    before = settings_of({"lr": schedule})
    for _ in range(4):
        schedule.step()
        schedule.report(1.0)
    assert schedule.step() < 0.1 and settings_of({"lr": schedule}) == before


@pytest.mark.parametrize("seed", [0, 5, 2**63 + 1, -1])
def test_a_learner_knows_its_seed(seed: int) -> None:
    px.random.seed(seed)
    learner = Learner(nn.Linear(2, 1), optim.SgdConfig(), 0.1, nn.mse_loss, ema=0.5, accumulate=2)
    found = learner.settings()
    assert (found["seed"], found["ema"], found["accumulate"], found["clip"]) == (seed % 2**64, 0.5, 2, None)
    assert learner.snapshot()["progress"]["settings"] == found
