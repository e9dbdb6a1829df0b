"""`phlox inspect`.

Serves: phlox/cli/records.py
"""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from phlox.cli import main
from phlox.record import (
    BinaryRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    NpzRecorder,
    PrecisionSettings,
    Record,
    SafetensorsRecorder,
    TensorEntry,
)
from tests.cli.support import ENVIRONMENT, run

AS_IS = PrecisionSettings()
ID = "0123456789abcdef0123456789abcdef"


def sample() -> Record:
    entries: dict[str, Any] = {
        "encoder.weight": TensorEntry(LazyTensor.from_array(np.array([[1.0, -2.5], [np.nan, 4.0]], np.float32)), ID),
        "encoder.bias": np.zeros(3, ml_dtypes.bfloat16),
        "step": 7,
        "positions": np.arange(1000),
        "mask": np.array([True, True, False, True]),
        "nothing": np.zeros((0, 2), np.float16),
        "schedule": {"rate": math.inf},
    }
    return Record(entries, {"by": "the tests"}, aliases={"head.weight": "encoder.weight"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return SafetensorsRecorder(AS_IS).save(sample(), tmp_path / "file")


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def rows(out: str) -> list[list[str]]:
    """The table of entries, in words."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("path"))
    return [line.split() for line in lines[start : lines.index("", start)]]


def test_what_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = inspect(capsys, file)
    head = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in out.split("\n\n")[0].splitlines()}
    assert head["File"] == str(file) and head["Format"].startswith("safetensors, schema ")
    assert head["Written by"].startswith("Phlox ") and head["Precision"] == "float=as is, int=as is"
    assert "\nMetadata\n  by  the tests\n" in out and "\nAliases\n  head.weight  -> encoder.weight\n" in out
    assert rows(out) == [
        ["path", "kind", "shape", "precision", "bytes", "id", "or", "value"],
        ["encoder.weight", "float", "(2,", "2)", "f32", "16", "B", ID[:8]],
        ["encoder.bias", "float", "(3,)", "bf16", "6", "B"],
        ["step", "value", "7"],
        ["positions", "int", "(1000,)", "i64", "8.00", "kB"],
        ["mask", "bool", "(4,)", "bool", "4", "B"],
        ["nothing", "float", "(0,", "2)", "f16", "0", "B"],
        ["schedule", "value", '{"rate":', "Infinity}"],
    ]
    assert "\nTotal: 5 tensors and 2 values, 1,011 elements, 8.03 kB\n" in out
    assert "\n  i64   1 tensor  1,000 elements  8.00 kB\n" in out


def test_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(inspect(capsys, file, "--json", "--stats"), parse_constant=lambda name: pytest.fail(name))
    size = file.stat().st_size
    assert (found["file"], found["format"], found["compression"], found["size"]) == (
        str(file), "safetensors", None, size,
    )  # fmt: skip
    assert found["metadata"] == {"by": "the tests"} and found["aliases"] == {"head.weight": "encoder.weight"}
    assert found["positional"] is False and found["phlox"] and found["schema"] >= 1
    entries = {entry["path"]: entry for entry in found["entries"]}
    assert list(entries) == sample().paths()
    assert entries["encoder.weight"] == {
        "path": "encoder.weight", "kind": "float", "shape": [2, 2], "precision": "f32", "bytes": 16, "id": ID,
        "statistics": {"min": -2.5, "max": 4.0, "mean": 2.5 / 3, "non_finite": 1},
    }  # fmt: skip
    assert entries["nothing"]["statistics"] == {"min": None, "max": None, "mean": None, "non_finite": 0}
    assert entries["schedule"]["value"] == {"rate": {"$float": "inf"}}
    assert found["totals"]["i64"] == {"tensors": 1, "elements": 1000, "bytes": 8000}


@pytest.mark.parametrize(
    "recorder", [SafetensorsRecorder, MessagePackRecorder, BinaryRecorder, JsonRecorder, NpzRecorder]
)
def test_no_tensor_is_read(
    recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorder(AS_IS).save(sample(), tmp_path / "file")
    reads: list[str] = []
    stored = LazyTensor._stored
    monkeypatch.setattr(LazyTensor, "_stored", lambda tensor: (reads.append(tensor.path), stored(tensor))[1])
    inspect(capsys, path, "--sort", "size")
    inspect(capsys, path, "--json")
    assert reads == []
    inspect(capsys, path, "encoder", "--stats")
    assert sorted(reads) == ["encoder.bias", "encoder.weight"]
    reads.clear()
    inspect(capsys, path, "--verify")
    assert sorted(reads) == sorted(sample().tensors)


def test_choosing_sorting_and_limiting(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> list[str]:
        return [row[0] for row in rows(inspect(capsys, file, *arguments))[1:]]

    assert shown("encoder") == ["encoder.weight", "encoder.bias"]
    assert shown("!encoder", "!step")[:2] == ["positions", "mask"]
    assert shown("head") == ["encoder.weight"]
    assert shown("--sort", "name")[:3] == ["encoder.bias", "encoder.weight", "mask"]
    assert shown("--sort", "size", "--limit", "2", "*.*", "positions")[:2] == ["positions", "encoder.weight"]
    out = inspect(capsys, file, "--limit", "2", "encoder", "positions")
    assert "\n... and 1 more\n" in out and "\nTotal: 3 tensors, " in out
    assert len(json.loads(inspect(capsys, file, "--limit", "2", "--json"))["entries"]) == 2
    assert "path " not in inspect(capsys, file, "--limit", "0")


def test_statistics(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {row[0]: row for row in rows(inspect(capsys, file, "--stats"))}
    assert found["encoder.weight"][-4:] == ["-2.5", "4", "0.8333", "1"]
    assert found["positions"][-3:] == ["0", "999", "499.5"]
    assert found["mask"][-3:] == ["False", "True", "0.75"]
    assert found["nothing"][-3:] == ["-", "-", "-"]


def test_verify_finds_every_damage(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(capsys, file, "--verify").endswith("Read every tensor: checksums agree\n")
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + 3] ^= 1
    data[start + 8000 + 3] ^= 1
    file.write_bytes(data)
    inspect(capsys, file)  # reads no tensor, so it does not see it
    for path in ("encoder.weight", "positions"):
        assert main(["inspect", str(file), "--verify", path]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert str(file) in err and "checksum" in err and "1 other tensor cannot be read" in err
    assert main(["inspect", str(file), "--stats"]) == 2
    assert "--ignore-checksums reads it all the same" in capsys.readouterr().err
    out = inspect(capsys, file, "--verify", "--ignore-checksums")
    assert out.endswith("Read every tensor: checksums ignored\n")


def test_files_of_others_and_files_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"x": np.ones(3)}, tmp_path / "theirs.safetensors", {"format": "pt"})
    out = inspect(capsys, tmp_path / "theirs.safetensors", "--verify")
    assert "Written by  unknown (no Phlox header)" in out and "Precision  " not in out
    assert out.endswith("this file has no checksums\n")
    found = json.loads(inspect(capsys, tmp_path / "theirs", "--json"))
    assert found["schema"] is None and found["phlox"] is None and found["metadata"] == {"format": "pt"}
    BinaryRecorder(compression="gzip", names=False).save(sample(), tmp_path / "bare")
    out = inspect(capsys, tmp_path / "bare")
    assert "binary, gzip, schema" in out and "Names       none: the entries are identified by their positions" in out
    assert rows(out)[1][0] == "0"
    old = Path(__file__).parents[1] / "record" / "golden" / "schema1" / "safetensors.safetensors"
    out = inspect(capsys, old, "--verify")
    assert "schema 1" in out and out.endswith("this file has no checksums\n")


def on_terminal(columns: int, *arguments: object) -> str:
    """What `phlox ARGUMENTS` prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "phlox", *map(str, arguments)], env={**ENVIRONMENT, "COLUMNS": str(columns)},
        stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 65536):
            text += chunk
    except OSError:  # how the end of a terminal shows
        pass
    os.close(master)
    process.wait(60)
    return text.decode().replace("\r\n", "\n")


def wide() -> Record:
    entries = {f"transformer.encoder.blocks.{i}.attention.query_projection.weight": np.ones((64, 64)) for i in range(3)}
    values = {"a.value.of.some.length": "word " * 40}
    return Record({**entries, **values}, {"comment": "said at length " * 20})


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    file = SafetensorsRecorder().save(wide(), tmp_path / "file")
    for options in ([], ["--stats"]):
        out = on_terminal(columns, "inspect", file, *options)
        assert "Total: 3 tensors" in out
        assert max(len(line) for line in out.splitlines() if not line.startswith("File")) <= columns
        assert all(f".{i}.attention.query_projection.weight"[-15:] in out for i in range(3)) and "..." in out


def test_a_pipe_takes_it_all(tmp_path: Path) -> None:
    file = SafetensorsRecorder().save(wide(), tmp_path / "file")
    done = run("inspect", file)
    assert done.returncode == 0 and "..." not in done.stdout and "\x1b" not in done.stdout
    assert "word " * 40 in done.stdout and "said at length " * 19 in done.stdout
    assert "transformer.encoder.blocks.2.attention.query_projection.weight" in done.stdout


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    record = Record({f"entry.{i}": np.ones(1) for i in range(20_000)})
    file = SafetensorsRecorder().save(record, tmp_path / "file")
    done = subprocess.run(
        f"{sys.executable} -m phlox inspect {file} | head -2", shell=True, env=ENVIRONMENT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"File        {file}\n") and done.stderr == ""


def test_a_name_cannot_disturb_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record({"a\x1b[2J\nb": np.ones(2)}, {"k\x07": "v\r"}, aliases={"c\x1b": "a\x1b[2J\nb"})
    out = inspect(capsys, SafetensorsRecorder().save(record, tmp_path / "file"))
    assert out.replace("\n", "").isprintable() and "a\\x1b[2J\\nb" in out and "k\\x07  v\\r" in out


def test_letters_that_the_terminal_has_not(tmp_path: Path) -> None:
    file = SafetensorsRecorder().save(Record({"größe": np.ones(2)}), tmp_path / "file")
    done = subprocess.run(
        [sys.executable, "-m", "phlox", "inspect", str(file)], env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and b"gr\\xf6\\xdfe" in done.stdout


@pytest.mark.parametrize(("arguments", "part"), [
    (["none"], "no such file"), (["."], "give the name of the file"), (["file.safetensor"], "did you mean"),
    (["file", "encodr"], "did you mean `encoder`"), (["file", "encoder", "zzz"], "no path matches `zzz`"),
    (["cut.safetensors"], "not a valid safetensors record"), (["empty"], "it is empty"),
], ids=str)  # fmt: skip
def test_bad_input(
    arguments: list[str], part: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(file.parent)
    Path("cut.safetensors").write_bytes(file.read_bytes()[:-1])
    Path("empty").write_bytes(b"")
    assert main(["inspect", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("phlox: ") and err.count("\n") == 1 and part in err


@pytest.mark.parametrize("arguments", [
    [], ["f", "--limit", "-1"], ["f", "--limit", "few"], ["f", "--sort", "shape"], ["f", "--frob"],
], ids=str)  # fmt: skip
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", *arguments])
    _, err = capsys.readouterr()
    assert exit_.value.code == 2 and err.count("\n") == 1 and "--help" in err


def test_what_cannot_be_read_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", w=np.ones(2), names=np.array(["cat"]), z=np.ones(1, complex))
    assert main(["inspect", str(tmp_path / "x.npz")]) == 0
    page = capsys.readouterr().out
    assert "Cannot be read" in page and "names  text of NumPy's type '<U3'" in page and "Total: 1 tensor" in page
    assert main(["inspect", str(tmp_path / "x.npz"), "z", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["entries"] == [] and list(found["unreadable"]) == ["z"]
