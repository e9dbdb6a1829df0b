"""The LSTM of programs on PyTorch: results and gradients are those of the equations, in float64."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Torch
from phlox.backend.torch.compiler.kernels import lstm
from tests.backend.errors import error

pytestmark = [
    pytest.mark.usefixtures("kernels_of_our_own"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own, as its compiler loads
]
_operations: Any = torch.ops.phlox
AT_MOST = 2e-6
"""Of the norm of the exact result, for the error."""
SHAPES = [(1, 1, 3, 32), (5, 3, 7, 64), (4, 8, 32, 32), (3, 33, 5, 96), (2, 9, 4, 320)]
"""Steps, batch, features and units."""


def operands(steps: int, batch: int, features: int, units: int, *, scale: float = 1.0) -> list[torch.Tensor]:
    """x, both states, both weights and a bias."""
    shapes = [(steps, batch, features), (batch, units), (batch, units), (features, 4 * units), (units, 4 * units)]
    rng = np.random.default_rng(0)
    made = [rng.standard_normal(shape) / np.sqrt(shape[0] if i > 2 else 1) for i, shape in enumerate(shapes)]
    made[0] *= scale
    return [torch.from_numpy(x.astype(np.float32)) for x in (*made, rng.standard_normal(4 * units))]


def by_equations(given: list[torch.Tensor], reverse: bool) -> list[torch.Tensor]:
    """The results, and the last states."""
    x, h, c, weight, recurrent, bias = given
    y: dict[int, torch.Tensor] = {}
    for step in sorted(range(len(x)), reverse=reverse):
        i, f, g, o = (x[step] @ weight + h @ recurrent + bias).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = y[step] = o.sigmoid() * c.tanh()
    return [torch.stack([y[step] for step in range(len(x))]), h, c]


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(shape: tuple[int, int, int, int], reverse: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    given = operands(*shape)
    exact = [x.double().requires_grad_() for x in given]
    y, last_hidden, last_cell = by_equations(exact, reverse)
    used = _operations.lstm_steps(*given, reverse)
    assert error(used[0], y.detach()) < AT_MOST
    assert error(used[1], last_cell.detach()) < AT_MOST
    states, cells, gates = _operations.lstm_steps_forward(*given, reverse)
    assert torch.equal(lstm.after(states, reverse), used[0])
    assert torch.equal(lstm.before(states, reverse)[-1 if reverse else 0], given[1])
    assert torch.equal(cells[0 if reverse else -1], used[1])
    gs = [torch.from_numpy(np.random.default_rng(1).standard_normal(one.shape)) for one in (y, last_hidden, last_cell)]
    torch.autograd.backward([y, last_hidden, last_cell], gs)
    _, _, cell, weight, recurrent, _ = given
    towards = [g.float() for g in gs]
    d_gates, dh, dc, d_bias = _operations.lstm_steps_backward(gates, cells, cell, recurrent, *towards, reverse)
    d_recurrent = torch.einsum("tbu,tbg->ug", lstm.before(states, reverse).double(), d_gates.double())
    assert error(d_gates.double() @ weight.double().t(), _of(exact[0])) < AT_MOST
    assert error(d_recurrent, _of(exact[4])) < AT_MOST
    assert error(d_bias, _of(exact[5])) < AT_MOST
    assert error(dh, _of(exact[1])) < AT_MOST
    assert error(dc, _of(exact[2])) < AT_MOST


def _of(x: torch.Tensor) -> torch.Tensor:
    assert x.grad is not None
    return x.grad


def test_gates_that_are_wide_open_or_shut_and_nan() -> None:
    given = operands(3, 4, 5, 32, scale=1e4)
    states, cells, gates = _operations.lstm_steps_forward(*given, False)
    exact = by_equations([x.double() for x in given], False)
    assert error(lstm.after(states, False), exact[0]) < AT_MOST
    assert gates[..., :64].min() >= 0
    assert gates.abs().max() <= 1
    assert cells.isfinite().all()
    given[0][1, 2] = torch.nan
    y, _ = _operations.lstm_steps(*given, False)
    assert y[1:, 2].isnan().all()
    assert y[:, [0, 1, 3]].isfinite().all()


def test_small_gates_keep_their_digits() -> None:
    given = [x * 1e-4 for x in operands(1, 2, 3, 32)]
    y, _ = _operations.lstm_steps(*given, False)
    exact = by_equations([x.double() for x in given], False)[0]
    np.testing.assert_allclose(y.numpy(), exact.numpy(), rtol=0, atol=1e-6 * float(exact.abs().max()))


def test_threads_change_nothing() -> None:
    given, found = operands(4, 9, 5, 96), list[Any]()
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        states, cells, gates = _operations.lstm_steps_forward(*given, True)
        towards = [given[4], lstm.after(states, True), given[1], given[2]]
        found.append((states, cells, *_operations.lstm_steps_backward(gates, cells, given[2], *towards, True)))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_the_operations_keep_to_what_they_promise() -> None:
    given = operands(3, 2, 5, 32)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(_operations.lstm_steps, (*given, False), test_utils=checks)
    torch.library.opcheck(_operations.lstm_steps_forward, (*given[:5], None, True), test_utils=checks)
    states, cells, gates = _operations.lstm_steps_forward(*given, True)
    towards = (gates, cells, given[2], given[4], lstm.after(states, True), given[1], given[2], True)
    torch.library.opcheck(_operations.lstm_steps_backward, towards, test_utils=checks)


def test_a_weight_of_use_is_put_in_order_again_when_it_was_written_to() -> None:
    given = operands(2, 1, 4, 32)
    before, _ = _operations.lstm_steps(*given, False)
    given[4].mul_(2)
    y, _ = _operations.lstm_steps(*given, False)
    assert not torch.equal(y, before)
    assert error(y, by_equations([x.double() for x in given], False)[0]) < AT_MOST
    assert lstm._packed_recurrent(given[4]) is lstm._packed_recurrent(given[4])
    count, gone = len(lstm._packed_recurrent), weakref.ref(given[4])
    del given[4]
    assert gone() is None
    assert len(lstm._packed_recurrent) == count - 1


# --- in programs


@pytest.mark.full
@pytest.mark.parametrize(("units", "is_ours"), [(32, True), (24, False)])
def test_a_compiled_layer_is_as_an_eager_one(units: int, is_ours: bool, calls_of: Callable[..., list[str]]) -> None:
    device = Autodiff(Torch()).device()
    model = nn.Lstm(12, units, device=device).init(seed=1)
    x = px.tensor(np.random.default_rng(2).standard_normal((3, 5, 12)).astype(np.float32), device=device)

    def gradients(model: Any, x: px.Tensor) -> list[Any]:
        y, _ = model(x)
        grads = y.square().mean().backward()
        return [y, *[param.val().grad(grads) for param in model.params()]]

    calls = calls_of(lstm)
    expected, found = gradients(model, x), px.compile(gradients)(model, x)
    assert ("forward" in calls, "backward" in calls) == (is_ours, is_ours)
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6 * np.abs(other.numpy()).max())
