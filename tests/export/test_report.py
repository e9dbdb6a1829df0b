"""Reports of exports, printed and in notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest

import phlox as px
from phlox import nn
from phlox.export.report import Difference, ExportReport
from tests.markup import read

HOSTILE = "<script>\u202e"


def test_any_report() -> None:
    found = read(
        ExportReport(
            path=Path("folder") / HOSTILE, size=2048, inputs={HOSTILE: "f32 [batch, 8]"}, outputs={"y": "f32 [batch]"},
            runtime="onnxruntime", reference="the model", seconds=1.5, constraints=("batch > 1",),
            differences=(Difference({"batch": 3}, "y", 1e-7, 2e-7),),
        )
    )  # fmt: skip
    assert "run and compared" in found.badges and ["input", "<script>\\u202e", "f32 [batch, 8]"] in found.rows
    assert ["y", "batch=3", "1e-07", "2e-07"] in found.rows and "only where batch > 1" in found.text
    empty = ExportReport(
        path=Path("a"), size=0, inputs={}, outputs={}, runtime="", reference="", differences=(), seconds=0.0
    )
    assert "not run" in read(empty).badges


def test_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    report = px.export.onnx(nn.Linear(3, 2).init(0).valid(), [px.TensorSpec(("batch", 3))], tmp_path / "model.onnx")
    found = read(report)
    assert found.texts[0].endswith("model.onnx") and "run and compared" in found.badges and "1 node" in found.text
