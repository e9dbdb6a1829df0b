"""The conformance kit on backends that provide what the contract requires, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox.backend import Autodiff, EngineBackend
from phlox.backend.contract.catalogue import REQUIRED, provision
from phlox.testing import check_backend
from tests.backend.contract.stranger import Box, Stranger
from tests.backend.plain import Plain


@pytest.mark.full
def test_a_stranger_passes() -> None:
    report = check_backend(Stranger(float="f64"))
    assert report.ok
    assert report.provisions["unsupported"] == 0
    assert report.passed["values"] > 1000


def test_a_stranger_passes_in_single_precision() -> None:
    check_backend(Stranger(), parts=["contract", "draws", "edges"])


@pytest.mark.parametrize("cls", [Plain, Stranger])
def test_nothing_but_what_is_required_is_native(cls: type[EngineBackend]) -> None:
    backend = cls()
    native = {name for name in REQUIRED if provision(backend, name) == "native"}
    assert native == REQUIRED
    assert check_backend(backend, parts=[]).provisions["native"] == len(REQUIRED)


def test_a_box_can_do_nothing() -> None:
    box: Any = Box([1.0])
    for use in (lambda: box + box, lambda: len(box), lambda: box[0], lambda: bool(box), lambda: box == box):
        with pytest.raises(TypeError):
            use()
    assert not hasattr(box, "shape")


def test_models_learn_on_a_stranger() -> None:
    device = Autodiff(Stranger()).device()
    with px.random.stream(0):
        x = px.random.normal((8, 3), device=device)
        model = px.nn.Linear(3, 1, device=device)
        optim = px.optim.SgdConfig().init()
        losses: list[float] = []
        for _ in range(5):
            loss = (model(x) - x.sum(1, keepdims=True)).square().mean()
            losses.append(loss.item())
            grads = px.GradientsParams.from_grads(loss.backward(), model)
            model = optim.step(0.1, model, grads)
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2
