"""Every layer and model as a program of JAX's, with all axes open that can be; what JAX refuses names the place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Jax
from phlox.errors import ExportError
from tests.export.cases import ALL, LAYERS, Case

CANNOT = {
    "interpolate, nearest", "interpolate, linear", "interpolate, aligned", "interpolate, cubic", "interpolate, like",
    "grid_sample", "padded", "frames",
}  # fmt: skip
"""No layer of `nn` is among them."""


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
    report = px.export.stablehlo(case.model(), case.inputs, tmp_path / "model", sizes=case.sizes)
    assert report.runtime == "jax.export on cpu" and report.differences
    assert report.largest_relative_difference < 1e-5
    for name in {name for one in report.differences for name in one.sizes}:
        assert len({one.sizes[name] for one in report.differences}) > 1, "run at several sizes"


@pytest.mark.parametrize("case", [case for case in ALL if case.name in CANNOT], ids=lambda case: case.name)
def test_what_cannot_be_open_is_an_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"export\.stablehlo: the model \(cases\.py:\d+\).*give it a size"):
        px.export.stablehlo(case.model(), case.inputs, tmp_path / "model", sizes=case.sizes)
    assert not list(tmp_path.iterdir())


def test_the_error_names_the_layer(tmp_path: Path) -> None:
    class Frames(px.Module):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.signal.frame(x, 4, 2)

    model = nn.Sequential([nn.Relu(), Frames()])
    with pytest.raises(ExportError, match=r"layer `layers\.1` \(test_to_stablehlo\.py:\d+\)"):
        px.export.stablehlo(model, [px.TensorSpec(("batch", "time"))], tmp_path / "model")
    report = px.export.stablehlo(model, [px.TensorSpec(("batch", 9))], tmp_path / "model")
    assert report.largest_difference == 0.0


def test_jax_alone_runs_it_on_either_platform(tmp_path: Path) -> None:
    model = nn.Sequential([nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten()]).init(0)
    inputs = [px.TensorSpec(("batch", 1, "height", 8))]
    path = tmp_path / "model"
    report = px.export.stablehlo(model, inputs, path, platforms=("cpu", "cuda"))
    assert report.constraints[0] == "height >= 3" and len(report.constraints) > 1
    assert jax.export.deserialize(bytearray(path.read_bytes())).platforms == ("cpu", "cuda")
    x = np.random.default_rng(0).normal(size=(3, 1, 9, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys; import numpy as np; from jax import export; "
        "y = export.deserialize(bytearray(open('model', 'rb').read())).call(np.load('x.npy')); "
        "np.save('y.npy', y); assert not any('phlox' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(px.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


def test_sizes_that_the_model_refuses_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    px.export.stablehlo(nn.Conv1d(2, 3, 5).init(0), [px.TensorSpec(("batch", 2, "time"))], path)
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    assert program.call(jnp.zeros((1, 2, 5))).shape == (1, 3, 1)
    with pytest.raises(ValueError, match="refining shapes|time >= 5"):
        program.call(jnp.zeros((1, 2, 4)))


@pytest.mark.full
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_layers_take_symbolic_dimensions_of_jax(case: Case) -> None:
    """Under `jax.export` itself, without `phlox.export`."""
    from phlox.export.arguments import read
    from phlox.transform.tree import leaves_of

    backend = Jax()
    model = case.model(backend.device()).valid()
    arguments = read(model, case.inputs, None)
    names = arguments.open_axes()
    made = dict(zip(names, jax.export.symbolic_shape(", ".join(names)), strict=True))
    specs = [
        jax.ShapeDtypeStruct(tuple([made.get(size, size) for size in one.spec.shape]), backend.element(one.spec.kind))  # pyright: ignore[reportArgumentType, reportCallIssue]
        for one in arguments.inputs
    ]

    def run(*arrays: Any) -> Any:
        rest = iter(arrays)
        args, kwargs = arguments.filled(lambda one: px.Tensor.from_primitive(next(rest), backend, one.spec.kind))
        with px.default_device(backend):
            return [one.primitive for _, one in leaves_of(model(*args, **kwargs), px.Tensor)]

    exported = jax.export.export(jax.jit(run))(*specs)
    assert any(not isinstance(size, int) for one in exported.out_avals for size in one.shape)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([px.TensorSpec(("batch", 4))], {"platforms": "cpu"}, "platforms are some of"),
        ([px.TensorSpec(("batch", 4))], {"platforms": ("abacus",)}, "platforms are some of"),
        (
            [px.TensorSpec(("batch", 4))],
            {"output_names": ["a", "b"]},
            "1 outputs need",
        ),
        ([px.TensorSpec(("batch", 5))], {}, "layer|the model"),
        (3, {}, "export.stablehlo: inputs are a list of specs"),
        ([px.TensorSpec(("batch", 4))], {"sizes": {"time": (3,)}}, "export.stablehlo: sizes are given for 'time'"),
    ],
)
def test_bad_input(inputs: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        px.export.stablehlo(nn.Linear(4, 3).init(0), inputs, tmp_path / "model", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("element", ["f64", "bf16"])
def test_other_precisions(element: Any, tmp_path: Path) -> None:
    model = nn.Sequential([nn.Linear(4, 8), nn.Gelu(), nn.LayerNorm(8)]).init(0).to_device(Jax(float=element))
    report = px.export.stablehlo(model, [px.TensorSpec(("batch", 4))], tmp_path / "model")
    assert report.inputs == {"x": f"{element} [batch, 4]"}
    assert report.largest_relative_difference < (1e-12 if element == "f64" else 5e-2)
