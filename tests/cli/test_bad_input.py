"""Whatever is wrong: one sentence on the standard error, exit status 2, no traceback; in Python our exception.

Serves: phlox/cli/{main,command}.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phlox import nn, optim
from phlox.cli import main
from phlox.data import Loader
from phlox.errors import ConfigError, DeviceError, PhloxError, RecordError, RunError
from phlox.models import DigitsConfig, DigitsRun
from phlox.record import SafetensorsRecorder
from phlox.train import Learner
from tests.cli.support import SMALL, run

Spoil = Callable[[Path], object]


def change(**values: object) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return spoil


def save(module: nn.Sequential | object) -> Spoil:
    return lambda folder: SafetensorsRecorder().save(module.into_record(), folder / "model")  # type: ignore[attr-defined]


def cut(name: str, keep: int) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


SPOILT: dict[str, tuple[Spoil, type[PhloxError], list[str]]] = {
    "unknown key": (change(epoch=3), ConfigError, ["config.json", "epoch: unknown key", "did you mean `epochs`"]),
    "ill-typed": (change(lr="high"), ConfigError, ["config.json", "lr", "float", "'high'"]),
    "ill-typed inside": (change(model={"dropout": []}), ConfigError, ["config.json", "model.dropout", "float"]),
    "out of range": (change(epochs=0), ConfigError, ["config.json", "epochs must be positive, got 0"]),
    "no JSON": (cut("config.json", 30), ConfigError, ["config.json", "not valid JSON at line"]),
    "no config": (lambda folder: (folder / "config.json").unlink(), RunError, ["config.json", "missing"]),
    "no record": (lambda folder: (folder / "model.safetensors").unlink(), RunError, ["model.safetensors", "missing"]),
    "cut record": (cut("model.safetensors", 400), RecordError, ["model.safetensors"]),
    "empty record": (cut("model.safetensors", 0), RecordError, ["model.safetensors"]),
    "wider model": (save(DigitsConfig(channels=(2, 5)).init()), RecordError, ["model.safetensors", "(5, 2, 3, 3)"]),
    "another model": (save(nn.Sequential([nn.Linear(64, 10)])), RecordError, ["model.safetensors", "conv_1.weight"]),
    "larger model": (change(model={"channels": [2, 9]}), RecordError, ["model.safetensors", "(9, 2, 3, 3)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_run(case: str, own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, kind, parts = SPOILT[case]
    images = own_run.parent / "some.npz"
    np.savez(images, images=np.zeros((2, 8, 8)))
    spoil(own_run)
    for command in (["predict", str(own_run), str(images)], ["verify", str(own_run)]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("phlox: ") and "Traceback" not in err
        assert all(part in err for part in parts), err
    with pytest.raises(kind):
        DigitsRun(own_run)


def test_missing_or_damaged_predictions(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut("predictions.npz", 1000)(own_run)
    assert main(["verify", str(own_run)]) == 2
    assert "predictions.npz: damaged" in capsys.readouterr().err
    np.savez(own_run / "predictions.npz", images=np.zeros((2, 9, 9)), probabilities=np.zeros((2, 10)))
    assert main(["verify", str(own_run)]) == 2
    assert "do not fit this model" in capsys.readouterr().err
    (own_run / "predictions.npz").unlink()
    assert main(["verify", str(own_run)]) == 2
    assert "predictions.npz: is missing" in capsys.readouterr().err


def test_no_run_folder(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, part in (
        ("runn", "did you mean"), ("zzz", "phlox demo --out"), ("file", "is not a folder"), ("x" * 300, "too long"),
    ):  # fmt: skip
        (own_run.parent / "file").write_text("")
        assert main(["verify", str(own_run.parent / path)]) == 2
        _, err = capsys.readouterr()
        assert err.count("\n") == 1 and part in err, err


def test_the_run_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((4, 2), np.float32)
    learner = Learner(nn.Linear(2, 1).init(seed=0), optim.SgdConfig(), 0.1, nn.mse_loss)
    learner.fit(Loader((rows, rows[:, :1]), 2), epochs=1, folder=tmp_path / "run", progress=False)
    (tmp_path / "run" / "architecture.json").unlink()  # as of a former version
    for command in ("verify", "export"):
        assert main([command, str(tmp_path / "run"), *(["out.onnx"] if command == "export" else [])]) == 2
        _, err = capsys.readouterr()
        assert err.count("\n") == 1 and "not a run of `phlox demo`" in err and "phlox export FILE.py:NAME" in err
    (tmp_path / "run" / "model.safetensors").unlink()
    assert main(["inspect", str(tmp_path / "run")]) == 2
    assert f"its records are in {tmp_path / 'run' / 'checkpoints'}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "came"), [("a.npz", "(2, 28, 28)"), ("a.csv", "784 values"), ("a.png", "28x28")])
def test_images_of_a_wrong_size(
    name: str, came: str, small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    match path.suffix:
        case ".npz":
            np.savez(path, images=np.zeros((2, 28, 28)))
        case ".csv":
            np.savetxt(path, np.zeros((2, 784)), fmt="%d", delimiter=",")
        case _:
            Image.fromarray(np.zeros((28, 28), np.uint8)).save(path)
    assert main(["predict", str(small_run), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and name in err and came in err and "8x8" in err


@pytest.mark.parametrize(("device", "parts"), [
    ("jaxx", ["unknown device 'jaxx'", "did you mean 'jax'"]),
    ("nmupy", ["did you mean 'numpy'"]),
    ("numpy:gpu", ["'gpu'", "'cpu'"]),
    ("tpu", ["unknown device 'tpu'", "numpy", "jax", "torch"]),
])  # fmt: skip
def test_an_unknown_device(
    device: str, parts: list[str], small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["demo", "--out", str(tmp_path / "out")], ["verify", str(small_run)]):
        assert main([*command, "--device", device]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and all(part in err for part in parts), err
    assert not any(tmp_path.iterdir())
    with pytest.raises(DeviceError):
        DigitsRun(small_run, device)


@pytest.mark.parametrize(("missing", "arguments", "remedy"), [
    ("jax", ["demo", "--device", "jax"], "install Phlox with the extra 'jax'"),
    ("torch", ["demo", "--device", "torch"], "install Phlox with the extra 'torch'"),
])  # fmt: skip
def test_something_is_not_installed(missing: str, arguments: list[str], remedy: str, tmp_path: Path) -> None:
    done = run(*arguments, before=f"sys.modules[{missing!r}] = None", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and remedy in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.full
def test_without_rich_a_terminal_gets_plain_lines_and_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    command = ["demo", "--config", tmp_path / "small.json", "--out", tmp_path / "run"]
    assert run(*command, before="sys.modules['rich'] = None").returncode == 0
    done = run(*command, "--overwrite", before="sys.modules['rich'] = None; sys.stdout.isatty = lambda: True")
    assert done.returncode == 0 and "the extra 'train' gives a live view" in done.stdout
    assert "epoch 2/2  loss" in done.stdout and "\x1b" not in done.stdout


@pytest.mark.parametrize("arguments", [
    [], ["dmeo"], ["demo", "--epochs", "many"], ["demo", "--speed", "9"], ["predict"], ["predict", "x"], ["--sead"],
])  # fmt: skip
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    _, err = capsys.readouterr()
    assert exit_.value.code == 2 and err.count("\n") == 1 and "--help" in err


@pytest.mark.parametrize(("arguments", "part"), [
    (["--epochs", "0"], "epochs must be positive, got 0"),
    (["--seed", "-1"], "seed must lie in 0 to 2**64 - 1, got -1"),
    (["--config", "none.json"], "none.json does not exist"),
    (["--config", "own.json"], "a stretch of at least 0 and below 1"),
    (["--out", ""], "cannot be the name of a folder"),
])  # fmt: skip
def test_options_out_of_range(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.json").write_text('{"stretch": 1.5}')
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and part in err
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]
