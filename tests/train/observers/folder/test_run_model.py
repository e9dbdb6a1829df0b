"""The model of a run is built from its folder, whatever ended the training; the files say what they cannot.

Serves: phlox/train/observers/folder/model_file.py, phlox/train/observers/folder/program_source.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import RecordError, RunError
from phlox.train import Callback, Checkpoints, Learner, load_model
from phlox.train.observers.folder.program_source import source_of
from phlox.train.observers.folder.run_model import RunModel

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = (X[:, :2] * 0.5).astype(np.float32)


class TwoInputs(px.Module):
    """Takes two arguments, and returns a dict."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def __call__(self, x: Any, y: Any) -> Any:
        return {"sum": self.first(x) + self.second(y)}


def network() -> Any:
    return nn.Sequential([nn.Linear(4, 8), nn.BatchNorm(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)]).init(0)


def trained(folder: Path, model: Any = None, **options: Any) -> Learner[Any]:
    learner = Learner(model or network(), optim.AdamWConfig(), 0.05, nn.mse_loss, **options)
    learner.fit(Loader((X, Y), 8), epochs=2, folder=folder, progress=False)
    return learner


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), NumPy(float="f64")], ids=repr)
@pytest.mark.parametrize("options", [{}, {"ema": 0.9}, {"precision": "f16", "loss_scaling": True}], ids=str)
def test_the_model_is_that_of_the_learner(backend: Any, options: dict[str, Any], tmp_path: Path) -> None:
    learner = trained(tmp_path / "run", **options)
    run = RunModel(tmp_path / "run", backend)
    x = px.tensor(X, device=backend)
    expected = learner.predict(Loader((X,), 24))
    exact = 2e-2 if options.get("precision") == "f16" else 1e-5
    np.testing.assert_allclose(run.model(x).numpy(), expected, rtol=exact, atol=exact)
    np.testing.assert_allclose(run(run.inputs)[0], run.outputs[0], rtol=1e-5, atol=1e-6)
    assert load_model(tmp_path / "run", backend).training is False


def test_several_arguments_and_outputs(tmp_path: Path) -> None:
    def loss(output: Any, target: Any) -> Any:
        return (output["sum"] - target).square().mean()

    learner = Learner(TwoInputs().init(0), optim.SgdConfig(), 0.1, loss)
    learner.fit(Loader(((X, Y), X[:, :3]), 8), epochs=1, folder=tmp_path / "run", progress=False)
    run = RunModel(tmp_path / "run")
    assert sorted(run.inputs) == ["x", "x1"] and [spec.shape for spec in run.specs()] == [("batch", 4), ("batch", 2)]
    np.testing.assert_allclose(run(run.inputs)[0], run.outputs[0], rtol=1e-6)


def test_several_models(tmp_path: Path) -> None:
    models = {"a": nn.Linear(4, 2).init(0), "b": nn.Linear(4, 2).init(1)}
    learner = Learner(
        models, {"a": optim.SgdConfig()}, 0.1, step=lambda models, batch: nn.mse_loss(models["a"](batch[0]), batch[1])
    )
    learner.fit(Loader((X, Y), 8), epochs=1, folder=tmp_path / "run", progress=False)
    for name in "ab":
        model = load_model(tmp_path / "run", name=name)
        np.testing.assert_array_equal(model.weight.val().numpy(), learner.model[name].weight.val().numpy())
    with pytest.raises(RunError, match="has no model ''; its models are 'a', 'b'"):
        load_model(tmp_path / "run")


class Failing(Callback):
    def on_epoch_end(self, learner: Any) -> None:
        if learner.epoch >= 2:
            raise OSError("no more")


def test_a_training_that_failed_has_the_weights_of_its_checkpoint(tmp_path: Path) -> None:
    learner = Learner(network(), optim.AdamWConfig(), 0.05, nn.mse_loss)
    with pytest.raises(OSError, match="no more"):
        learner.fit(Loader((X, Y), 8), epochs=2, callbacks=[Failing()], folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    run = RunModel(tmp_path / "run")
    checkpoint = Checkpoints.load(tmp_path / "run").select("models.model")
    for path, param in run.model.named_params():
        np.testing.assert_array_equal(param.val().numpy(), checkpoint[path].tensor.read())
    with pytest.raises(RunError, match="does not say how its model is called"):
        run.arguments({})


def test_a_former_end_is_no_end_of_the_run_that_goes_on(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    learner = Learner(network(), optim.AdamWConfig(), 0.05, nn.mse_loss)
    with pytest.raises(OSError, match="no more"):
        learner.fit(
            Loader((X, Y), 8), epochs=4, callbacks=[Failing()], folder=tmp_path / "run", resume=True, progress=False
        )
    assert not (tmp_path / "run" / "model.safetensors").exists() and not (tmp_path / "run" / "sample.npz").exists()


def test_what_cannot_be_described_is_said(tmp_path: Path) -> None:
    class Local(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 2)

        def __call__(self, x: Any) -> Any:
            return self.layer(x)

    trained(tmp_path / "run", Local().init(0))
    content = json.loads((tmp_path / "run" / "architecture.json").read_text())
    assert "another program cannot import" in content["models"][""]["unknown"]
    with pytest.raises(RunError, match=r"only the program that trained it can make its model, .*Local.* cannot import"):
        load_model(tmp_path / "run")


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (lambda run: (run / "architecture.json").unlink(), RunError, "is missing; a training writes it"),
        (lambda run: (run / "architecture.json").write_text("{"), RunError, "is damaged .*train again"),
        (lambda run: (run / "architecture.json").write_text('{"format": 9, "models": {}}'), RunError, "a newer Phlox"),
        (lambda run: (run / "model.safetensors").write_bytes(b"1234"), RecordError, "model.safetensors"),
        (lambda run: (run / "sample.npz").write_bytes(b"1234"), RunError, "sample.npz: is damaged or missing"),
    ],
)
def test_damaged_files(spoil: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    trained(tmp_path / "run")
    spoil(tmp_path / "run")
    with pytest.raises(kind, match=message):
        load_model(tmp_path / "run")


def test_every_run_describes_itself(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    expected = {
        "optimizer": "AdamWConfig", "lr": 0.05, "loss": "mse_loss", "batch_size": 8, "model": "Sequential",
        "precision": "f32", "compile": False,
    }  # fmt: skip
    assert {name: settings.get(name) for name in expected} == expected


SOURCE = '''from __future__ import annotations
import math, os
from typing import Any
import numpy as np
try:
    import fast
except ImportError:
    fast = None
SIZE: int = 3
UNUSED = open("/nowhere")
@decorated
class Base: size = SIZE
def decorated(cls): return cls
def helper(x): return math.sqrt(x)
class Net(Base):
    """Uses all."""
    def __call__(self, x): return helper(x) if fast is None else fast(x)
if __name__ == "__main__":
    Net()
'''


def test_the_source_of_a_class_is_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(SOURCE)
    module: Any = ModuleType("program")
    module.__file__ = str(tmp_path / "program.py")
    monkeypatch.setitem(sys.modules, "program", module)
    text = source_of(["Net"], "program")
    for part in (
        "import math, os",
        "import fast",
        "SIZE: int = 3",
        "@decorated\nclass Base",
        "def helper",
        "annotations",
    ):
        assert part in text
    assert "UNUSED" not in text and "__main__" not in text and "import numpy" not in text
    with pytest.raises(RunError, match="Missing is defined neither"):
        source_of(["Missing"], "program")
    cells: Any = ModuleType("cells")
    cells.In = ["", "%matplotlib inline", "class Net: pass", "class Net:\n    size = 2"]
    monkeypatch.setitem(sys.modules, "cells", cells)
    assert source_of(["Net"], "cells") == "class Net:\n    size = 2\n"
