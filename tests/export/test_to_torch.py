"""Every layer and model as a program of PyTorch's, all axes open that can be, without an operator of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Torch
from phlox.errors import ExportError
from tests.export.cases import ALL, Case

CANNOT = {"CtcLoss", "padded", "interpolate, nearest", "a loop"}


def operators(program: Any) -> set[str]:
    graphs = [one.graph for one in program.graph_module.modules() if hasattr(one, "graph")]
    return {str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "case",
    [
        # The export traces operations and knows no layers: every sixth says it in the small run.
        pytest.param(case, id=case.name, marks=pytest.mark.full if n % 6 else [])
        for n, case in enumerate(case for case in ALL if case.name not in CANNOT)
    ],
)
def test_a_model_is_exported(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    report = px.export.torch(case.model(), case.inputs, path, sizes=case.sizes)
    assert report.runtime == "torch.export" and report.differences
    assert report.largest_relative_difference < 1e-5
    for name in {name for one in report.differences for name in one.sizes}:
        assert len({one.sizes[name] for one in report.differences}) > 1, "run at several sizes"
    assert not any("phlox" in name for name in operators(torch.export.load(path)))


@pytest.mark.parametrize("case", [case for case in ALL if case.name in CANNOT], ids=lambda case: case.name)
def test_what_cannot_be_open_is_an_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"export\.torch: .*size in place of its name"):
        px.export.torch(case.model(), case.inputs, tmp_path / "model.pt2", sizes=case.sizes)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_pytorch_alone_runs_it(tmp_path: Path) -> None:
    class Model(px.Module):
        def __init__(self) -> None:
            self.first, self.last = nn.Lstm(4, 5), nn.Linear(5, 2)

        def __call__(self, x: px.Tensor) -> dict[str, px.Tensor]:
            y, _ = self.first(x)
            return {"logits": self.last(y), "hidden": y}

    model = Model().init(0)
    path = tmp_path / "model.pt2"
    report = px.export.torch(model, [px.TensorSpec(("batch", "time", 4))], path)
    assert report.outputs.keys() == {"output_logits", "output_hidden"}
    program = torch.export.load(path)
    assert set(program.state_dict) == {name for name, _ in model.named_params()}
    assert "scan" in operators(program)
    x = np.random.default_rng(0).normal(size=(3, 11, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys; import numpy as np, torch; "
        "y = torch.export.load('model.pt2').module()(torch.from_numpy(np.load('x.npy'))); "
        "np.save('y.npy', y['output_logits'].numpy()); assert not any('phlox' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", code], cwd=tmp_path, check=True, timeout=120)
    want = model.valid()(px.tensor(x))["logits"].numpy()
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-4, atol=1e-5)


def test_sizes_that_the_model_refuses_are_refused(tmp_path: Path) -> None:
    report = px.export.torch(nn.Conv1d(2, 3, 5).init(0), [px.TensorSpec(("batch", 2, "time"))], tmp_path / "m.pt2")
    assert any(one.startswith("time >=") for one in report.constraints)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 3, 3, stride=2, padding="same"),
        nn.MaxPool1d(2, ceil_mode=True),
        nn.AvgPool1d(3, stride=2, ceil_mode=True),
    ],
    ids=["Conv1d", "MaxPool1d", "AvgPool1d"],
)
def test_padding_that_depends_on_a_size_is_right_for_every_size(layer: Any, tmp_path: Path) -> None:
    model = layer.init(0) if list(layer.named_params()) else layer
    px.export.torch(model, [px.TensorSpec(("batch", 2, "time"))], tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    for time in (6, 7, 8, 9, 11, 12):
        x = np.random.default_rng(0).normal(size=(3, 2, time)).astype(np.float32)
        found = program(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, model(px.tensor(x)).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape", "open_axes"),
    [
        (nn.Conv2d(3, 4, 3), (3, 8, 8), (0,)),
        (nn.MaxPool2d(2), (3, 8, 8), (0,)),
        (nn.Lstm(4, 8), (5, 4), (0, 1)),
        (nn.MultiHeadAttention(4, 2), (5, 4), (0, 1)),
    ],
    ids=["Conv2d", "MaxPool2d", "Lstm", "MultiHeadAttention"],
)
def test_layers_take_dims_of_pytorch(layer: Any, shape: tuple[int, ...], open_axes: tuple[int, ...]) -> None:
    """Under `torch.export` itself, without `phlox.export`."""
    backend = Torch()
    model = layer.to_device(backend)
    model = (model.init(0) if list(model.named_params()) else model).valid()

    def outputs(x: torch.Tensor) -> torch.Tensor:
        y = model(px.Tensor.from_primitive(x, backend))
        return (y[0] if isinstance(y, tuple) else y).primitive

    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return outputs(x)

    dims = {axis: torch.export.Dim(f"axis{axis}") for axis in open_axes}
    program = torch.export.export(
        Program(), (torch.randn(3, *shape),), dynamic_shapes=(dims,), prefer_deferred_runtime_asserts_over_guards=True
    ).module()
    sizes = [9 if axis in open_axes else size for axis, size in enumerate((3, *shape))]
    x = torch.randn(*sizes)
    torch.testing.assert_close(program(x), outputs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("model.onnx", [px.TensorSpec(("batch", 4))], "wants the suffix .pt2"),
        ("model.pt2", [px.TensorSpec(("batch", 5))], "takes none of the sizes"),
        ("model.pt2", 3, "export.torch: inputs are a list of specs"),
        ("none/model.pt2", [px.TensorSpec(("batch", 4))], "there is no folder"),
    ],
)
def test_bad_input(name: str, inputs: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        px.export.torch(nn.Linear(4, 3).init(0), inputs, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("element", ["f64", "bf16"])
def test_other_precisions(element: Any, tmp_path: Path) -> None:
    model = nn.Sequential([nn.Linear(4, 8), nn.Gelu(), nn.LayerNorm(8)]).init(0).to_device(Torch(float=element))
    report = px.export.torch(model, [px.TensorSpec(("batch", 4))], tmp_path / "model.pt2")
    assert report.inputs == {"x": f"{element} [batch, 4]"}
    assert report.largest_relative_difference < (1e-12 if element == "f64" else 5e-2)
