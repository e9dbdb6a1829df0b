"""`phlox watch`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phlox.cli import main, watch
from phlox.train import RunFolder
from tests.cli.support import ENVIRONMENT
from tests.cli.test_inspect import on_terminal
from tests.cli.test_runs import write


def row(epoch: int, step: int, **values: float) -> str:
    always = {"epoch": epoch, "step": step, "seconds": 2.0, "rows_per_second": 50.0, "lr": 0.1}
    return json.dumps({**always, **values}) + "\n"


def test_a_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", config={"epochs": 3}, status="failed", reason="RunError: the\nloss")
    assert main(["watch", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines() == [
        "epoch 1/3  loss 1.0000  validation loss 1.5000  validation accuracy 50.0%  validation recall 1..1  30.0 s  100 rows/s",  # noqa: E501
        "epoch 2/3  loss 0.5000  validation loss 0.7500  validation accuracy 75.0%  validation recall 1..1  30.0 s  100 rows/s",  # noqa: E501
        "epoch 3/3  loss 0.3333  validation loss 0.5000  validation accuracy 58.3%  validation recall 1..1  30.0 s  100 rows/s",  # noqa: E501
        "failed after 3 epochs, 1:30: RunError: the loss",
    ]


def test_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "a")
    metrics, waits = folder.file("metrics.jsonl"), []
    lines = [
        row(1, 4, **{"train/loss": 0.5}), row(1, 6, **{"train/loss": 0.4}),
        row(1, 8, **{"train/loss": 0.3, "validation/loss": 0.7}), row(2, 10, **{"train/loss": 0.2}),
    ]  # fmt: skip

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) <= 4:
            metrics.write_text("".join(lines[: len(waits)]) + '{"epoch": 3, "st')
        else:
            folder.complete()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["watch", str(tmp_path / "a"), "--interval", "0.25"]) == 0
    assert waits == [0.25] * 5
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1  loss 0.5000  2.00 s  50 rows/s",
        "epoch 2 step 8  loss 0.3000  validation loss 0.7000  2.00 s  50 rows/s",
        "epoch 2  loss 0.2000  2.00 s  50 rows/s",
        "finished after 2 epochs, 0:04",
    ]


def test_a_run_that_another_takes_the_place_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "a")
    metrics = folder.file("metrics.jsonl")
    metrics.write_text(row(1, 4, **{"train/loss": 0.5}) + row(2, 8, **{"train/loss": 0.4}))

    def sleep(seconds: float) -> None:
        metrics.write_text(row(1, 4, **{"train/loss": 0.9}))
        folder.complete()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["watch", str(tmp_path / "a")]) == 0
    assert [line[:21] for line in capsys.readouterr().out.splitlines()[:3]] == [
        "epoch 1  loss 0.5000 ", "epoch 2  loss 0.4000 ", "epoch 1  loss 0.9000 ",
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal_it_looks_as_the_live_view(width: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", config={"epochs": 3})
    text = on_terminal(width, "watch", folder)
    assert text.rstrip("\n").endswith("\x1b[?25h")
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").split("\n") if line]
    assert max(map(len, lines)) <= width
    assert any(re.match(r"epoch +loss +val loss +val accuracy", line.strip()) for line in lines)
    assert "finished after 3 epochs, 1:30" in lines[-1]
    assert any(line.startswith("best val loss 0.5000 (epoch 3)") for line in lines)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_ends_it_and_not_the_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a") as folder:
        folder.file("metrics.jsonl").write_text(row(1, 4, **{"train/loss": 0.5}))
        process = subprocess.Popen(
            [sys.executable, "-m", "phlox", "watch", str(tmp_path / "a"), "--interval", "0.05"],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("epoch 1  loss 0.5000")
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and err == "phlox: interrupted\n"
        folder.complete()


@pytest.mark.parametrize(("name", "part"), [
    ("none", "none: there is no such run; give the folder of one (`phlox runs FOLDER` lists them)"),
    ("empty", "has neither run.json nor metrics.jsonl"),
])  # fmt: skip
def test_bad_input(name: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["watch", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and part in err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "x", "inf"])
def test_a_wrong_interval(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["watch", str(tmp_path), "--interval", value])
    assert exit_.value.code == 2 and "is not a number of seconds from 0.05 to 3600" in capsys.readouterr().err
