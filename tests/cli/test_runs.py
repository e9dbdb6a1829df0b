"""`phlox runs`, and what it makes of files that are missing, half written, or foreign.

Serves: phlox/cli/{runs,run_files}.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phlox.cli import main
from phlox.cli.run_files import find_runs, read_run
from phlox.train import RunFolder
from tests.cli.support import run
from tests.cli.test_inspect import on_terminal


def write(
    folder: Path, *, status: str = "finished", epochs: int = 3, config: dict[str, Any] | None = None,
    worse: float = 0.0, reason: str | None = None,
) -> Path:  # fmt: skip
    folder.mkdir(parents=True)
    session = {"status": status, "reason": reason}
    manifest = {"phlox": "0.1.0", "format": 1, "status": status, "sessions": [session], "files": []}
    (folder / "run.json").write_text(json.dumps(manifest))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {
            "epoch": epoch, "step": 10 * epoch, "train/loss": 1 / epoch, "validation/loss": 1.5 / epoch + worse,
            "validation/accuracy": 1 - 0.5 / epoch - worse - (0.25 if epoch == 3 else 0.0), "lr": 0.1, "seconds": 30.0,
            "rows_per_second": 100.0, "validation/recall/0": 1.0, "validation/confusion/0/0": 7,
        } for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path / "a", config={"epochs": 3, "optimizer": {"lr": 0.1, "kind": "adamw"}, "seed": 0})
    write(tmp_path / "sweep" / "b", worse=-0.125, config={"epochs": 5, "optimizer": {"lr": 0.01, "kind": "adamw"}})
    write(tmp_path / "c", worse=0.125, status="failed", reason="RunError: the loss is nan\nand more", epochs=2)
    (tmp_path / "notes").mkdir()
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["runs", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("  ") for line in printed(capsys, runs).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["run", "status", "epochs", "time", "best val loss", "last", "best val accuracy", "last",
         "epochs", "optimizer.lr", "seed", "note"],
        ["a", "finished", "3/3", "1:30", "0.5000", "0.5000", "75.0%", "58.3%", "3", "0.1", "0"],
        ["c", "failed", "2", "1:00", "0.8750", "0.8750", "62.5%", "62.5%",
         "RunError: the loss is nan; no config.json"],
        ["sweep/b", "finished", "3/5", "1:30", "0.3750", "0.3750", "87.5%", "70.8%", "5", "0.01"],
    ]  # fmt: skip


def test_sorting(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def names(value: str) -> list[str]:
        return [line.split("  ")[0] for line in printed(capsys, runs, "--sort", value).splitlines()[1:]]

    assert names("validation/accuracy") == names("validation/loss") == ["sweep/b", "a", "c"]
    assert names("train/loss") == ["a", "sweep/b", "c"]
    (runs / "a" / "metrics.jsonl").unlink()
    assert names("validation/accuracy") == ["sweep/b", "c", "a"]
    assert main(["runs", str(runs), "--sort", "validation/f1"]) == 2
    err = capsys.readouterr().err
    assert "--sort validation/f1: no run has such a value; there are: epoch, lr," in err and "recall" not in err


def test_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = json.loads(printed(capsys, runs, "--json"), parse_constant=lambda name: pytest.fail(name))
    assert first["name"] == "a" and first["path"] == str(runs / "a") and first["seconds"] == 90.0
    assert first["best"]["validation/accuracy"] == {"value": 0.75, "epoch": 2}
    assert first["last"]["validation/loss"] == 0.5 and first["notes"] == [] and first["epochs"] == 3
    assert second["reason"] == "RunError: the loss is nan\nand more" and second["settings"] == {}
    assert third["settings"] == {"epochs": "5", "optimizer.lr": "0.01", "optimizer.kind": "adamw"}
    assert third["planned_epochs"] == 5


def test_what_is_missing_or_half_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half, foreign, old = tmp_path / "half", tmp_path / "foreign", tmp_path / "old"
    write(half, config={})
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "train/lo')
    (half / "run.json").write_text('{"phlox": ')
    (half / "config.json").write_text("[1]")
    foreign.mkdir()
    (foreign / "run.json").write_bytes(b"\xff\xfe\x00")
    (foreign / "metrics.jsonl").write_bytes(b'\x00\n[1]\n{"epoch": "x\x1b[2J", "train/loss": null}\n' + b"[" * 100_000)
    old.mkdir()
    (old / "run.json").write_text('{"phlox": "0.0.1", "files": []}')
    (old / "metrics.jsonl").write_text('{"epoch": 1, "train_loss": 0.5, "held_out_accuracy": 0.75, "seconds": NaN}\n')
    assert read_run(half).notes == [
        "run.json cannot be read", "config.json is no object", "1 line of metrics.jsonl cannot be read",
    ]  # fmt: skip
    assert read_run(half).status == "unknown" and read_run(half).last_epoch == 3
    assert read_run(foreign).notes[-1] == "4 lines of metrics.jsonl cannot be read"
    assert read_run(old).rows[0].keys() == {"epoch", "train/loss", "validation/accuracy", "seconds"}
    assert read_run(old).status == "finished"
    out = printed(capsys, tmp_path)
    assert "75.0%" in out and "\x1b" not in out and out.count("\n") == 4
    found = json.loads(printed(capsys, tmp_path, "--json"), parse_constant=lambda name: pytest.fail(name))
    assert [one["status"] for one in found] == ["unknown", "unknown", "finished"]


def test_a_run_that_is_written_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "first"):
        assert read_run(tmp_path / "first").status == "running"
    write(tmp_path / "second", status="running")
    assert read_run(tmp_path / "second").status == "killed"
    try:
        with RunFolder(tmp_path / "third"):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert read_run(tmp_path / "third").status == "interrupted"
    with RunFolder(tmp_path / "fourth") as folder:
        folder.complete()
    assert read_run(tmp_path / "fourth").status == "finished"


def test_rows_within_epochs_are_not_epochs(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", epochs=1)
    rows = [(0, 5, 10.0), (1, 10, 20.0), (1, 15, 10.0), (2, 20, 20.0), (2, 25, 5.0)]
    text = [json.dumps({"epoch": epoch, "step": step, "seconds": s, "train/loss": 1.0}) for epoch, step, s in rows]
    (folder / "metrics.jsonl").write_text("\n".join(text))
    found = read_run(folder)
    assert [found.is_epoch(i) for i in range(5)] == [False, True, False, True, False]
    assert found.seconds == 45.0 and found.last_epoch == 2
    assert found.report(1).train == {"loss": 1.0} and found.report(1).step == 10


def test_runs_are_found_below(runs: Path) -> None:
    write(runs / "a" / "checkpoints" / "no run of its own")
    write(runs / "1" / "2" / "3" / "4" / "5")
    write(runs / "1" / "2" / "3" / "4" / "six" / "too deep")
    names = [str(path.relative_to(runs)) for path in find_runs(runs)]
    assert names == ["1/2/3/4/5", "a", "c", "sweep/b"]
    assert find_runs(runs / "a") == [runs / "a"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_the_terminal(width: int, runs: Path) -> None:
    write(runs / ("a_long_name" * 5), config={f"setting_{i}": "value" * 5 for i in range(9)})
    lines = on_terminal(width, "runs", runs).splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= width
    assert all("finished" in line or "failed" in line for line in lines[1:])


@pytest.mark.parametrize(("name", "part"), [
    ("none", "none: there is no such folder"), ("notes", "notes: there are no runs in it"),
    ("a/run.json", "run.json: there is no such folder"),
])  # fmt: skip
def test_bad_input(name: str, part: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs / name)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("phlox: ") and err.count("\n") == 1 and part in err


def test_the_real_command_line(runs: Path) -> None:
    done = run("runs", runs, "--sort", "validation/loss")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 4
    assert run("runs", runs / "none").returncode == 2
