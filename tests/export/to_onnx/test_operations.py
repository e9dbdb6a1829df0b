"""Every operation of the conformance kit as a file, run by onnxruntime and compared with the model in f64.

Serves: phlox/export/to_onnx/{table,elementwise,moving,reductions,products,pooling,loops,engine}.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend.contract.catalogue import REQUIRED
from phlox.errors import ExportError
from phlox.export.to_onnx.table import FROM_NOTHING, RULES
from phlox.module.calls import FunctionLayer
from phlox.testing.conformance.row import Row, Sample
from phlox.testing.conformance.rows import ROWS

REFUSED = (
    "argwhere", "bincount", "cholesky", "cond", "eig", "inv", "lstsq", "masked_select", "matrix_exp", "matrix_norm -2",
    "matrix_norm 2", "matrix_norm nuc", "matrix_power -2", "matrix_rank", "nonzero", "norm 2 (0, 1)", "pinv", "polar",
    "qr", "slogdet", "solve", "svd", "unique",
)  # fmt: skip
"""Beginnings of the names of what has no operator, or a shape that depends on values."""

DIFFERENT = {
    "int pow": "of what does not fit", "int prod wraps": "of what does not fit", "atan2 signs": "signs of zeros",
    "float //, signs": "signs of zeros", "float %, signs": "signs of zeros", "float divmod 0, signs": "signs of zeros",
    "float divmod 1, signs": "signs of zeros",
}  # fmt: skip
"""Where runtimes have answers of their own."""


def sample_of(row: Row) -> Sample | None:
    """The last sample in which no array is empty: runtimes end the process on some of those."""
    found = [one for one in row.samples if all(a.size for a in one if isinstance(a, np.ndarray))]
    return found[-1] if found and any(isinstance(a, np.ndarray) for a in found[-1]) else None


def model_of(row: Row, sample: Sample) -> Callable[..., Any]:
    def call(*tensors: Any) -> Any:
        rest = iter(tensors)
        return row.call(*[next(rest) if isinstance(a, np.ndarray) else a for a in sample])

    return call


CASES = [
    (row, sample)
    for row in ROWS
    if not row.name.startswith("the sign of a zero")
    and row.name not in DIFFERENT
    and (sample := sample_of(row)) is not None
]


def is_refused(name: str) -> bool:
    return name.startswith(REFUSED) or ("mask" in name and name.startswith(("x[", "x.at[")))


@pytest.mark.covering(1, "row")
@pytest.mark.parametrize(("row", "sample"), CASES, ids=[row.name for row, _ in CASES])
def test_an_operation_is_what_it_is_on_numpy(row: Row, sample: Sample, tmp_path: Path) -> None:
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in sample if isinstance(a, np.ndarray)]
    model = FunctionLayer(model_of(row, sample))
    try:
        report = px.export.onnx(model, arrays, tmp_path / "model.onnx", tolerance=1e-3)
    except ExportError as error:
        assert is_refused(row.name), error
        assert "no operator in ONNX" in str(error) or "depends on" in str(error) or "no value" in str(error)
    else:
        assert report.runtime == "onnxruntime" or row.name == "repeat 0 0"


def test_most_are_exported() -> None:
    assert sum(not is_refused(row.name) for row, _ in CASES) > 1300


def test_every_required_operation_has_a_rule() -> None:
    assert {*RULES, *FROM_NOTHING} >= REQUIRED


class Masked(px.Module):
    """An Lstm that takes any mask."""

    def __init__(self) -> None:
        self.cell = px.nn.LstmCell(3, 2)

    def __call__(self, x: px.Tensor, mask: px.Tensor[Any, Any, Any]) -> Any:
        bias, zeros = self.cell.bias, px.zeros((x.shape[0], 2), device=x.device)
        assert bias is not None
        weights = self.cell.weight.val(), self.cell.recurrent.val(), bias.val()
        return px.functional.lstm(x, zeros, zeros, *weights, mask=mask)


def test_a_mask_that_is_no_length_is_a_loop(tmp_path: Path) -> None:
    specs = [px.TensorSpec(("n", "time", 3)), px.TensorSpec(("n", "time"), px.Bool)]
    report = px.export.onnx(Masked().init(seed=0), specs, tmp_path / "model.onnx")
    assert "Scan" in report.operators and "LSTM" not in report.operators
    assert report.largest_difference < 1e-5
