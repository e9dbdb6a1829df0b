"""Names of other libraries are answered by what Phlox calls them; everything the answers name is there.

Serves: phlox/other_names
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import phlox as px
from phlox import nn, optim, other_names
from phlox.errors import ConfigError, DeviceError, KindError, ModuleError, OptimizerError

X: Any = px.ones((2, 3))
LAYER: Any = nn.Linear(3, 2)
LEARNER_OF_LAYER: Any = px.train.Learner(LAYER, optim.AdamWConfig(), 0.1, nn.mse_loss)


def _assign(x: Any) -> None:
    x[0] = 1.0


class _OnlyForward(px.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: px.Tensor) -> px.Tensor:
        return self.layer(x)


OnlyForward: Any = _OnlyForward

OBJECTS: dict[str, type[Any]] = {
    "Tensor": px.Tensor, "Module": px.Module, "Param": px.Param, "Optimizer": optim.Optimizer,
    "Metric": px.metrics.Metric, "Learner": px.train.Learner, "Callback": px.train.Callback, "x.at[key]": type(X.at[0]),
}  # fmt: skip
OF_VALUES = {"command", "option", "device", "precision", "positional", "optimizer", "loss"}
TABLES: dict[str, dict[str, str]] = json.loads((Path(other_names.__file__).with_name("names.json")).read_text("utf-8"))

ASKED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda px: px.cat, AttributeError, r"module 'phlox' has no attribute 'cat'; in Phlox: phlox\.concat"),
    (lambda px: px.exp, AttributeError, r"in Phlox: a method of tensors, x\.exp\(\.\.\.\)"),
    (lambda px: px.no_grad(), AttributeError, r"there is no global tape: compute on model\.valid\(\)"),
    (lambda px: px.concatt, AttributeError, r"did you mean 'concat'\?"),
    (lambda px: px.nn.ReLU, AttributeError, r"in Phlox: phlox\.nn\.Relu"),
    (lambda px: px.nn.softmax, AttributeError, r"in Phlox: phlox\.functional\.softmax"),
    (lambda px: px.optim.SGD, AttributeError, r"in Phlox: phlox\.optim\.SgdConfig\(\.\.\.\)\.init\(\)"),
    (lambda px: px.random.randn, AttributeError, r"in Phlox: phlox\.random\.normal"),
    (lambda px: px.train.ModelCheckpoint, AttributeError, r"in Phlox: phlox\.train\.Checkpoints"),
    (lambda px: px.train.ReduceLROnPlateau, AttributeError, r"with lr=phlox\.optim\.ReduceOnPlateauLr\(\.\.\.\)"),
    (lambda px: px.train.accuracy, AttributeError, r"in Phlox: phlox\.metrics\.Accuracy\(\)"),
    (lambda px: px.train.CheckPoints, AttributeError, r"did you mean 'Checkpoints'\?"),
    (lambda px: px.data.DataLoader, AttributeError, r"in Phlox: phlox\.data\.Loader"),
    (lambda px: px.backend.Numpy, AttributeError, r"did you mean 'NumPy'\?"),
    (
        lambda px: X.view(3, 2),
        AttributeError,
        r"Tensor' object has no attribute 'view'; in Phlox: x\.reshape\(shape\)",
    ),
    (lambda px: X.unsqueeze(0), AttributeError, r"in Phlox: x\.expand_dims\(axis\)"),
    (lambda px: X.element_size(), AttributeError, r"in Phlox: x\.itemsize"),
    (lambda px: X.sum(dim=0), KindError, r"sum has no option 'dim'; in Phlox: axis"),
    (lambda px: X.sum(axes=0), KindError, r"sum has no option 'axes'; did you mean 'axis'\?"),
    (lambda px: px.zeros(2, 3), KindError, r"zeros: the shape is one argument: zeros\(\(2, 3\)\)"),
    (lambda px: px.tensor([1.0], dtype="f4"), KindError, r"tensor has no option 'dtype'; in Phlox: kind"),
    (lambda px: px.nn.Conv2d(1, 2, kernel_size=3), KindError, r"Conv2d has no option 'kernel_size'; in Phlox: kernel"),
    (lambda px: px.nn.MaxPool2d(kernel_size=3), KindError, r"MaxPool2d has no option 'kernel_size'; in Phlox: window"),
    (lambda px: px.nn.Linear(in_features=3), KindError, r"Linear has no option 'in_features'; in Phlox: d_input"),
    (lambda px: px.nn.Dropout(p=0.5), KindError, r"Dropout has no option 'p'; in Phlox: rate"),
    (
        lambda px: px.optim.AdamWConfig(lr=1e-3),
        ConfigError,
        r"lr: unknown key; in Phlox: nothing: the learning rate",
    ),
    (lambda px: px.optim.AdamWConfig().init().zero_grad(), AttributeError, r"there is nothing to zero"),
    (lambda px: px.ones(2, device="cuda"), DeviceError, r"unknown device 'cuda'; in Phlox: 'torch:gpu:0'"),
    (
        lambda px: px.nn.Linear(2, 3).eval(),
        AttributeError,
        r"'Linear' object has no attribute 'eval'; in Phlox: .*",
    ),
    (lambda px: px.nn.Linear(2, 3).parameters(), AttributeError, r"in Phlox: model\.params\(\) or model\.named_params"),
    # PyTorch
    (lambda px: X.cuda(), AttributeError, r"in Phlox: x\.to_device\('torch:gpu:0'\)"),
    (lambda px: X.pow(2), AttributeError, r"in Phlox: x \*\* y"),
    (lambda px: X.clamp(0), AttributeError, r"in Phlox: x\.clip\(low, high\)"),
    (lambda px: X.sqrt_(), AttributeError, r"in Phlox: x\.sqrt\(\.\.\.\), which returns a new tensor"),
    (lambda px: _assign(X), KindError, r"tensors never change in place; write x = x\.at\[key\]\.set\(value\)"),
    (lambda px: X.gather(dim=1, index=X.int()), KindError, r"gather has no option 'dim'; in Phlox: axis"),
    (lambda px: px.arange(3, dtype="f"), KindError, r"arange has no option 'dtype'; in Phlox: the backend chooses"),
    (lambda px: LAYER.weight.data, AttributeError, r"'Param' object has no attribute 'data'; in Phlox: param\.val\(\)"),
    (lambda px: LAYER.weight.sum(), AttributeError, r"has no attribute 'sum'; in Phlox: param\.val\(\)\.sum"),
    (lambda px: LAYER.weight.grad, AttributeError, r"in Phlox: grads\.get\(param\.id\)"),
    (lambda px: 2 * LAYER.weight, KindError, r"a Param is not a tensor; compute with the tensor that it holds"),
    (lambda px: X @ LAYER.weight, KindError, r"matmul: .*, got a Param, whose tensor is param\.val\(\)"),
    (lambda px: px.concat([LAYER.bias]), KindError, r"got a Param, whose tensor is param\.val\(\)"),
    (lambda px: px.functional.linear(X, LAYER.weight), KindError, r"weight must be .*; give the tensor that it holds"),
    (
        lambda px: px.data.Loader([1], 1, num_workers=2),
        KindError,
        r"Loader has no option 'num_workers'; in Phlox: workers",
    ),
    (lambda px: px.compile(LAYER, fullgraph=True), KindError, r"compile has no option 'fullgraph'; in Phlox: nothing"),
    (lambda px: px.vmap(LAYER, in_dims=0), KindError, r"vmap has no option 'in_dims'; in Phlox: in_axes"),
    (lambda px: px.distributed.get_rank(), AttributeError, r"in Phlox: phlox\.distributed\.rank\(\)"),
    (
        lambda px: px.optim.AdamW(LAYER.params()),
        AttributeError,
        r"in Phlox: phlox\.optim\.AdamWConfig\(\.\.\.\)\.init\(\)",
    ),
    (lambda px: px.optim.Adam(LAYER.params(), lr=0.1), OptimizerError, r"make an .*, phlox\.optim\.AdamConfig\("),
    (lambda px: px.optim.Sgd(lr=0.1), OptimizerError, r"learning rate are given to each step"),
    (lambda px: px.optim.SgdConfig(0.1), ConfigError, r"SgdConfig: give fields by name, got 0\.1; the learning rate"),
    (lambda px: px.optim.AdamWConfig(betas=(0.9, 0.99)), ConfigError, r"betas: .*in Phlox: beta_1 and beta_2"),
    # JAX, Flax, Equinox
    (lambda px: px.filter_jit(LAYER), AttributeError, r"in Phlox: phlox\.compile"),
    (lambda px: px.filter(LAYER, None), AttributeError, r"the leaves of a module are its parameters alone"),
    (lambda px: px.value_and_grad(LAYER, has_aux=True), KindError, r"the function may return \(loss, anything\)"),
    (lambda px: px.nn.Linear(3, 2, rngs=1), KindError, r"Linear has no option 'rngs'; in Phlox: nothing: draws"),
    (lambda px: px.nn.split(LAYER), AttributeError, r"a module is a PyTree as it is"),
    (lambda px: X.at[0].multiply(2.0), AttributeError, r"in Phlox: x\.at\[key\]\.mul\(v\)"),
    (lambda px: LAYER.apply({}, X), AttributeError, r"in Phlox: model\(x\)"),
    # Keras
    (lambda px: px.nn.Linear(3, 2, activation="relu"), KindError, r"it is a layer of its own"),
    (lambda px: LEARNER_OF_LAYER.compile(), AttributeError, r"in Phlox: nothing: Learner\(model, optimizer, lr"),
    (
        lambda px: LEARNER_OF_LAYER.fit([], epochs=1, batch_size=2),
        KindError,
        r"fit has no option 'batch_size'; in Phlox: nothing: phlox\.data\.Loader",
    ),
    (lambda px: px.metrics.Accuracy().update_state(1, 1), AttributeError, r"in Phlox: state = metric\.update"),
    (lambda px: px.train.Checkpoints(save_best_only=True), KindError, r"in Phlox: best"),
    # Burn
    (lambda px: X.mean_dim(1), AttributeError, r"in Phlox: x\.mean\(axis, keepdims=True\)"),
    (lambda px: px.record.CompactRecorder(), AttributeError, r"in Phlox: phlox\.record\.MessagePackRecorder"),
    (
        lambda px: OnlyForward()(X),
        ModuleError,
        r"_OnlyForward: a call of a module runs its __call__, .*forward\(\)",
    ),
]


@pytest.mark.parametrize(("ask", "error", "message"), ASKED, ids=[message for _, _, message in ASKED])
def test_another_name_is_answered(ask: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(px)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from phlox.train import Trainer", r"no attribute 'Trainer'; in Phlox: phlox\.train\.Learner"),
        ("from phlox.train import Learner, Checkpoint", r"did you mean 'Checkpoints'\?"),
        ("from phlox.nn import ReLU as relu", r"in Phlox: phlox\.nn\.Relu"),
        ("from phlox import cat", r"in Phlox: phlox\.concat"),
        ("from phlox.backend import Numpy", r"did you mean 'NumPy'\?"),
    ],
)
def test_an_import_of_another_name_is_answered(line: str, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        exec(line)


def test_questions_that_are_no_imports_get_no_import_error() -> None:
    assert not hasattr(px.train, "Trainer") and getattr(px.nn, "ReLU", None) is None
    from phlox.train import loop  # a module that is no name of the package

    assert loop.__name__ == "phlox.train.loop"


def test_what_is_named_is_there() -> None:
    """Whatever `phlox.x.y`, `x.method` or `model.method` an answer names exists, and what it answers does not."""
    linear, optimizer = nn.Linear(2, 3), optim.AdamConfig().init()
    learner = px.train.Learner(linear, optimizer, 0.1, nn.mse_loss)
    grads = px.grad(lambda model: model(px.ones((1, 2))).sum())(linear.train())
    texts = [text for table in TABLES for text in other_names.answers(table).values()]
    for text in texts:
        for path in re.findall(r"phlox((?:\.[A-Za-z]\w*)+)", text):
            found: Any = px
            for name in path.strip(".").split("."):
                found = getattr(found, name)
        owners = (
            *((X, "x"), (linear, "model"), (linear.bias, "param"), (optimizer, "optimizer"), (learner, "learner")),
            *((grads, "grads"), (px.metrics.Accuracy(), "metric")),
        )
        for owner, called in owners:
            for name in re.findall(rf"\b{called}\.(\w+)", text):
                assert hasattr(owner, name), text
    for text in other_names.answers("Callback").values():
        assert hasattr(px.train.Callback, text.partition(",")[0].partition("(")[0]) or "phlox.train." in text
    packages = {
        name: px if name == "phlox" else getattr(px, name.removeprefix("phlox."))
        for name in TABLES
        if name.startswith("phlox")
    }
    assert TABLES.keys() == packages.keys() | OBJECTS.keys() | OF_VALUES
    for table, entries in TABLES.items():
        names = " ".join(entries).split()
        assert len(names) == len(set(names)), table
        if table in packages:
            assert not set(names) & set(packages[table].__all__), table
        if table in OBJECTS:
            assert not [name for name in names if hasattr(OBJECTS[table], name)], table


def test_case_and_underscores_do_not_matter() -> None:
    """Unless the name is there as it is asked for."""
    for package, name, expected in (
        ("nn", "DENSE", "nn.Linear"), ("nn", "ReLU", "nn.Relu"), ("nn", "relu", "functional.relu"),
        ("optim", "cosine_decay", "optim.CosineAnnealingLr"), ("optim", "step_lr_scheduler", "optim.StepLr"),
    ):  # fmt: skip
        assert other_names.in_module(f"phlox.{package}", name, []).endswith(f"; in Phlox: phlox.{expected}")
    assert other_names.option_remark("Kernel_Size", {"kernel": 1}) == "; in Phlox: kernel"
    for name, expected in (("isFinite", "x.isfinite()"), ("isfinite_", "x.isfinite(...), which returns a new tensor")):
        with pytest.raises(AttributeError) as found:
            getattr(X, name)
        assert str(found.value).endswith(f"; in Phlox: {expected}")


def test_the_names_are_read_at_the_first_failed_lookup() -> None:
    ask = "import phlox as px; px.ones(2) + 1; px.nn.Linear(2, 3); from phlox.other_names import _file as file; "
    ask += "before = file.cache_info().misses; hasattr(px, 'cat'); print(before, file.cache_info().misses)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


def test_without_the_file_errors_have_no_hints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a program that was bundled without data files."""
    for function in (other_names.answers, other_names._file):
        monkeypatch.setattr(other_names, function.__name__, cache(function.__wrapped__))
    monkeypatch.setattr(other_names, "__file__", str(tmp_path / "other_names.py"))
    with pytest.raises(AttributeError, match="no attribute 'cuda'$"):
        X.cuda()
    assert nn.Linear(2, 3, bias=False).bias is None


def test_dir_and_star_show_public_names_only() -> None:
    packages = [px, nn, optim, px.random, px.record, px.transform, px.functional, px.linalg, px.signal, px.backend]
    for package in [*packages, px.module, px.errors, px.config, px.interop, px.data, px.interop.pytorch]:
        names = [name for name in dir(package) if not name.startswith("__")]
        assert sorted(names) == sorted(set(package.__all__) - {"__version__"}), package.__name__
        star: dict[str, Any] = {}
        exec(f"from {package.__name__} import *", star)
        assert set(star) - {"__builtins__"} == set(package.__all__), package.__name__


def test_every_error_is_public() -> None:
    found = {name for name, value in vars(px.errors).items() if isinstance(value, type)}
    assert found == set(px.errors.__all__)


def test_a_property_of_a_tensor_keeps_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> Any:
        raise AttributeError("a fault inside")

    monkeypatch.setattr(px.Tensor, "T", property(broken))
    with pytest.raises(AttributeError, match="a fault inside"):
        X.T  # noqa: B018
