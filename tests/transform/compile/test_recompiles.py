"""Recompilations are counted and explained."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from tests.transform.steps import X, data, network, step

ONE = px.ones((2,), device=Jax())


def layer(**fields: Any) -> Any:
    made: Any = nn.Linear(2, 2, device=Jax().device()).init(0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Slow(optim.SimpleOptimizer):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def step(self, lr: Any, tensor: Any, grad: Any, state: Any) -> Any:
        return tensor - grad * lr * self.factor, state


CAUSES: dict[str, tuple[Any, Any, str]] = {
    "static field": (
        ONE, (layer(count=1), layer(count=2)),
        r"y\.count was 1 and is 2 \(a field is part of the program; keep what changes in a Param",
    ),
    "shape": (ONE, (ONE, px.ones((3,), device=Jax())), r"y was Float \(2,\) on Jax\(\) and is Float \(3,\) on Jax\(\)"),
    "kind": (ONE, (ONE, ONE > 0.0), r"y was Float \(2,\) on Jax\(\) and is Bool \(2,\) on Jax\(\)"),
    "backend": (ONE, (ONE, data(X)), r"y was Float \(2,\) on Jax\(\) and is Float \(6, 4\) on Autodiff\(Jax\(\)\)"),
    "constant": (ONE, ({"m": "a"}, {"m": "b"}), r"y\['m'\] was 'a' and is 'b' \(a constant is part of the program"),
    "truth": (ONE, (True, False), r"y was True and is False \(True and False are constants; pass a Bool tensor"),
    "number": (ONE, (1, 1.0), "y was an integer number and is a real number"),
    "keys": (ONE, ({"a": ONE}, {"b": ONE}), r"y was a dict of \['a'\] and is a dict of \['b'\]"),
    "length": (ONE, ([1.0], [1.0, 2.0]), r"y was a list of \[0\] and is a list of \[0\], \[1\]"),
    "frozen": (ONE, (layer(), layer().freeze()), r"y\.weight was a Param, .* and is a Param, .* frozen"),
    "added": (ONE, (layer(), layer(note="n")), r"y\.note was not there and is 'n'"),
    "class": (ONE, (layer(), network()), "^y was a Linear and is a Sequential"),
    "setting": (
        ONE, (optim.OptimizerAdaptor(Slow(1.0)), optim.OptimizerAdaptor(Slow(2.0))),
        r"y\.factor was 1\.0 and is 2\.0",
    ),
    "parameter": (
        ONE, (layer(), nn.Linear(2, 3, device=Jax().device()).init(0)),
        r"y\.weight was .*\(2, 2\).* and is .*\(2, 3\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    x, (first, second), message = CAUSES[name]
    run = px.compile(lambda x, y: x)
    with caplog.at_level(logging.WARNING, "phlox.compile"), px.debug.explain_recompiles() as recompiles:
        run(x, first)
        assert not recompiles
        run(x, second)
        run(x, first)
        run(x, second)
    (only,) = recompiles
    assert only.number == run.traces == 2 and only.function.endswith("<lambda>")
    assert len(only.changes) >= 1 and only.changes[0].path.startswith("y")
    assert re.search(message, str(only.changes[0]))
    assert str(only) in caplog.text and "is compiled for the 2nd time" in str(only)


def test_the_path_inside_a_model_is_named() -> None:
    run = px.compile(step)
    model, optimizer = network(rate=0.5), optim.SgdConfig().init()
    run(model, optimizer, 0.1, data())
    with px.debug.explain_recompiles() as recompiles:
        for _ in range(3):
            model, _ = run(model, optimizer, 0.1, data())
        assert not recompiles and run.traces == 1
        model.layers[2].rate = 0.25
        run(model, optimizer, 0.1, data())
    (only,) = recompiles
    assert [change.path for change in only.changes] == ["model.layers.2.rate"]
    assert (only.changes[0].before, only.changes[0].after) == ("0.5", "0.25")


def test_the_closest_recording_is_compared_with() -> None:
    run = px.compile(lambda x, mode, flag: x)
    wide = px.ones((9,), device=Jax())
    run(ONE, "a", True)
    run(wide, "b", True)
    with px.debug.explain_recompiles() as recompiles:
        run(wide, "b", False)
        run(ONE, "c", True)
    assert [[change.path for change in one.changes] for one in recompiles] == [["flag"], ["mode"]]
    assert [one.number for one in recompiles] == [3, 4] and run.traces == run.programs == 4


def test_sharing_of_parameters_is_a_cause() -> None:
    run = px.compile(lambda a, b: a)
    one, two = layer(), layer()
    run(one, two)
    with px.debug.explain_recompiles() as recompiles:
        run(one, one.map(lambda path, p: p.copy()))
    (change,) = recompiles[0].changes
    assert str(change) == "which parameters stand in several arguments was none of them and is 2 of them"


def test_a_shape_alone_is_the_cause_where_a_step_has_an_optimizer() -> None:
    """The second trace comes from a call like the one before, which keeps of the optimizer's state only the ids."""

    @px.compile
    def train(model: nn.Linear, optimizer: optim.OptimizerAdaptor, x: px.Tensor) -> nn.Linear:
        grads = optim.GradientsParams.from_grads(model(x).sum().backward(), model)
        return optimizer.step(0.01, model, grads)

    model, optimizer = nn.Linear(3, 2, device=Autodiff(Jax()).device()), optim.AdamWConfig().init()
    with px.debug.explain_recompiles() as recompiles:
        for rows in (4, 4, 5):
            model = train(model, optimizer, px.ones((rows, 3), device=Autodiff(Jax())))
    assert [[change.path for change in one.changes] for one in recompiles] == [["x"]]


def test_checks_are_a_cause_and_scopes_end() -> None:
    run = px.compile(lambda x: x)
    run(ONE)
    with px.debug.explain_recompiles() as recompiles, px.debug.checks():
        run(ONE)
    run(px.ones((5,), device=Jax()))
    assert [change.path for change in recompiles[0].changes] == ["phlox.debug.checks"] and len(recompiles) == 1


def test_every_shape_is_counted() -> None:
    run = px.compile(lambda x: x * 2.0)
    for rows in (1, 2, 1, 3, 2):
        run(px.ones((rows,), device=Jax()))
    assert run.programs == 1 and run.traces == 3
    np.testing.assert_array_equal(run(ONE).numpy(), [2.0, 2.0])


@pytest.mark.full
def test_many_programs_are_told_once() -> None:
    run, x = px.compile(lambda x, mode: x * 2.0), px.ones((2,), device=Jax())
    for mode in range(63):
        run(x, f"mode {mode}")
    with pytest.warns(RuntimeWarning, match=r"compiled 64 times.*phlox\.debug\.explain_recompiles") as told:
        run(x, "mode 63")
    assert len(told) == 1
    for mode in range(64, 70):
        run(x, f"mode {mode}")  # any warning more is an error
    assert run.traces == 70
