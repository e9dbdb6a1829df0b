"""`phlox export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import phlox as px
from phlox.cli import main
from phlox.models import DigitsRun
from tests.cli.support import run

MODEL = """
import phlox as px
from phlox import nn

def net(): return nn.Sequential([nn.Linear(4, 3), nn.Tanh()])

class NetConfig(px.Config):
    d_hidden: int = 3

    def init(self, device=None): return nn.Sequential([nn.Linear(4, self.d_hidden, device=device), nn.Tanh()])

number = 3
"""


def predictions(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def test_the_model_of_a_run(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    assert main(["export", str(small_run), str(out), "--input", "x:float:batch,1,8,8"]) == 0
    text, err = capsys.readouterr()
    assert err == "" and "input   x       f32 [batch, 1, 8, 8]" in text and "2 Conv" in text and "batch=1" in text
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    want = DigitsRun(small_run, "numpy").model(px.tensor(x)).numpy()
    np.testing.assert_allclose(predictions(out, x), want, rtol=1e-4, atol=1e-5)


def test_a_run_knows_its_images(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--json", "--opset", "18", "--float", "f64"]
    assert main(["export", str(small_run), str(tmp_path / "out.onnx"), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == {"images": "f64 [batch, 1, 8, 8]"} and found["opset"] == 18
    assert found["largest_difference"] < 1e-6 and found["files"] == [str(tmp_path / "out.onnx")]


@pytest.mark.parametrize("name", ["net", "NetConfig"])
def test_a_model_that_a_file_makes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets.py").write_text(MODEL)
    layer: Any = px.nn.Linear(4, 3).init(seed=5)
    record = {"layers.0.weight": layer.weight.val().numpy(), "layers.0.bias": layer.bias.val().numpy()}
    np.savez(tmp_path / "weights.npz", **record)
    out = tmp_path / "out.onnx"
    given = ["--input", "x:float:n,4", "--record", str(tmp_path / "weights.npz"), "--sizes", "n=2,3"]
    assert main(["export", f"{tmp_path / 'nets.py'}:{name}", str(out), *given]) == 0
    assert "n=2" in capsys.readouterr().out
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(predictions(out, x), layer(px.tensor(x)).tanh().numpy(), rtol=1e-5)


def test_a_hugging_face_folder_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = px.models.GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, tied=True)
    px.interop.huggingface.save(config.init().init(seed=0), tmp_path / "gpt")
    assert main(["export", str(tmp_path / "gpt"), str(tmp_path / "out.onnx")]) == 2
    assert "say what the inputs are: --input" in capsys.readouterr().err
    given = ["--input", "tokens:int:batch,time", "--sizes", "time=3,5"]
    assert main(["export", str(tmp_path / "gpt"), str(tmp_path / "out.onnx"), *given]) == 0
    assert "output  f32 [batch, time, 10]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none", "out.onnx"], "no such folder"),
        (["none.py:net", "out.onnx", "--input", "x:float:4"], "there is no such file"),
        (["nets.py:other", "out.onnx", "--input", "x:float:4"], "defines no other"),
        (["nets.py:number", "out.onnx", "--input", "x:float:4"], "is neither a module"),
        (["nets.py:net", "none/out.onnx", "--input", "x:float:n,4"], "there is no folder"),
        (["nets.py:net", "out.onnx", "--input", "x:float:n,5"], "does not fit weight"),
        (["nets.py:net", "out.onnx"], "say what the inputs are"),
    ],
)
def test_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "nets.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("phlox: ") and err.count("\n") == 1 and sentence in err
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".onnx"] == []


@pytest.mark.parametrize("text", ["x", "x:real:4", "x:float:4,a b", ":float:4", "x:float:-1"])
def test_an_input_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "runs/digits", "out.onnx", "--input", text])
    assert "x:float:batch,1,8,8" in capsys.readouterr().err


def test_in_a_new_process_that_has_numpy_and_onnx_alone(small_run: Path, tmp_path: Path) -> None:
    before = "for name in ('jax', 'torch', 'rich', 'onnxruntime'): sys.modules[name] = None"
    done = run("export", small_run, tmp_path / "out.onnx", before=before)
    assert done.returncode == 0 and done.stderr == "" and "run by onnx.reference" in done.stdout
