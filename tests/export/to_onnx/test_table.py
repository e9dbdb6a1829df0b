"""Every layer and model as a file that is run at several sizes, and compared with the model in f64.

Serves: phlox/export/to_onnx/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import phlox as px
from tests.export.cases import ALL, Case

# What has three axes is exported as what has two.
each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.full] if "3d" in case.name else []) for case in ALL]
)


@pytest.mark.every(2)
@each_case
def test_a_model_is_exported(case: Case, tmp_path: Path) -> None:
    report = px.export.onnx(case.model(), case.inputs, tmp_path / "model.onnx", sizes=case.sizes, **case.options)
    assert report.runtime == "onnxruntime"
    assert set(case.operators) <= report.operators.keys(), report.operators
    assert report.largest_relative_difference < 1e-5
    for text in report.outputs.values():  # no size that was traced with has become one of the file's
        assert not {"11", "15", "22", "30", "37"} & set(
            text.replace("]", ",").replace("[", ",").replace(" ", "").split(",")
        )
    open_axes = {name for one in report.differences for name in one.sizes}
    for name in open_axes:
        assert len({one.sizes[name] for one in report.differences}) > 1, "run at several sizes"


def test_every_layer_is_in_the_table() -> None:
    from phlox import nn
    from phlox.module import Module

    def is_layer(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, Module)

    layers = {name for name in nn.__all__ if is_layer(getattr(nn, name))}
    assert layers - {case.layer for case in ALL} - {"Activation", "Loss", "Router", "ExpertLinear"} == set()  # parts
