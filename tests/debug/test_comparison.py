"""`compare`: engines, PyTorch modules and ONNX files beside a model.

Serves: phlox/debug/{comparison,comparison_report,recordings,onnx_recording}.py, phlox/interop/pytorch/beside.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Jax, NumPy, Torch
from phlox.debug.comparison import device_named, label_of
from phlox.errors import DeviceError, ExtraNotInstalledError, KindError, ModuleError, PhloxError
from tests.train.browser import PROGRAM, Browser

X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
DOUBLE = NumPy(float="f64")


def small() -> Any:
    return nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 4)]).init(0, "numpy").valid()


class Net(px.Module):
    """A little of everything; `wrong` makes one layer another one."""

    def __init__(self, wrong: float = 1.0) -> None:
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm(3)
        self.body = nn.Sequential([nn.Linear(3, 6), lambda x: (x * wrong).gelu(), nn.Dropout(0.5)])
        self.head = nn.Linear(6, 2)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.head(self.body(self.norm(self.conv(x)).mean((2, 3))))


def net(wrong: float = 1.0) -> Any:
    return Net(wrong).init(0, "numpy").valid()


IMAGES = np.random.default_rng(1).normal(size=(4, 1, 6, 6)).astype(np.float32)


class TheirNet(torch.nn.Module):
    """The same in PyTorch."""

    def __init__(self, bug: bool = False) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 3)
        self.norm = torch.nn.BatchNorm2d(3, eps=1e-2 if bug else 1e-5)
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.GELU(), torch.nn.Dropout(0.5))
        self.head = torch.nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.norm(self.conv(x)).mean((2, 3))))


def test_half_precision_differs_from_the_first_layer_on() -> None:
    report = px.debug.compare(small(), [px.tensor(X)], [DOUBLE, NumPy(), Torch(float="bf16")])
    first = report.first_beyond(1e-4)
    assert first is not None
    assert (first.path, first.backend, first.kind, first.layer) == ("layers.0", "torch:bf16", "value", "Linear")
    assert report.reference == "numpy:f64" and report.backends == ("numpy:f32", "torch:bf16")
    assert report.first_beyond(1e-4, backend="numpy:f32") is None and not report.ok
    kinds = [row.kind for row in report.rows]
    assert kinds == sorted(kinds, key=["value", "gradient", "parameter"].index)
    gradients = [row.path for row in report.rows if row.kind == "gradient" and row.backend == "numpy:f32"]
    assert sorted(gradients[:2]) == ["", "layers.2"] and gradients[2:] == ["layers.1", "layers.0"]


def test_the_numbers_are_those_of_a_computation_by_hand() -> None:
    model = small()
    report = px.debug.compare(model, [X], [NumPy(), NumPy(float="f16")], loss=lambda y: (y * y).sum())
    twins = [model.to_device(backend.device()).valid(tape=True) for backend in (NumPy(), NumPy(float="f16"))]
    ours = []
    for twin in twins:
        hidden = twin.layers[0](px.tensor(X, device=twin.layers[0].weight.backend.inner))
        hidden_value = hidden.detach().numpy().astype(np.float64)
        loss = (twin.layers[2](twin.layers[1](hidden)) ** 2.0).sum()
        weight = twin.layers[0].weight.val()
        ours.append((hidden_value, weight.grad(loss.backward()).numpy().astype(np.float64)))
    found = {(row.kind, row.path): row for row in report.rows}
    for kind, path, (one, other) in (
        ("value", "layers.0", (ours[0][0], ours[1][0])),
        ("parameter", "layers.0.weight", (ours[0][1], ours[1][1])),
    ):
        row = found[kind, path]
        assert row.absolute == pytest.approx(np.abs(one - other).max(), rel=1e-6)
        cosine = (one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum())
        assert row.cosine == pytest.approx(cosine, abs=1e-9)
    value = found["value", "layers.0"]
    assert value.relative == pytest.approx(value.absolute / np.abs(ours[0][0]).max(), rel=1e-6)
    assert set(report.losses) == {"numpy:f32", "numpy:f16"}


def test_engines_agree_in_training_where_layers_draw() -> None:
    model = net().train()
    before = {path: param.val().numpy().copy() for path, param in model.named_params()}
    position = px.random.state()
    report = px.debug.compare(model, [IMAGES], [DOUBLE, Jax(), Torch(), NumPy()], tolerance=1e-4)
    assert report.ok, str(report)
    assert {row.path for row in report.rows if row.kind == "value"} == {
        "", "conv", "norm", "body", "body.layers.0", "body.layers.1", "body.layers.2", "head",
    }  # fmt: skip
    assert px.random.state() == position
    for path, param in model.named_params():  # running statistics stay
        np.testing.assert_array_equal(param.val().numpy(), before[path], err_msg=path)
    assert {row.path for row in report.rows if row.kind == "parameter"} == {
        path for path, param in model.named_params() if param.trained
    }


def test_a_layer_that_is_called_twice_has_two_rows_each() -> None:
    class Twice(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(8, 8)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.layer(self.layer(x))

    report = px.debug.compare(Twice().init(0, "numpy"), [X], ["numpy", "numpy:f16"])
    values = [(row.path, row.call) for row in report.rows if row.kind == "value"]
    assert values == [("layer", 0), ("layer", 1), ("", 0)]
    assert "layer #2" in str(report)


def test_a_port_to_pytorch_and_where_it_differs() -> None:
    model = net()
    report = px.debug.compare(model, [IMAGES], [NumPy(), TheirNet().eval()], tolerance=1e-4)
    assert report.ok, str(report)
    paths = {row.path for row in report.rows if row.kind == "value"}
    assert {"", "conv", "norm", "body", "body.layers.0", "body.layers.1", "body.layers.2", "head"} <= paths
    trained = {path for path, param in model.named_params() if param.trained}
    assert {row.path for row in report.rows if row.kind == "parameter"} == trained
    first = px.debug.compare(model, [IMAGES], [NumPy(), TheirNet(bug=True)]).first_beyond(1e-4)
    assert first is not None and first.path == "norm"
    first = px.debug.compare(net(wrong=1.1), [IMAGES], [TheirNet(), NumPy()]).first_beyond(1e-4)
    assert first is not None and first.path == "body.layers.1" and first.layer == "GELU"


def test_weights_of_theirs_and_of_each() -> None:
    theirs = TheirNet().eval()
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    model = net()
    weight = model.head.weight.val().numpy().copy()
    assert px.debug.compare(model, [IMAGES], [NumPy(), theirs], weights="theirs", tolerance=1e-4).ok
    first = px.debug.compare(model, [IMAGES], [NumPy(), theirs], weights="own").first_beyond(1e-4)
    assert first is not None and first.path == "conv"
    np.testing.assert_array_equal(model.head.weight.val().numpy(), weight)
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(module._forward_hooks for module in theirs.modules())


def test_layers_under_other_names_and_a_loss() -> None:
    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.last = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.act(self.first(x)))

    names = {"layers.0": "first", "layers.1": "act", "layers.2": "last"}
    report = px.debug.compare(
        small(), [X], [DOUBLE, Other()], names=names, loss=lambda y: (y * y).mean(), tolerance=1e-5
    )
    assert report.ok, str(report)
    assert {row.path for row in report.rows} >= {"layers.0", "layers.1", "layers.2", "layers.0.weight", "layers.2.bias"}
    assert report.losses["PyTorch module"] == pytest.approx(report.losses["numpy:f64"], rel=1e-5)
    with pytest.raises(ModuleError, match=r"no layer 'frist'; did you mean 'first'\?"):
        px.debug.compare(small(), [X], ["numpy", Other()], names={"layers.0": "frist"})
    with pytest.raises(ModuleError, match=r"(?s)the weights of the model do not fit .*0.weight: not in the PyTorch"):
        px.debug.compare(small(), [X], ["numpy", Other()])


class Output(dict[str, Any]):
    """As the `ModelOutput` of transformers, which is a dict that cannot be updated."""

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("You cannot use `update` on it.")


def test_a_model_of_transformers_gives_its_logits() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = TheirNet()

        def forward(self, x: torch.Tensor) -> Output:
            return Output(loss=torch.zeros(()), logits=self.net(x))

    theirs = Wrapped().eval()
    model = net()
    px.interop.pytorch.load_state_dict(model, theirs.net.state_dict())
    report = px.debug.compare(model, [IMAGES], [NumPy(), theirs], weights="own", tolerance=1e-4)
    assert report.ok, str(report)
    assert {row.path for row in report.rows if row.kind == "value"} == {""}


def test_the_gradient_of_a_linear_layer_as_gpt_2_has_it() -> None:
    class Conv1D(torch.nn.Module):
        def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
            super().__init__()
            self.nf = weight.shape[1]
            self.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))
            self.bias = torch.nn.Parameter(torch.from_numpy(bias.copy()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias

    model = nn.Sequential([nn.Linear(8, 4)]).init(seed=0).valid()
    weight, bias = (param.val().numpy() for param in model.params())
    theirs = torch.nn.Sequential(Conv1D(weight, bias))
    report = px.debug.compare(model, [X], [NumPy(), theirs], weights="own", tolerance=1e-5)
    assert report.ok, str(report)
    assert {row.path for row in report.rows if row.kind == "parameter"} == {"layers.0.weight", "layers.0.bias"}


def onnx_file(path: Path, *, scale: float = 1.0) -> Path:
    """The small model as an ONNX file; `scale` spoils one node."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    model = small()
    arrays = {name: np.asarray(param.val().numpy()) for name, param in model.named_params()}
    arrays["scale"], arrays["half"], arrays["one"] = (
        np.asarray(v, np.float32) for v in (scale / np.sqrt(2.0), 0.5, 1.0)
    )
    nodes = [
        helper.make_node("Gemm", ["x", "layers.0.weight", "layers.0.bias"], ["a"], name="layers.0/Gemm"),
        helper.make_node("Mul", ["a", "scale"], ["b"], name="layers.1/Mul"),
        helper.make_node("Erf", ["b"], ["c"], name="layers.1/Erf"),
        helper.make_node("Add", ["c", "one"], ["d"], name="layers.1/Add"),
        helper.make_node("Mul", ["d", "a"], ["e"], name="layers.1/Mul_1"),
        helper.make_node("Mul", ["e", "half"], ["f"], name="layers.1/Mul_2"),
        helper.make_node("Gemm", ["f", "layers.2.weight", "layers.2.bias"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def test_an_onnx_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = onnx_file(tmp_path / "good.onnx")
    for runtime in (True, False):
        if not runtime:  # by the onnx package's own evaluator
            monkeypatch.setitem(sys.modules, "onnxruntime", None)
        report = px.debug.compare(small(), [X], ["numpy", file], names={"layers.2": "last"}, tolerance=1e-5)
        assert report.ok, str(report)
        assert [row.path for row in report.rows] == ["layers.0", "layers.1", "layers.2", ""]
        assert report.backends == ("good.onnx",)
    monkeypatch.undo()
    bad = px.debug.compare(small(), [X], [str(onnx_file(tmp_path / "bad.onnx", scale=1.2)), "numpy"])
    first = bad.first_beyond(1e-4)
    assert first is not None and first.path == "layers.1"
    partly = px.debug.compare(small(), [X], ["numpy", file])
    assert partly.missing == {"good.onnx": ("layers.2",)} and "without a counterpart: layers.2" in str(partly)


def test_bad_onnx_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = onnx_file(tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no protobuf at all")
    for inputs, path, names, message in (
        ([X], tmp_path / "none.onnx", {}, "there is no such file"),
        ([X], tmp_path / "b.onnx", {}, "not a readable ONNX file|cannot be run"),
        ([X, X], file, {}, r"takes 1 inputs \(x\), and 2 are given"),
        ({"z": X}, file, {}, "has no input 'z'; it has x"),
        ([X], file, {"layers.0": "lsat"}, r"has no node or tensor 'lsat'; did you mean 'last'\?"),
        ([X], file, {"layer.0": "a"}, r"the model has no layer 'layer.0'"),
        ([X[:, :3]], file, {}, "cannot be run on these inputs"),
    ):
        with pytest.raises(PhloxError, match=message):
            px.debug.compare(small(), inputs, [path, "numpy"], names=names)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'onnx'"):
        px.debug.compare(small(), [X], ["numpy", file])


def test_what_is_not_finite_and_shapes_that_differ_are_said() -> None:
    model = nn.Sequential([nn.Linear(8, 16), lambda x: (x * 1e3).exp(), nn.Linear(16, 4)]).init(0, "numpy").valid()
    first = px.debug.compare(model, [X], [DOUBLE, NumPy()], gradients=False).first_beyond()
    assert first is not None and first.path == "layers.1" and first.absolute == np.inf
    assert "finite in only one" in str(first)

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    model = nn.Linear(8, 4).init(0, "numpy").valid()
    report = px.debug.compare(model, [X], ["numpy", torch.nn.Linear(8, 5)], weights="own", gradients=False)
    assert "the shapes are (2, 4) and (2, 5)" in report.rows[0].note and report.rows[0].relative == np.inf


def test_names_of_devices() -> None:
    assert device_named("numpy:f64").backend == DOUBLE and device_named("torch:bf16").backend == Torch(float="bf16")
    assert label_of(device_named("jax")) == "jax:f32" and label_of(device_named("torch:cpu:f16")) == "torch:f16"
    report = px.debug.compare(small(), [X], ["numpy", "numpy"])
    assert report.backends == ("numpy:f32 #2",) and all(row.absolute == 0.0 for row in report.rows)


def test_what_it_cannot_compare() -> None:
    for backends in (["numpy"], "numpy", []):
        with pytest.raises(ModuleError, match="give two backends or more"):
            px.debug.compare(small(), [X], backends)
    with pytest.raises(ModuleError, match="the model is a Module"):
        px.debug.compare(lambda x: x, [X], ["numpy", "jax"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleError, match="weights is 'copy', 'theirs' or 'own'"):
        px.debug.compare(small(), [X], ["numpy", "jax"], weights="mine")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleError, match="needs a PyTorch module"):
        px.debug.compare(small(), [X], ["numpy", "jax"], weights="theirs")
    with pytest.raises(KindError, match="inputs are the arguments of a call"):
        px.debug.compare(small(), 3.0, ["numpy", "jax"])
    with pytest.raises(DeviceError, match="unknown device 'nunpy'"):
        px.debug.compare(small(), [X], ["numpy", "nunpy"])
    report = px.debug.compare(small(), [X], ["numpy", "jax"])
    with pytest.raises(ModuleError, match="there is no 'torch' in it; there are jax:f32"):
        report.first_beyond(backend="torch")


def test_the_page_shows_the_same_and_needs_nothing_else(tmp_path: Path) -> None:
    model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 4)]).init(0, "numpy").valid()
    report = px.debug.compare(model, [X], [DOUBLE, NumPy(), Torch(float="bf16")])
    path = tmp_path / "compare.html"
    text = report.to_html(path)
    assert path.read_text(encoding="utf-8") == text and "http" not in text.replace("http-equiv", "")
    assert report._repr_html_().startswith('<div class="phlox">') and "<html" not in report._repr_html_()
    if PROGRAM is None:
        pytest.skip("there is no browser")
    with Browser(tmp_path / "profile") as browser:
        for dark in (False, True):
            browser.open(path, dark=dark, width=500 if dark else 1200)
            rows = browser.value("[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].innerText)")
            assert rows.count("layers.0") == 2 and rows.count("layers.0.weight") == 2
            assert browser.value("document.documentElement.scrollWidth <= innerWidth")
            back, ink = browser.value("['backgroundColor', 'color'].map(n => getComputedStyle(document.body)[n])")
            assert back == ("rgb(18, 20, 23)" if dark else "rgb(247, 247, 245)") and ink != back
            browser.screenshot(tmp_path / f"{dark}.png")
        assert browser.value("document.querySelectorAll('td.m').length") > 0
        assert browser.errors == []


def test_a_layer_that_is_called_twice_in_an_onnx_file() -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    class Twice(px.Module):
        def __init__(self) -> None:
            self.layer, self.act = nn.Linear(8, 8), nn.Relu()

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.layer(self.act(self.layer(x)))

    model = Twice().init(0, "numpy").valid()
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="layer/MatMul"),
        helper.make_node("Add", ["a", "b"], ["c"], name="layer/Add"),
        helper.make_node("Relu", ["c"], ["d"], name="act/Relu"),
        helper.make_node("MatMul", ["d", "w"], ["e"], name="layer/MatMul_1"),
        helper.make_node("Add", ["e", "b"], ["y"], name="layer/Add_1"),
    ]
    params = dict(model.named_params())
    arrays = {name[6]: param.val().numpy() for name, param in params.items()}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy"]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()]
    graph = helper.make_graph(nodes, "twice", values[:1], values[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    report = px.debug.compare(model, [X], ["numpy", proto], tolerance=1e-5)
    assert report.ok and report.backends == ("ONNX model",) and isinstance(proto, onnx.ModelProto)
    assert [(row.path, row.call) for row in report.rows] == [("layer", 0), ("act", 0), ("layer", 1), ("", 0)]
