"""State dicts of PyTorch's recurrent layers, whose two biases are one of ours, both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.errors import RecordError
from phlox.interop import pytorch
from phlox.record import TensorEntry

T = torch.nn

CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "lstm": (lambda: T.LSTM(3, 4, 2, batch_first=True), lambda: nn.Lstm(3, 4, n_layers=2)),
    "lstm both ways": (
        lambda: T.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
        lambda: nn.Lstm(3, 4, n_layers=2, bidirectional=True),
    ),
    "lstm without bias": (lambda: T.LSTM(3, 4, batch_first=True, bias=False), lambda: nn.Lstm(3, 4, bias=False)),
    "gru": (
        lambda: T.GRU(3, 4, 2, batch_first=True, bidirectional=True),
        lambda: nn.Gru(3, 4, n_layers=2, bidirectional=True),
    ),
    "rnn": (lambda: T.RNN(3, 4, 2, batch_first=True), lambda: nn.Rnn(3, 4, n_layers=2)),
}
CELLS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "lstm": (lambda: T.LSTMCell(3, 4), lambda: nn.LstmCell(3, 4)),
    "gru": (lambda: T.GRUCell(3, 4), lambda: nn.GruCell(3, 4)),
    "rnn": (lambda: T.RNNCell(3, 4), lambda: nn.RnnCell(3, 4)),
}


def first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


def written(module: px.Module) -> dict[str, np.ndarray[Any, Any]]:
    record = pytorch.to_state_dict(module)
    entries = {name: record[name] for name in record}
    return {name: entry.tensor.read() for name, entry in entries.items() if isinstance(entry, TensorEntry)}


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("case", CASES)
def test_layers(case: str, backend: str, tmp_path: Path) -> None:
    theirs, ours = (make() for make in CASES[case])
    ours = ours.to_device(backend)
    report = pytorch.load_state_dict(ours, theirs.state_dict())
    assert report.ok and not report.unexpected and not report.missing
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype(np.float32)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(x))[0].numpy()
    np.testing.assert_allclose(ours(px.tensor(x, device=backend))[0].numpy(), wanted, rtol=1e-5, atol=1e-6)
    again = CASES[case][0]()
    again.load_state_dict({name: torch.tensor(value) for name, value in written(ours).items()})  # strictly
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.from_numpy(x))[0].numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CELLS)
def test_cells(case: str) -> None:
    theirs, ours = (make() for make in CELLS[case])
    pytorch.load_state_dict(ours, theirs.state_dict())
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    with torch.no_grad():
        wanted = first(theirs(torch.from_numpy(x))).numpy()
    np.testing.assert_allclose(first(ours(px.tensor(x))).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_what_the_second_bias_becomes() -> None:
    state = T.GRU(3, 4).state_dict()
    layer = nn.Gru(3, 4)
    pytorch.load_state_dict(layer, state)
    cell = layer.layers[0]
    ih, hh = state["bias_ih_l0"].numpy(), state["bias_hh_l0"].numpy()
    assert isinstance(cell, nn.GruCell) and cell.bias is not None and cell.recurrent_bias is not None
    np.testing.assert_array_equal(cell.bias.val().numpy(), np.concatenate([(ih + hh)[:8], ih[8:]]))
    np.testing.assert_array_equal(cell.recurrent_bias.val().numpy(), hh[8:])
    assert not written(layer)["bias_hh_l0"][:8].any()


def test_biases_that_do_not_fit_are_told() -> None:
    state = {**T.LSTM(3, 4).state_dict(), "bias_hh_l0": torch.zeros(12)}
    with pytest.raises(RecordError, match=r"bias.*\(16,\).*\(12,\)"):
        pytorch.load_state_dict(nn.Lstm(3, 4), state)
