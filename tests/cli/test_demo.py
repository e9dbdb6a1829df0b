"""The main job, as a user does it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from phlox.cli import main
from phlox.data import load_digits, split
from tests.cli.support import ENVIRONMENT, SMALL, run

COMMAND = [sys.executable, "-m", "phlox"]


@pytest.mark.full
def test_everything_with_numpy_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run("demo", "--out", out, before="sys.modules['jax'] = sys.modules['torch'] = None", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr

    found = re.search(r"^Test accuracy: (\d+\.\d+)% \((\d+) of 359 images\)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert float(found[1]) >= 98.0
    shown = re.findall(r"^epoch +(\d+)/80  loss .* images/s$", done.stdout, re.MULTILINE)
    assert {"1", "8", "16", "72", "80"} <= set(shown) and len(shown) < 30  # more where epochs take long
    assert "Ctrl-C is safe" in done.stdout and f"Open {out / 'report.html'}" in done.stdout.replace("\n", " ")
    assert "In a new process:" in done.stdout and "no initializer ran" in done.stdout
    assert re.search(r"35[789] of 359 predictions agree", done.stdout)
    assert "\x1b" not in done.stdout

    assert sorted(path.name for path in out.iterdir()) == [
        "architecture.json", "checkpoints", "config.json", "curves.png", "environment.json", "metrics.jsonl",
        "model.safetensors", "predictions.npz", "report.html", "run.json", "sample.npz",
    ]  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert config["model"]["channels"] == [24, 48] and config["seed"] == 0
    tensors = load_file(out / "model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    assert tensors["conv_2.weight"].shape == (48, 24, 3, 3)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [*range(1, 81)]
    assert lines[-1]["validation/accuracy"] == pytest.approx(int(found[2]) / 359)
    with Image.open(out / "curves.png") as picture:
        picture.verify()
    digits = load_digits()
    with np.load(out / "predictions.npz") as arrays:
        np.testing.assert_array_equal(arrays["images"], split(digits.images, digits.labels).test_images)
        right = (arrays["probabilities"].argmax(axis=-1) == arrays["labels"]).sum()
        np.testing.assert_allclose(arrays["probabilities"].sum(axis=-1), 1.0, atol=1e-5)
    assert right == int(found[2])


@pytest.mark.parametrize(
    "missing", [*(pytest.param(one, marks=pytest.mark.full) for one in ("matplotlib.figure", "rich")), "matplotlib"]
)
def test_without_the_extra_train(missing: str, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    done = run(
        "demo", "--config", "small.json", "--out", "run", before=f"sys.modules[{missing!r}] = None", cwd=tmp_path
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert (tmp_path / "run" / "curves.png").exists() == (missing == "rich")
    assert ("the extra 'train' draws curves.png too" in done.stdout) == (missing != "rich")


@pytest.mark.full
def test_an_old_run_is_kept_unless_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    command = ["demo", "--config", str(tmp_path / "small.json"), "--out", str(tmp_path / "run"), "--epochs", "1"]
    assert main(command) == 0
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main([*command, "--seed", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "--overwrite" in err
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert main([*command, "--seed", "1", "--overwrite"]) == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "small.json"]


@pytest.mark.full
def test_one_seed_one_model(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert (
            main(["demo", "--config", f"{tmp_path}/small.json", "--seed", str(seed), "--out", f"{tmp_path}/{name}"])
            == 0
        )
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all((a[path] == b[path]).all() for path in a)
    assert any((a[path] != c[path]).any() for path in a)


@pytest.mark.full
@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interruption_is_one_line_and_130(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "demo", "--epochs", "100000", "--out", str(tmp_path / "run")], env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if "1/100000" in line:
                break
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=60)
    assert process.returncode == 130
    run = tmp_path / "run"
    assert error == (
        "\nCtrl-C: ending after this step; once more to end at once\n"
        f"phlox: interrupted; the run in {run} was saved; go on with: python -m phlox demo --out {run} --resume\n"
    )
    assert "Traceback" not in rest
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "run" / "metrics.jsonl").read_text().endswith("\n")


@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interrupted_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    command = ["demo", "--config", str(tmp_path / "small.json"), "--epochs", "6"]
    assert main([*command, "--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "there is no such folder, so no run to resume" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    stop = "import phlox.train.learner as l, signal; f = l.Learner.note\n"
    stop += "def note(self, kind, values):\n  f(self, kind, values)\n"
    stop += "  if kind == 'train' and self.step > 4: signal.raise_signal(signal.SIGINT)\n"
    stop += "l.Learner.note = note"
    assert run(*command, "--out", tmp_path / "run", before=stop).returncode == 130
    assert main([*command, "--out", str(tmp_path / "run"), "--resume"]) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    for path, array in one.items():
        np.testing.assert_array_equal(array, other[path])


@pytest.mark.parametrize("width", [pytest.param(40, marks=pytest.mark.full), 80])
def test_a_live_bar_on_a_terminal(width: int, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "demo", "--config", str(tmp_path / "small.json"), "--out", str(tmp_path / "run")],
        env={**ENVIRONMENT, "COLUMNS": str(width)}, stdout=slave, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(slave)
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(master, 4096):
                chunks.append(chunk)
        except OSError:  # how the end of a terminal shows
            pass

    reader = threading.Thread(target=read)
    reader.start()
    _, error = process.communicate(timeout=60)
    reader.join()
    os.close(master)
    assert process.returncode == 0 and error == b""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(chunks).decode())
    lines = re.split(r"[\r\n]+", text[text.index("seed 0") : text.index("Test accuracy")])
    assert max(map(len, lines)) <= width
    assert re.search(r"^ *2/2 +\d\.\d+", "\n".join(lines), re.MULTILINE)
    assert "Test accuracy" in text


@pytest.mark.full
def test_a_reader_that_has_seen_enough(tmp_path: Path, small_run: Path) -> None:
    predict = subprocess.Popen(
        [*COMMAND, "predict", str(small_run), str(small_run / "predictions.npz")], env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert predict.stdout is not None
    predict.stdout.close()
    assert predict.stderr is not None
    error = predict.stderr.read()
    predict.stderr.close()
    assert predict.wait(60) == 1 and error == b""


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], ["demo", "--help"], ["predict", "--help"], ["verify", "--help"],
        ["convert", "--help"], ["inspect", "--help"], ["diff", "--help"], ["backends", "--help"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0
        out, err = capsys.readouterr()
        assert err == "" and out.count("\n") <= 45
        if arguments == ["--version"]:
            assert re.fullmatch(r"phlox \d+\.\d+\.\d+\n", out)
