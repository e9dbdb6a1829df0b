"""`compile` on PyTorch: numbers are computed once a run, before the loops that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import _inductor as inductor
from torch._inductor import config
from torch._inductor.utils import run_and_get_cpp_code

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.codegen import VARIABLE
from phlox.backend.torch.graphs import shape_of
from tests.transform.steps import data, network, step, values

TAPE = Autodiff(Torch()).device()
DIFFERENT_RATES = optim.AdamWConfig(weight_decay=0.1)


def trained(run: Any, steps: int = 3) -> Any:
    model, optimizer = network(device=TAPE, rate=0.0), DIFFERENT_RATES.init()
    for number in range(steps):
        model, _ = run(model, optimizer, 0.01 / (number + 1), data(device=TAPE))
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it loads
def test_powers_of_the_moments_rates_are_taken_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "inductor")
    with config.patch(force_disable_caches=True):
        found, code = run_and_get_cpp_code(trained, px.compile(step))
    assert code.count("expm1(") == 2
    for a, b in zip(values(found), values(trained(step)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_no_loop_reads_a_number_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def seen(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setenv(VARIABLE, "inductor")
    monkeypatch.setattr(inductor, "compile", seen)
    found = trained(px.compile(step))
    for a, b in zip(values(found), values(trained(step)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    (graph,) = graphs
    read = {part for node in graph.graph.nodes if shape_of(node) for part in node.all_input_nodes}
    numbers = [node for node in read if node.op == "call_function" and shape_of(node) == ()]
    assert {node.target for node in numbers} == {torch.ops.aten.as_strided.default}
    assert len(numbers) >= 3  # the rate, the decay, and what the second moment is corrected by
