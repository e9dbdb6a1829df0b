"""Commands on the run of a user's own program: its model is built from the files of the run.

Serves: phlox/cli/own_run.py, phlox/cli/arrays.py, phlox/cli/summary.py, phlox/cli/report.py, phlox/cli/info.py
Serves: phlox/cli/new.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox import __version__, nn, optim
from phlox.cli import main
from phlox.data import Loader
from phlox.errors import RunError
from phlox.train import Learner, load_model
from tests.cli.support import ENVIRONMENT

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def trained(folder: Path, model: nn.Linear | nn.Sequential, lr: float = 0.1) -> Path:
    learner = Learner(model.init(0), optim.AdamWConfig(), lr, nn.cross_entropy_loss)
    learner.fit(Loader((X, Y), 8), epochs=2, validation=Loader((X, Y), 8), folder=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = [nn.Linear(4, 8), nn.BatchNorm(8), nn.Relu(), nn.Dropout(0.5), nn.Linear(8, 2)]
    return trained(tmp_path_factory.mktemp("own") / "run", nn.Sequential(layers))


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", x=X, labels=Y)
    np.save(tmp_path / "rows.npy", X)
    for command, expected in (
        (["verify", str(run)], "no initializer and no constructor ran"),
        (["verify", str(run), "--device", "jax"], "largest difference"),
        (["predict", str(run), str(tmp_path / "rows.npz")], "accuracy: "),
        (["predict", str(run), str(tmp_path / "rows.npy"), "--device", "torch"], "class"),
        (["predict", str(run), str(tmp_path / "rows.npz"), "--out", str(tmp_path / "out.npz")], "out.npz: output0"),
        (["compare", str(run), "--on", "numpy:f64,jax,torch"], "all within"),
        (["export", str(run), str(tmp_path / "out.onnx")], "input   x       f32 [batch, 4]"),
        (["summary", str(run)], "BatchNorm"),
        (["summary", str(run), "--input", "x:float:7,4"], "(7, 8)"),
    ):
        assert main(command) == 0, command
        out, err = capsys.readouterr()
        assert expected in out and err == "", command
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["output0"].shape == (24, 2)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name": ({"z": X}, "holds z; the model takes x: float32, rows of shape (4,): name the arrays so"),
    "a width": ({"x": X[:, :3]}, "does not fit weight of shape (4, 8)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows(case: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, message = WRONG[case]
    np.savez(tmp_path / "rows.npz", **arrays)
    assert main(["predict", str(run), str(tmp_path / "rows.npz")]) == 2
    assert message in capsys.readouterr().err


PROGRAM = """
import sys
import numpy as np
import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.train import Learner
print("the program runs")
WIDTH = 5
class Half(px.Module):
    def __call__(self, x): return x * FACTOR
FACTOR = 0.5
class Net(px.Module):
    def __init__(self): self.layers = [nn.Linear(4, WIDTH), Half(), nn.Linear(WIDTH, 2)]
    def __call__(self, x):
        for layer in self.layers: x = layer(x)
        return x
x = np.ones((8, 4), np.float32)
Learner(Net(), optim.SgdConfig(), 0.1, nn.mse_loss).fit(
    Loader((x, x[:, :2]), 4), epochs=1, folder=sys.argv[1], progress=False)
"""


def test_a_class_of_the_program_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    folder = tmp_path / "run"
    subprocess.run([sys.executable, tmp_path / "train.py", folder], env=ENVIRONMENT, check=True, capture_output=True)
    source = (folder / "model.py").read_text()
    assert "class Half" in source and "FACTOR = 0.5" in source and "print" not in source and "Learner" not in source
    assert main(["verify", str(folder)]) == 2
    err = capsys.readouterr().err
    assert "Net is a class of the program that trained it" in err and "allow it to run: --trust" in err
    assert main(["verify", str(folder), "--trust"]) == 0
    assert "the program runs" not in capsys.readouterr().out


TWO = """
import sys
import numpy as np
import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.train import Learner, load_model
class First(px.Module):
    def __init__(self): self.layer = nn.Linear(2, 2)
    def __call__(self, x): return self.layer(x)
class Second(First):
    def __call__(self, x): return FACTOR
x = np.ones((4, 2), np.float32)
if sys.argv[2] == "train":
    models = {"a": First(), "b": Second()}
    step = lambda models, batch: nn.mse_loss(models["a"](batch[0]), batch[1])
    Learner(models, {"a": optim.SgdConfig()}, 0.1, step=step).fit(
        Loader((x, x), 2), epochs=1, folder=sys.argv[1], progress=False)
print([load_model(sys.argv[1], name=name)(px.tensor(x)) is not None for name in "ab"])
"""


def test_the_program_itself_needs_no_trust_and_another_one_does(tmp_path: Path) -> None:
    """Another program may have a class of the same name, which computes something else."""
    outcomes: list[subprocess.CompletedProcess[str]] = []
    for factor, task in ((1, "train"), (1, "load"), (2, "load")):
        (tmp_path / "program.py").write_text(TWO.replace("FACTOR", str(factor)))
        command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "run"), task]
        outcomes.append(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False))
    assert [done.stdout.strip() for done in outcomes] == ["[True, True]"] * 2 + [""], outcomes[0].stderr
    assert "class of the program that trained it" in outcomes[2].stderr
    source = tmp_path / "run" / "model.py"
    assert "class First" in source.read_text() and "class Second" in source.read_text()
    source.write_text(source.read_text() + "raise OSError('no disk')\n")
    with pytest.raises(RunError, match=r"model\.py: cannot be run \(OSError: no disk\)"):
        load_model(tmp_path / "run", name="b", trust=True)


def test_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lr in (("first", 0.1), ("second", 0.01)):
        trained(tmp_path / "runs" / name, nn.Linear(4, 2), lr)
    assert main(["runs", str(tmp_path / "runs")]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "lr" and [row.split()[-1] for row in rows] == ["0.1", "0.01"]
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(page), "--sort", "validation/loss"]) == 0
    text = page.read_text()
    assert "runs/first/report.html" in text and text.count("<figure>") >= 2 and "second" in text
    assert main(["report", str(tmp_path / "runs" / "first"), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert all(part in out for part in (__version__, "numpy:cpu", "jax:cpu", "torch:cpu", "cache"))
    assert main(["info", "--json"]) == 0
    assert [engine["name"] for engine in json.loads(capsys.readouterr().out)["engines"]] == ["numpy", "jax", "torch"]


def test_a_new_project_trains_and_passes_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "first"
    assert main(["new", str(folder)]) == 0
    for command in (["train.py", "--epochs", "1", "--hidden", "8"], ["-m", "pytest", "-q", "-p", "no:cacheprovider"]):
        done = subprocess.run(
            [sys.executable, *command], env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert main(["verify", str(folder / "runs" / "first")]) in (0, 2)
    capsys.readouterr()
    assert main(["new", str(folder)]) == 2
    assert "exists already, and is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "message"),
    [("trian", "python PROGRAM.py trains"), ("reprot", "did you mean 'report'?"), ("ls", "in Phlox: phlox runs FOLDER"),
     ("qqq", "there is no command 'qqq'; all commands: phlox --help")],
)  # fmt: skip
def test_a_mistyped_command(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([word])
    assert caught.value.code == 2 and message in capsys.readouterr().err
