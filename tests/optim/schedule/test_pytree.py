"""Schedules go through JAX's own transformations; the reference is the rate of each step in Python's numbers.

Serves: phlox/optim/schedule/scalars.py
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phlox import optim
from phlox.errors import OptimizerError


class HalvingLr(optim.LrSchedule):
    def __init__(self, lr: float, every: int) -> None:
        self.lr, self.every = lr, every

    def rate(self, step: int) -> float:
        return self.lr * 0.5 ** (step / self.every)


def harmonic(step: int) -> float:
    return 0.1 / (1 + step)


SCHEDULES: dict[str, Callable[[], optim.LrSchedule[Any]]] = {
    "constant": lambda: optim.ConstantLr(0.1),
    "linear": lambda: optim.LinearLr(0.1, 0.01, num_iters=5),
    "cosine": lambda: optim.CosineAnnealingLr(0.1, num_iters=5, min_lr=0.01),
    "restarts": lambda: optim.CosineRestartsLr(0.1, num_iters=2, multiplier=2),
    "equal restarts": lambda: optim.CosineRestartsLr(0.1, num_iters=3),
    "exponential": lambda: optim.ExponentialLr(0.1, gamma=0.9),
    "step": lambda: optim.StepLr(0.1, step_size=2),
    "milestones": lambda: optim.MultiStepLr(0.1, milestones=[2, 4]),
    "polynomial": lambda: optim.PolynomialLr(0.1, num_iters=5, power=0.9, final_lr=0.01),
    "noam": lambda: optim.NoamLr(model_size=8, warm_up=3),
    "inverse square root": lambda: optim.InverseSqrtLr(0.1, timescale=2),
    "one cycle": lambda: optim.OneCycleLr(0.1, num_iters=7),
    "three phases": lambda: optim.OneCycleLr(0.1, num_iters=8, three_phase=True, anneal="linear"),
    "cycles": lambda: optim.CyclicLr(0.01, 0.1, step_size_up=2, step_size_down=1, mode="triangular2"),
    "falling cycles": lambda: optim.CyclicLr(0.01, 0.1, step_size_up=2, mode="exp_range", gamma=0.9),
    "plateau": lambda: 0.5 * optim.WarmUpLr(optim.ReduceOnPlateauLr(0.1), num_iters=3),
    "function": lambda: optim.FunctionLr(harmonic),
    "warm-up": lambda: optim.WarmUpLr(optim.CosineAnnealingLr(0.1, num_iters=4), num_iters=3),
    "sequence": lambda: optim.SequenceLr([0.1, optim.LinearLr(0.1, 0.0, num_iters=3)], milestones=[2]),
    "sum": lambda: optim.ExponentialLr(0.1, gamma=0.9) * optim.LinearLr(1.0, 0.5, num_iters=3) + 1e-3,
    "of one's own": lambda: HalvingLr(0.1, 3),
}


def advance(schedule: Any) -> tuple[Any, Any]:
    rate = schedule.step()
    return schedule, rate


@pytest.mark.parametrize("name", SCHEDULES)
def test_traced_rates_are_eager_rates(name: str) -> None:
    make = SCHEDULES[name]
    expected = [make().rate(step) for step in range(12)]
    traces = [0]

    def traced(schedule: Any) -> Any:
        traces[0] += 1
        return advance(schedule)

    schedule: Any = make()
    program, rates = jax.jit(traced), []
    for _ in range(9):
        schedule, rate = program(schedule)
        rates.append(rate)
    assert traces == [1]
    rates += [schedule.step() for _ in range(3)]
    assert schedule.taken == 12 and schedule.into_record()["taken"] == 12
    np.testing.assert_allclose(rates, expected, rtol=2e-6, atol=1e-8)
    definition = jax.tree.structure(schedule)
    assert pickle.loads(pickle.dumps(definition)) == definition == jax.tree.structure(make())  # noqa: S301


def test_scan_vmap_groups_and_paths() -> None:
    make = lambda: optim.GroupedLr({"head": optim.LinearLr(0.1, 0.0, num_iters=5), "*": 0.01})  # noqa: E731
    schedule, rates = jax.lax.scan(lambda schedule, _: advance(schedule), make(), None, length=6)
    np.testing.assert_allclose(rates["head"], [make().rate(step)["head"] for step in range(6)], atol=1e-8)
    assert schedule.taken == 6
    keys = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(make())[0]]
    assert keys == [".taken", ".schedules['head'].taken", ".schedules['*'].taken"]
    one, other = optim.ExponentialLr(0.1, gamma=0.5), optim.ExponentialLr(0.1, gamma=0.5)
    other.taken = 2
    both: Any = jax.tree.map(lambda *x: jnp.stack(x), one, other)
    np.testing.assert_allclose(jax.vmap(advance)(both)[1], [0.1, 0.025], rtol=1e-6)
    with pytest.raises(OptimizerError, match=r"of shape \(2,\) for its taken.*inside jax.vmap"):
        both.step()
    with pytest.raises(OptimizerError, match="gave a str for its taken"):
        jax.tree.map(lambda x: "x", one).step()


def test_plateaus_go_on_outside() -> None:
    schedule: Any = jax.jit(lambda schedule: advance(schedule)[0])(optim.ReduceOnPlateauLr(0.1, factor=0.5, patience=0))
    schedule.report(1.0)
    schedule.report(1.0)
    assert schedule.step() == pytest.approx(0.05)
    assert jax.jit(advance)(schedule)[1] == pytest.approx(0.05)
    with pytest.raises(OptimizerError, match="report branches on the value"):
        jax.jit(lambda schedule: schedule.report(1.0))(schedule)


def test_settings_are_structure() -> None:
    definitions = {jax.tree.structure(make()) for make in SCHEDULES.values()}
    assert len(definitions) == len(SCHEDULES)
    assert jax.tree.structure(HalvingLr(0.1, 3)) != jax.tree.structure(HalvingLr(0.1, 4))
    with pytest.raises(OptimizerError, match="HalvingLr cannot be flattened as a PyTree: its every is a"):
        jax.tree.leaves(HalvingLr(0.1, bytearray(b"3")))  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_traced() -> None:
    outside = optim.ConstantLr(0.1)
    with pytest.raises(OptimizerError, match="would count only once.*as an argument"):
        jax.jit(lambda x: x * outside.step())(1.0)
    assert outside.taken == 0
    inside = jax.jit(lambda x: x * optim.ConstantLr(0.1).step())
    assert inside(1.0) == pytest.approx(0.1)
    with pytest.raises(OptimizerError, match="FunctionLr: its rate needs the value of the step"):
        jax.jit(advance)(optim.FunctionLr(lambda step: 0.1 if step < 3 else 0.01))
