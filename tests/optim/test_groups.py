"""Groups, rates by group, clipping of all gradients together, steps that are skipped: eagerly and compiled.

Serves: phlox/module/gradients.py, phlox/optim/step/skip_nonfinite.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.errors import OptimizerError, PhloxError
from phlox.module import ParamId

ENGINES = ["numpy", "jax", "torch"]


def model_on(engine: str) -> Any:
    model = nn.Sequential(body=nn.Linear(4, 3), norm=nn.LayerNorm(3), head=nn.Linear(3, 2)).init(seed=1, device=engine)
    return model.train()


def batch_on(engine: str, scale: float = 1.0) -> Any:
    x = np.linspace(-1, 2, 20, dtype=np.float32).reshape(5, 4) * scale
    return px.Tensor.from_inner(px.tensor(x, device=engine))


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}


def one_step(model: Any, optimizer: Any, lr: Any, x: Any) -> Any:
    loss = model(x).square().sum()
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model))


def runner(engine: str, compiled: bool) -> Callable[..., Any]:
    return px.compile(one_step) if compiled else one_step


def torch_twin(engine: str) -> tuple[dict[str, torch.nn.Parameter], Callable[[torch.Tensor], torch.Tensor]]:
    p = {path: torch.nn.Parameter(torch.tensor(value)) for path, value in values(model_on(engine)).items()}

    def forward(x: torch.Tensor) -> torch.Tensor:
        h = x @ p["layers.body.weight"] + p["layers.body.bias"]
        h = torch.nn.functional.layer_norm(h, (3,), p["layers.norm.gamma"], p["layers.norm.beta"])
        return h @ p["layers.head.weight"] + p["layers.head.bias"]

    return p, forward


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES)
def test_groups_are_those_of_torch(engine: str, compiled: bool) -> None:
    p, forward = torch_twin(engine)
    x = torch.tensor(batch_on(engine).numpy())
    head = [p["layers.head.weight"]]
    decayed = [p["layers.body.weight"]]
    plain = [value for path, value in p.items() if value.ndim == 1]
    theirs = [
        torch.optim.AdamW([{"params": decayed, "weight_decay": 0.3}, {"params": plain, "weight_decay": 0.0}], lr=0.02),
        torch.optim.SGD(head, lr=0.002, momentum=0.9),
    ]
    groups = [
        optim.Group(optim.vectors, weight_decay=0.0),
        optim.Group("layers.head.weight", lr_factor=0.1, optimizer=optim.SgdConfig(momentum=0.9)),
    ]
    optimizer = optim.AdamWConfig(weight_decay=0.3).init(groups=groups)
    model, run = model_on(engine), runner(engine, compiled)
    for _ in range(5):
        for one in theirs:
            one.zero_grad()
        forward(x).square().sum().backward()
        for one in theirs:
            one.step()
        model = run(model, optimizer, 0.02, batch_on(engine))
    for path, value in values(model).items():
        np.testing.assert_allclose(value, p[path].detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=path)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_rate_for_a_group(engine: str, compiled: bool) -> None:
    groups = [optim.Group("layers.head", name="head", lr_factor=0.5), optim.Group("layers.norm", weight_decay=0.5)]
    by_name = optim.SgdConfig().init(groups=groups)
    model = model_on(engine)
    before = values(model)
    run = runner(engine, compiled)
    together = values(run(model, optim.SgdConfig().init(), 0.1, batch_on(engine)))
    apart = values(run(model, by_name, {"head": 0.2, "*": 0.1}, batch_on(engine)))
    for path in ("layers.head.weight", "layers.head.bias", "layers.body.weight"):
        np.testing.assert_allclose(apart[path], together[path], rtol=1e-5, atol=1e-6)
    shrunk = together["layers.norm.gamma"] - 0.1 * 0.5 * before["layers.norm.gamma"]
    np.testing.assert_allclose(apart["layers.norm.gamma"], shrunk, rtol=1e-5, atol=1e-6)
    frozen = values(run(model, by_name, {"head": 0.0, "*": 0.1}, batch_on(engine)))
    np.testing.assert_array_equal(frozen["layers.head.weight"], before["layers.head.weight"])


def a_group(*which: Any, **options: Any) -> Callable[[], Any]:
    return lambda: optim.AdamWConfig().init(groups=[optim.Group(*which, **options)])


def two_groups() -> Any:
    return optim.SgdConfig().init(
        groups=[optim.Group("**.bias", weight_decay=0.0), optim.Group("layers.head", lr_factor=0.1)]
    )


def a_rate(lr: Any) -> Callable[[], Any]:
    def make() -> Any:
        optimizer = optim.SgdConfig().init(groups=[optim.Group("**.bias", name="biases")])
        return one_step(model_on("numpy"), optimizer, lr, batch_on("numpy"))

    return make


class NoConfig(optim.SimpleOptimizer):
    def step(self, lr: float, tensor: Any, grad: Any, state: Any) -> Any:
        return tensor - grad * lr, state


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "two groups": (two_groups, r"`layers\.head\.bias` is in two groups, Group\('\*\*\.bias'\) and Group\('lay"),
    "no such parameter": (a_group("**.bais", weight_decay=0.0), r"Group\('\*\*\.bais'\): .*did you mean `\*\*\.bias`"),
    "no such setting": (a_group("**.bias", wieght_decay=0.0), r"Group\('\*\*\.bias'\): .*wieght_decay"),
    "a bad setting": (a_group("**.bias", weight_decay=-1.0), r"Group\('\*\*\.bias'\): .*weight_decay"),
    "nothing": (a_group(weight_decay=0.0), "needs a pattern of its parameters"),
    "no difference": (a_group("**.bias"), "this group does not differ from the rest"),
    "a negative factor": (
        a_group("**.bias", lr_factor=-1.0),
        "lr_factor is a finite number.*got -1.0",
    ),
    "no number": (a_group("**.bias", lr_factor=float("nan")), "lr_factor is a finite number"),
    "no config": (
        lambda: optim.OptimizerAdaptor(NoConfig(), groups=[optim.Group("**.bias", weight_decay=0.0)]),
        "NoConfig has no config in which weight_decay",
    ),
    "no rate for the rest": (a_rate({"biases": 0.1}), r"one for all others under '\*'.*\(biases\), got 'biases'"),
    "an unknown rate": (a_rate({"*": 0.1, "head": 0.1}), r"names of groups \(biases\), got '\*', 'head'"),
    "a negative rate": (a_rate({"*": 0.1, "biases": -0.1}), "the learning rate must be a finite number"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_groups_refuse(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(OptimizerError, match=message):
        one_step(model_on("numpy"), make(), 0.1, batch_on("numpy"))


def test_a_refused_step_changes_nothing() -> None:
    model, optimizer = model_on("numpy"), two_groups()
    with pytest.raises(PhloxError):
        one_step(model, optimizer, 0.1, batch_on("numpy"))
    assert not optimizer.states


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_the_norm_of_all_gradients(limit: float, engine: str, compiled: bool) -> None:
    p, forward = torch_twin(engine)
    x = batch_on(engine)
    forward(torch.tensor(x.numpy())).square().sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(p.values(), limit)
    torch.optim.SGD(p.values(), lr=1.0).step()
    optimizer = optim.SgdConfig().init(grad_clipping=optim.GradientClipping.global_norm(limit))
    model = model_on(engine)
    grads = optim.GradientsParams.from_grads(model(x).square().sum().backward(), model)
    np.testing.assert_allclose(grads.norm().item(), norm.item(), rtol=1e-5)
    stepped = values(runner(engine, compiled)(model, optimizer, 1.0, x))
    for path, value in stepped.items():
        np.testing.assert_allclose(value, p[path].detach().numpy(), rtol=1e-4, atol=2e-5, err_msg=path)


def test_the_norm_does_not_overflow_at_half_precision() -> None:
    from phlox.backend import NumPy

    x = px.full((100,), 300.0, device=NumPy(float="f16"))
    grads = optim.GradientsParams({ParamId("a"): x})
    assert grads.norm().item() == pytest.approx(3000.0)
    clipped = optim.GradientClipping.global_norm(30.0).of_all(grads).get(ParamId("a"))
    assert clipped is not None
    np.testing.assert_allclose(clipped.numpy().astype(float), 3.0, rtol=1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("config", [optim.AdamWConfig(), optim.SgdConfig(momentum=0.9)], ids=["adamw", "sgd"])
def test_a_step_with_gradients_that_are_not_finite_changes_nothing(config: Any, engine: str, compiled: bool) -> None:
    run = runner(engine, compiled)
    model, optimizer = model_on(engine), config.init(skip_nonfinite=True)
    twin, other = model_on(engine), config.init()
    for scale in (1.0, float("inf"), 0.5, float("nan"), 2.0):
        with np.errstate(all="ignore"):  # NumPy warns, as it does of its own arrays
            model = run(model, optimizer, 0.1, batch_on(engine, scale))
        if np.isfinite(scale):
            twin = run(twin, other, 0.1, batch_on(engine, scale))
    for path, value in values(model).items():
        np.testing.assert_allclose(value, values(twin)[path], rtol=1e-6, atol=1e-7, err_msg=path)
    counts = [state["time"] for state in optimizer.states.values() if state and "time" in state]
    assert set(counts) <= {3}
