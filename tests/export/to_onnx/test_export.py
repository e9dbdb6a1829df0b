"""The call as a whole: names, open axes, precisions, operator sets, the files, the report, and what is refused.

Serves: phlox/export/to_onnx/{export,trace,check,report}.py, phlox/export/{arguments,comparison}.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import phlox as px
from phlox import models, nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import ExportError, ExtraNotInstalledError, ShapeError
from phlox.export.comparison import differences, limit_of
from phlox.module.calls import FunctionLayer
from phlox.module.param import Param
from tests.calls import calls_of
from tests.export.cases import ALL, Case

Spec = px.TensorSpec
BATCH = [Spec(("batch", 4))]


def run(path: Path, **feeds: Any) -> list[Any]:
    session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def mlp(device: Any = None) -> Any:
    return nn.Sequential([nn.Linear(4, 8, device=device), nn.Gelu(), nn.Linear(8, 3, device=device)]).init(seed=0)


# --- what is in the file


def test_parameters_are_initializers_under_their_paths(tmp_path: Path) -> None:
    model = mlp()
    px.export.onnx(model, BATCH, tmp_path / "m.onnx")
    file = onnx.load(tmp_path / "m.onnx")
    found = {one.name: onnx.numpy_helper.to_array(one) for one in file.graph.initializer}
    assert found.keys() == {path for path, _ in model.named_params()}
    for path, param in model.named_params():
        np.testing.assert_array_equal(found[path], param.val().numpy())
    assert [node.name for node in file.graph.node] == ["layers.0/Gemm", "layers.1/Gelu", "layers.2/Gemm"]
    assert file.producer_name == "phlox" and file.producer_version == px.__version__


def test_the_metadata_say_what_the_model_is(tmp_path: Path) -> None:
    config = models.DigitsConfig(channels=(2, 3))
    px.export.onnx(config.init(), [Spec(("n", 1, 8, 8))], tmp_path / "m.onnx", check_file=False)
    found = {one.key: one.value for one in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert found["phlox.model"] == "DigitsNet"
    gpt = models.GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2)
    px.export.onnx(gpt.init(), [Spec(("n", "t"), px.Int)], tmp_path / "m.onnx", check_file=False, sizes={"t": (3, 5)})
    found = {one.key: one.value for one in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert models.GptConfig.from_dict(json.loads(found["phlox.config"])) == gpt


def test_tied_parameters_are_there_once(tmp_path: Path) -> None:
    config = models.GptConfig(vocabulary=12, context=8, n_layers=1, d_model=4, n_heads=2, tied=True)
    px.export.onnx(config.init(), [Spec(("n", 5), px.Int)], tmp_path / "m.onnx")
    shapes = [tuple(one.dims) for one in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert shapes.count((12, 4)) == 1 and (4, 12) not in shapes


def test_the_graph_has_neither_dead_nodes_nor_copies(tmp_path: Path) -> None:
    def fn(x: px.Tensor) -> px.Tensor:
        x.exp()  # of which nothing is made
        y = x.reshape((-1, 2, 2)).reshape((-1, 4)).permute_dims((1, 0)).permute_dims((1, 0))
        return (y + 1.0) * (y + 1.0) + px.zeros((4,)) * 3.0

    report = px.export.onnx(FunctionLayer(fn), BATCH, tmp_path / "m.onnx")
    assert report.operators == {"Add": 2, "Mul": 1}
    file = onnx.load(tmp_path / "m.onnx")
    assert len(file.graph.initializer) == 2, "the one, and the zeros that were computed"


def test_batch_norm_is_one_operator(tmp_path: Path) -> None:
    layer = nn.BatchNorm(4).init(seed=0)
    for place, param in enumerate(layer.params()):
        param.set(px.tensor([0.5 + place, 1.0, 2.0, 0.25]))
    model = nn.Sequential([nn.Conv2d(1, 4, 3), layer]).init(seed=0)
    assert px.export.onnx(model, [Spec(("n", 1, 8, 8))], tmp_path / "m.onnx").operators == {
        "Conv": 1,
        "BatchNormalization": 1,
    }


# --- names and axes


class Pair(px.Module):
    """Two arguments, and a structure for a result."""

    def __call__(self, x: px.Tensor, *, more: dict[str, px.Tensor]) -> dict[str, Any]:
        return {"sum": x + more["a"], "both": (x * 2.0, more["b"])}


def test_names_of_inputs_and_outputs(tmp_path: Path) -> None:
    inputs = {"x": Spec(("n", 4)), "more": {"a": Spec(("n", 4)), "b": Spec((3,))}}
    report = px.export.onnx(Pair(), inputs, tmp_path / "m.onnx")
    assert report.inputs == {"x": "f32 [n, 4]", "more_a": "f32 [n, 4]", "more_b": "f32 [3]"}
    assert list(report.outputs) == ["output_sum", "output_both_0", "output_both_1"]
    report = px.export.onnx(
        Pair(), inputs, tmp_path / "m.onnx", input_names=["p", "q", "r"], output_names=["s", "t", "u"]
    )
    assert list(report.inputs) == ["p", "q", "r"] and list(report.outputs) == ["s", "t", "u"]
    x = np.ones((6, 4), np.float32)
    found = run(tmp_path / "m.onnx", p=x, q=x * 3, r=np.zeros(3, np.float32))
    assert [one.shape for one in found] == [(6, 4), (6, 4), (3,)] and found[0][0, 0] == 4.0


def test_a_name_that_the_graph_uses_already(tmp_path: Path) -> None:
    model = FunctionLayer(lambda x: x.exp().sin() + x.exp())
    px.export.onnx(model, BATCH, tmp_path / "m.onnx", output_names=["Exp"])
    assert run(tmp_path / "m.onnx", args_0=np.zeros((2, 4), np.float32))[0][0, 0] == pytest.approx(1.8414709)


class Scaled(px.Module):
    """A model with an argument and a result that are called as parameters are, and results of one name in a file."""

    def __init__(self) -> None:
        self.weight = self.output = px.Param.deferred((3,), nn.Ones())

    def __call__(self, x: Any, weight: Any) -> Any:
        return {"top-1": 7 // weight, "top_1": x * self.weight.val() * self.output.val()}


def test_names_that_parameters_have_and_results_that_share_one(tmp_path: Path) -> None:
    """The integer that divides is not drawn as zero."""
    report = px.export.onnx(Scaled().init(0), [Spec(("n", 3)), Spec(("n", 3), kind=px.Int)], tmp_path / "m.onnx")
    assert list(report.inputs) == ["x", "weight_2"] and list(report.outputs) == ["output_top_1", "output_top_1_2"]
    feeds = {"x": np.full((2, 3), 7.0, np.float32), "weight_2": np.full((2, 3), 2, np.int32)}
    assert [one[0, 0] for one in run(tmp_path / "m.onnx", **feeds)] == [3.0, 7.0]
    with pytest.raises(ExportError, match="input_names: 'weight' is the path of a parameter; choose another"):
        px.export.onnx(
            Scaled().init(0),
            [Spec(("n", 3)), Spec(("n", 3), kind=px.Int)],
            tmp_path / "m.onnx",
            input_names=["x", "weight"],
        )


def test_any_number_of_open_axes_in_any_place(tmp_path: Path) -> None:
    def fn(x: px.Tensor, y: px.Tensor) -> px.Tensor:
        a, b, c = x.shape
        return x.reshape((a * b, c)).T.reshape((c, b, a)).mean((0, 2)) / y.shape[0] + x.reshape((-1,))[: a + 1].sum()

    specs = [Spec(("a", "b", "c")), Spec(("a", 2, "c", "b"))]
    px.export.onnx(FunctionLayer(fn), specs, tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    for a, b, c in ((2, 3, 4), (5, 1, 2), (1, 6, 3)):
        x, y = rng.normal(size=(a, b, c)).astype("f4"), np.zeros((a, 2, c, b), "f4")
        want = fn(px.tensor(x), px.tensor(y)).numpy()
        np.testing.assert_allclose(run(tmp_path / "m.onnx", args_0=x, args_1=y)[0], want, rtol=1e-5, atol=1e-6)
    file = onnx.load(tmp_path / "m.onnx")
    dims = file.graph.input[1].type.tensor_type.shape.dim
    assert [one.dim_param or one.dim_value for one in dims] == ["a", 2, "c", "b"]


def test_values_that_are_given_are_those_it_is_run_with(tmp_path: Path) -> None:
    x = px.tensor([[0.0, 1.0, 2.0, 3.0]])
    report = px.export.onnx(mlp(), [x], tmp_path / "m.onnx")
    assert report.inputs == {"x": "f32 [1, 4]"} and [one.sizes for one in report.differences] == [{}]
    report = px.export.onnx(FunctionLayer(lambda i: px.arange(7)[i]), [np.array([6, 2])], tmp_path / "m.onnx")
    assert report.largest_difference == 0.0


def test_sizes_are_those_that_the_model_takes(tmp_path: Path) -> None:
    class Patches(px.Module):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            if x.shape[1] % 12:
                raise ShapeError("patches are of 12")
            return x.reshape((x.shape[0], -1, 12))

    report = px.export.onnx(Patches(), [Spec(("n", "size"))], tmp_path / "m.onnx", sizes={"size": (24, 36, 60)})
    assert [one.sizes["size"] for one in report.differences] == [24, 36, 60]
    with pytest.raises(ExportError, match=r"patches are of 12.*tried.*sizes=\{'size': \(32, 64\)\}"):
        px.export.onnx(Patches(), [Spec(("n", "size"))], tmp_path / "m.onnx", sizes={"size": (25,)})


@pytest.mark.parametrize("layer", [nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, stride=2, ceil_mode=True)])
def test_a_last_window_is_there_for_some_sizes_only(layer: Any, tmp_path: Path) -> None:
    """The file is right for sizes that it was not traced with, of any rest when they are divided by the stride."""
    px.export.onnx(layer, [Spec(("n", 2, "h", "w"))], tmp_path / "m.onnx")
    session: Any = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for height, width in ((6, 8), (7, 9), (9, 6), (10, 7)):
        x = np.random.default_rng(0).normal(size=(1, 2, height, width)).astype(np.float32)
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(found, layer(px.tensor(x, device="numpy")).numpy(), atol=1e-6)


F = px.functional
OF_ANY_SIZE: dict[str, Callable[[px.Tensor], px.Tensor]] = {
    "padded to a multiple": lambda x: x.pad(((0, 0), (0, (4 - x.shape[1] % 4) % 4))),
    "one size less another, halved": lambda x: x.reshape((-1,))[: (4 * x.shape[1] - x.shape[0]) // 2],
    "rolled": lambda x: x.roll((1, -3), (0, 1)),
    "rolled by a size that is tried": lambda x: x.roll((7, 11), (0, 1)),
    "cropped or padded": lambda x: px.signal.overlap_add(x[:, :4], 2, size=17),
    "pooled to sizes that are tried": lambda x: F.adaptive_avg_pool2d(x.reshape((1, 1, *x.shape)), (7, 11)),
    "nearest, transposed": lambda x: F.interpolate(x.reshape((1, 1, *x.shape)), (x.shape[1], x.shape[0])),
    "nearest-exact, by a part": lambda x: F.interpolate(
        x.reshape((1, *x.shape)), scale_factor=1.1, mode="nearest-exact"
    ),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_sizes_that_the_file_was_not_traced_with(name: str, tmp_path: Path) -> None:
    fn = OF_ANY_SIZE[name]
    px.export.onnx(FunctionLayer(fn), [Spec(("n", "m"))], tmp_path / "m.onnx", sizes={"n": (7, 12), "m": (11, 20)})
    for n, m in ((2, 4), (3, 5), (8, 6), (9, 7), (12, 20), (14, 9), (7, 11)):
        x = np.random.default_rng(0).normal(size=(n, m)).astype(np.float32)
        want = fn(px.tensor(x, device="numpy")).numpy()
        np.testing.assert_allclose(run(tmp_path / "m.onnx", args_0=x)[0], want, atol=1e-6)


# --- precisions, engines and operator sets


@pytest.mark.parametrize("call", [
    lambda x: (x * 0.01 - 17.0).sigmoid(),  # whose rounding is that of numbers beside one
    lambda x: px.where(x > 0.0, x, -np.inf).nan_to_num(),
    lambda x: (x * 1e3).exp(),  # too large for f32
])  # fmt: skip
def test_rounding_and_range_are_those_of_the_models_precision(call: Any, tmp_path: Path) -> None:
    for export, name in ((px.export.onnx, "m.onnx"), (px.export.torch, "m.pt2")):
        report = export(FunctionLayer(call), [Spec(("n", 4))], tmp_path / name)
        assert report.differences


OF_NONE: dict[str, Callable[[px.Tensor], px.Tensor]] = {
    "rolled": lambda x: x.roll((1, -3), (0, 1)),
    # onnxruntime itself divides by zero in groups without elements.
    "in groups": lambda x: F.group_norm(x.pad(((0, 0), (0, 2))).expand_dims(1).repeat(4, 1), 2),
    "repeated": lambda x: x.repeat(3, 1),
    "of a product": lambda x: px.kron(x, px.ones((2, 2), device=x.device)),
}


@pytest.mark.parametrize("name", OF_NONE)
def test_axes_may_be_empty(name: str, tmp_path: Path) -> None:
    call = OF_NONE[name]
    px.export.onnx(FunctionLayer(call), [Spec(("n", "m"))], tmp_path / "m.onnx")
    for n, m in ((0, 3), (3, 0), (0, 0), (1, 1), (2, 5)):
        x = np.random.default_rng(0).normal(size=(n, m)).astype(np.float32)
        want = call(px.tensor(x, device="numpy")).numpy()
        found = run(tmp_path / "m.onnx", args_0=x)[0]
        assert found.shape == want.shape, (n, m)
        np.testing.assert_allclose(found, want, atol=1e-5)


SPECIAL: dict[str, Callable[[px.Tensor], px.Tensor]] = {
    "clip below": lambda x: x.clip(-0.5),
    "clip above": lambda x: x.clip(None, 0.5),
    "clip, softmax": lambda x: x.clip(-2.0).softmax(-1),
    "hard_shrink": lambda x: x.hardshrink(0.5),
    "soft_shrink": lambda x: x.softshrink(0.5),
    "constant NaN": lambda x: px.where(x > 0.0, x, px.full((1, 3), np.nan, device=x.device)),
    "masked_fill NaN": lambda x: x.masked_fill(x > 0.0, np.nan),
    "pad NaN": lambda x: x.pad(((0, 0), (1, 1)), np.nan),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_infinities_and_nan_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    call = SPECIAL[name]
    px.export.onnx(FunctionLayer(call), [Spec(("n", 3))], tmp_path / "m.onnx")
    x = np.array([[np.inf, -np.inf, np.nan], [0.2, -0.7, 1.5], [-np.inf, 0.0, -3.0]], np.float32)
    with np.errstate(all="ignore"):
        wanted = call(px.tensor(x, device="numpy")).numpy()
    np.testing.assert_allclose(run(tmp_path / "m.onnx", args_0=x)[0], wanted, 1e-6)


def test_open_sizes_of_an_antialiased_resize(tmp_path: Path) -> None:
    modes: tuple[Any, ...] = ("bilinear", "bicubic")
    for mode in modes:
        layer = FunctionLayer(lambda x, mode=mode: F.interpolate(x, (5, 9), mode=mode, antialias=True))
        px.export.onnx(layer, [Spec(("n", 1, "h", "w"))], tmp_path / "m.onnx")
        x = np.random.default_rng(0).normal(size=(2, 1, 17, 6)).astype(np.float32)
        np.testing.assert_allclose(
            run(tmp_path / "m.onnx", args_0=x)[0], layer(px.tensor(x, device="numpy")).numpy(), atol=1e-5
        )


SOME = [case for case in ALL if case.name in ("Linear", "Conv2d", "BatchNorm", "MultiHeadAttention", "Gru", "Gpt")]
some = pytest.mark.parametrize("case", SOME, ids=[case.name for case in SOME])


@pytest.mark.covering(2)
@some
@pytest.mark.parametrize(
    ("backend", "most"),
    [(NumPy(float="f64"), 1e-6), (NumPy(float="f16"), 5e-3), (NumPy(float="bf16"), 5e-2), (Torch(int="i64"), 1e-5),
     (Jax(), 1e-5), (Autodiff(NumPy()), 1e-5)],
    ids=repr,
)  # fmt: skip
def test_precisions_and_engines(case: Case, backend: Any, most: float, tmp_path: Path) -> None:
    report = px.export.onnx(case.model(backend), case.inputs, tmp_path / "m.onnx")
    assert report.largest_relative_difference < most
    element = backend.float_element
    initializers = onnx.load(tmp_path / "m.onnx").graph.initializer
    kept = {one.data_type for one in initializers if one.name.endswith(("weight", "gamma"))}
    assert kept == {{"f32": 1, "f64": 11, "f16": 10, "bf16": 16}[element]}
    assert next(iter(report.outputs.values())).startswith(element)


@some
@pytest.mark.parametrize("opset", [18, 23, 25])
def test_operator_sets(case: Case, opset: int, tmp_path: Path) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("this version of the onnx package does not know it")
    report = px.export.onnx(case.model(), case.inputs, tmp_path / "m.onnx", opset=opset)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == report.opset == opset
    assert report.runtime == "onnxruntime" and report.largest_relative_difference < 1e-5
    if case.layer == "MultiHeadAttention":
        assert ("Attention" in report.operators) == (opset >= 23)


def test_recurrent_operators_are_not_run_with_empty_axes(tmp_path: Path) -> None:
    """onnxruntime would end the process; the report says what was not tried."""
    report = px.export.onnx(nn.Lstm(4, 4).init(seed=0), [px.TensorSpec(("batch", "time", 4))], tmp_path / "m.onnx")
    assert all(size for one in report.tried for size in one.values())
    assert any("not tried with empty axes" in remark for remark in report.remarks)


def test_the_reference_evaluator_runs_it_too(tmp_path: Path) -> None:
    report = px.export.onnx(mlp(), BATCH, tmp_path / "m.onnx", runtime="onnx.reference")
    assert report.runtime == "onnx.reference" and report.largest_difference < 1e-5
    lengths = {"x": Spec(("n", "t", 4)), "lengths": Spec(("n",), px.Int)}
    with pytest.raises(ExportError, match=r"no runtime.*ignores the sequence lengths of LSTM.*check_file=False"):
        px.export.onnx(nn.Lstm(4, 4).init(seed=0), lengths, tmp_path / "m.onnx", runtime="onnx.reference")


def test_numpy_and_onnx_are_enough(tmp_path: Path) -> None:
    program = f"""
import sys
for name in ("jax", "torch", "onnxruntime", "scipy"):
    sys.modules[name] = None
import phlox as px
from phlox import nn
model = nn.Sequential([nn.Conv2d(1, 2, 3), nn.Relu(), nn.Flatten(), nn.Linear(72, 3)]).init(seed=0)
report = px.export.onnx(model, [px.TensorSpec(("n", 1, 8, 8))], {str(tmp_path / "m.onnx")!r})
print(report.runtime, report.largest_difference < 1e-5)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["onnx.reference", "True"], done.stderr


# --- files


def test_large_weights_have_a_file_of_their_own(tmp_path: Path) -> None:
    model = nn.Linear(256, 128).init(seed=0)
    report = px.export.onnx(model, [Spec(("n", 256))], tmp_path / "m.onnx", external_data=True)
    assert [file.name for file in report.files] == ["m.onnx", "m.onnx.data"]
    assert report.files[0].stat().st_size < 1024 and report.files[1].stat().st_size >= 4 * 256 * 128
    assert report.size == sum(file.stat().st_size for file in report.files)
    x = np.ones((3, 256), np.float32)
    np.testing.assert_allclose(run(report.path, x=x)[0], model(px.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    px.export.onnx(mlp(), BATCH, path)
    before = path.read_bytes()
    with pytest.raises(ExportError, match="differs from the model by"):
        px.export.onnx(nn.Linear(4, 2).init(seed=1), BATCH, path, tolerance=0.0)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    px.export.onnx(nn.Linear(4, 2).init(seed=1), BATCH, path)
    assert path.read_bytes() != before


def test_the_report(tmp_path: Path) -> None:
    report = px.export.onnx(mlp(), BATCH, tmp_path / "m.onnx")
    text = str(report)
    for part in (
        "m.onnx: ",
        "opset 20",
        "3 nodes",
        "x       f32 [batch, 4]",
        "2 Gemm, 1 Gelu",
        "onnxruntime",
        "batch=1 ",
    ):
        assert part in text
    assert report.nodes == 3 and len(report.differences) >= 3
    assert report.largest_difference == max(one.absolute for one in report.differences)
    quiet = px.export.onnx(mlp(), BATCH, tmp_path / "m.onnx", check_file=False)
    assert quiet.runtime == "" and quiet.differences == () and "not run" in str(quiet)
    assert quiet.largest_difference == 0.0


# --- what has no place in a file


class Holder(px.Module):
    """A layer below the model that is the culprit."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.before = nn.Linear(4, 4)
        self.inner = FunctionLayer(fn)

    def __call__(self, x: px.Tensor) -> Any:
        return self.inner(self.before(x))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a value": (lambda x: x * x.sum().item(), r"no value that could be read.*phlox\.where"),
    "a branch": (lambda x: x if x.sum() > 0 else -x, r"no value that could be read.*phlox\.where"),
    "numpy": (lambda x: px.tensor(x.numpy()), "no value that could be read"),
    "a mask": (lambda x: x[x > 0.0], r"depends on the values of the mask.*phlox\.where"),
    "nonzero": (lambda x: x.nonzero(), "depends on the values"),
    "unique": (lambda x: px.tensor(x.sum()).reshape((1,)).unique(), "depends on the values"),
    "an inverse": (lambda x: px.linalg.inv(x[:4]), "no operator in ONNX"),
    "draws": (lambda x: x + px.random.normal(x.shape), r"draws random numbers.*model\.valid\(\)"),
    "a size": (lambda x: x * int(x.shape[0]), r"where Mul is made.*size must not become a number"),
    "a loop": (lambda x: sum([x[i] for i in range(x.shape[0])], px.zeros((4,))), "depends on the size of an open axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_names_layer_and_line(name: str, tmp_path: Path) -> None:
    fn, sentence = REFUSED[name]
    with pytest.raises(ExportError, match=rf"export\.onnx: layer `inner` \(test_export\.py:\d+\).*{sentence}"):
        px.export.onnx(Holder(fn).init(seed=0), BATCH, tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_nothing_of_a_model_changes(tmp_path: Path) -> None:
    model = nn.Sequential([nn.BatchNorm(4), nn.Dropout(0.5), nn.Linear(4, 2)]).init(seed=0).train()
    before = [param.val().numpy().copy() for param in model.params()]
    with px.random.stream(3):
        first = px.random.normal((2,)).tolist()
    with px.random.stream(3):
        px.export.onnx(model, BATCH, tmp_path / "m.onnx")
        assert px.random.normal((2,)).tolist() == first
    assert all(map(np.array_equal, before, [param.val().numpy() for param in model.params()]))


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "number": ([*BATCH, *BATCH], {}, "does not take these inputs: too many positional"),
    "name": ({"y": BATCH[0]}, {}, "does not take these inputs: .*'x'"),
    "kind": ([Spec(("n", 4), px.Int)], {}, r"layer `layers\.0` .*must be a Float tensor, got Int"),
    "shape": ([Spec(("n", 5))], {}, r"layer `layers\.0` .*does not fit weight"),
    "closed shape": ([Spec((2, 5))], {}, "does not fit weight"),
    "no tensor": ([3], {}, "no tensor among the inputs"),
    "no inputs": (3, {}, "inputs are a list"),
    "a dtype": ([np.zeros((2, 4), np.complex64)], {}, "input x"),
    "input names": (BATCH, {"input_names": ["a", "b"]}, "1 inputs need as many names"),
    "output names": (BATCH, {"output_names": ["a", "b"]}, "1 outputs need as many output_names"),
    "one name twice": (BATCH, {"output_names": ["x"]}, "names of inputs too"),
    "an empty name": (BATCH, {"output_names": [""]}, "not empty"),
    "a parameter's name": (BATCH, {"output_names": ["layers.0.weight"]}, "path of a parameter"),
    "opset": (BATCH, {"opset": 17}, "opset is from 18 to"),
    "sizes of nothing": (BATCH, {"sizes": {"time": (1, 2)}}, "no open axis; they are batch"),
    "sizes": (BATCH, {"sizes": {"batch": (0,)}}, "list of positive integers"),
    "runtime": (BATCH, {"runtime": "other"}, "'onnxruntime' or 'onnx.reference'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, tmp_path: Path) -> None:
    inputs, options, sentence = BAD[name]
    with pytest.raises(ExportError, match=rf"export\.onnx: .*{sentence}"):
        px.export.onnx(mlp(), inputs, tmp_path / "m.onnx", **options)
    assert not [*tmp_path.iterdir()]


def test_bad_paths_and_models(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is a folder"):
        px.export.onnx(mlp(), BATCH, tmp_path)
    with pytest.raises(ExportError, match="no folder"):
        px.export.onnx(mlp(), BATCH, tmp_path / "none" / "m.onnx")
    with pytest.raises(ExportError, match=r"must be a phlox\.Module, got function"):
        px.export.onnx(lambda x: x, BATCH, tmp_path / "m.onnx")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ExportError, match="returned no tensor, but NoneType"):
        px.export.onnx(FunctionLayer(lambda x: None), BATCH, tmp_path / "m.onnx")


@pytest.fixture
def without_onnx() -> Iterator[None]:
    saved = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "onnx"}
    for name in saved:
        del sys.modules[name]
    sys.modules["onnx"] = None  # pyright: ignore[reportArgumentType]
    yield
    del sys.modules["onnx"]
    sys.modules.update(saved)


@pytest.mark.usefixtures("without_onnx")
def test_without_the_package(tmp_path: Path) -> None:
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'onnx'"):
        px.export.onnx(mlp(), BATCH, tmp_path / "m.onnx")


def test_a_shared_parameter_of_two_layers(tmp_path: Path) -> None:
    class Twice(px.Module):
        def __init__(self) -> None:
            self.first = self.second = nn.Linear(4, 4)
            self.scale = Param(px.ones((4,)))

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.second(self.first(x)) * self.scale.val()

    report = px.export.onnx(Twice().init(seed=0), BATCH, tmp_path / "m.onnx")
    names = [one.name for one in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert sorted(names) == ["first.bias", "first.weight", "scale"] and report.operators["Gemm"] == 2


def test_what_is_compared() -> None:
    """What differs beyond rounding, also from the model in its own precision, is refused; so is another shape."""
    want, own = [np.array([1.0, 1e300, 1e-9])], [np.array([1.0, np.inf, 0.0])]

    def compared(found: Any) -> Any:
        return differences("export.onnx", {"n": 3}, ["y"], want, [found], limit_of("f32", None), lambda: own)

    assert compared(np.array([1.00001, np.inf, 0.0], np.float32))[0].absolute == pytest.approx(1e-5, rel=0.1)
    with pytest.raises(ExportError, match=r"output y at n=3: the file differs from the model by 0.1 "):
        compared(np.array([1.1, np.inf, 0.0], np.float32))
    with pytest.raises(ExportError, match=r"the file gives shape \(2,\), and the model \(3,\)"):
        compared(np.array([1.0, np.inf], np.float32))


def test_an_export_of_one_layer_makes_few_calls(tmp_path: Path) -> None:
    layer, x = nn.Linear(8, 4, device=NumPy()).init(0), px.ones((2, 8), device=NumPy())
    for _ in range(2):
        px.export.onnx(layer, [x], tmp_path / "layer.onnx")
    calls, _ = calls_of(lambda: px.export.onnx(layer, [x], tmp_path / "layer.onnx"))
    assert calls <= 870
