"""`phlox diff`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from phlox.cli import main
from phlox.record import BinaryRecorder, LazyTensor, PrecisionSettings, Record, TensorEntry, save
from tests.cli.support import run
from tests.cli.test_inspect import on_terminal

AS_IS = PrecisionSettings()
RNG = np.random.default_rng(3)
WEIGHT = RNG.normal(size=(20, 30)).astype(np.float32)


def sample(**changes: Any) -> Record:
    entries: dict[str, Any] = {
        "encoder.weight": TensorEntry(LazyTensor.from_array(WEIGHT), "0123456789abcdef"),
        "encoder.bias": WEIGHT[0],
        "positions": np.arange(5),
        "step": 7,
    }
    entries = {path: entry for path, entry in (entries | changes).items() if entry is not ...}
    return Record(entries, {"by": "the tests"}, aliases={"head": "encoder.weight"})


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return save(sample(), tmp_path / "a.safetensors", AS_IS)


def diff(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    assert main(["diff", *map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("name", ["b.safetensors", "b.msgpack.gz", "b.json", "b.phlox.zst"])
def test_the_same_in_another_format(name: str, a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(sample(), tmp_path / name, AS_IS)
    out = diff(capsys, 0, "--strict", a, tmp_path / name)
    assert out.endswith("\n\nIdentical: 4 entries agree\n") and out.count("\n") == 4
    assert json.loads(diff(capsys, 0, a, tmp_path / name, "--json"))["identical"] is True


def test_half_against_full(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = save(sample(), tmp_path / "b.json", PrecisionSettings(float="f16"))
    out = diff(capsys, 1, a, b)
    gap = np.abs(WEIGHT.astype(np.float64) - WEIGHT.astype(np.float16).astype(np.float64))
    place = tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))
    (line,) = [line for line in out.splitlines() if line.startswith("  encoder.weight")]
    unequal = np.count_nonzero(gap)
    share = ">99%" if unequal < gap.size else "100%"
    assert f" {unequal} ({share})  {gap.max():.3g}  {place}" in line
    assert f" {WEIGHT[place]:.6g}  {WEIGHT[place].astype(np.float16):.6g}  " in line
    assert "Precision: f32 in A, f16 in B: 2 tensors" in out
    assert out.endswith("Different: 2 entries agree, 2 of another value\n")
    for tolerance in (["--rtol", "1e-3"], ["--atol", str(gap.max())]):
        out = diff(capsys, 0, *tolerance, a, b)
        assert "Tensors that differ within the tolerance" in out
        assert out.endswith("The same: 4 entries agree within the tolerance\n")
    assert diff(capsys, 1, a, b, "--rtol", "1e-3", "--strict").endswith(
        "Different in precisions: 4 entries agree within the tolerance\n"
    )


def test_all_that_differs(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = WEIGHT.copy()
    changed[3, 4] = np.nan
    record = sample(**{
        "encoder.weight": changed, "encoder.bias": ..., "encoder.bais": WEIGHT[0], "positions": np.zeros(5), "step": 8,
        "extra": [1, math.inf],
    })  # fmt: skip
    b = save(Record({p: record[p] for p in record}, {"by": "us"}), tmp_path / "b.msgpack", AS_IS)
    out = diff(capsys, 1, a, b)
    for part in (
        "Only in A\n  encoder.bias  float  (30,)  f32  did you mean encoder.bais?\n",
        "f32  did you mean encoder.bias?\n  extra         value  [1, Infinity]\n",
        "Other kinds\n  path       A    B\n  positions  int  float\n",
        "Other values\n  path  A  B\n  step  7  8\n",
        f"  encoder.weight  1 (<1%)           1  (3, 4)  {WEIGHT[3, 4]:.6g}  nan\n",
        "Other aliases\n  path  A               B\n  head  encoder.weight  nothing\n",
        "Other metadata\n  path  A          B\n  by    the tests  us\n",
        "Ids: none in B: 1 tensor\n",
        "Different: 0 entries agree, 1 only in A, 2 only in B, 1 of another kind, 2 of another value\n",
    ):
        assert part in out, (part, out)


def test_as_json(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = WEIGHT.copy()
    changed[3, 4], changed[5, 6] = np.inf, WEIGHT[5, 6] + 2
    record = sample(**{"encoder.weight": changed, "positions": np.zeros(6, int), "step": math.nan})
    b = save(record, tmp_path / "b.msgpack", AS_IS)
    found = json.loads(diff(capsys, 1, a, b, "--json"), parse_constant=lambda name: pytest.fail(name))
    assert found["agree"] is False and found["equal"] == 1
    assert found["shapes"] == [{"path": "positions", "first": [5], "second": [6]}]
    assert found["values"] == [{"path": "step", "first": 7, "second": {"$float": "nan"}}]
    (one,) = found["tensors"]
    assert (one["path"], one["size"], one["unequal"], one["different"], one["non_finite"]) == (
        "encoder.weight", 600, 2, 2, 1,
    )  # fmt: skip
    assert one["largest"]["at"] == [5, 6] and one["largest"]["amount"] == pytest.approx(2)
    assert one["non_finite_at"]["second"] == {"$float": "inf"}


def test_metadata_and_ids_count_with_strict_alone(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = sample(**{"encoder.weight": TensorEntry(LazyTensor.from_array(WEIGHT), "another")})
    b = save(Record({p: record[p] for p in record}, {"by": "x"}, aliases={"head": "encoder.weight"}), tmp_path / "b")
    out = diff(capsys, 0, a, b)
    assert "Ids: not the same: 1 tensor" in out and out.endswith("\nThe same: 4 entries agree\n")
    assert diff(capsys, 1, "--strict", a, b).endswith("Different in ids and metadata: 4 entries agree\n")


def test_limit(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = save(Record({f"x{i}": i for i in range(10)}), tmp_path / "b")
    out = diff(capsys, 1, a, b, "--limit", "3")
    assert "  x2  value  2\n  ... and 7 more\n" in out and "x3" not in out and "  ... and 1 more\n" in out
    assert "Only in B\n  ... and 10 more\n" in diff(capsys, 1, a, b, "--limit", "0")
    assert json.loads(diff(capsys, 1, a, b, "--limit", "3", "--json"))["only_second"] == ["x0", "x1", "x2"]


def test_without_names(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = BinaryRecorder(AS_IS, names=False).save(sample(), tmp_path / "b")
    out = diff(capsys, 0, a, b)
    assert "One of them has no names: the entries are compared in order" in out
    assert diff(capsys, 0, b, b).endswith("Identical: 4 entries agree\n")
    c = BinaryRecorder(AS_IS, names=False).save(Record({"x": np.ones(2)}), tmp_path / "c")
    out = diff(capsys, 1, c, a)
    assert "Other shapes\n  path            A     B\n  encoder.weight  (2,)  (20, 30)\n" in out
    out = diff(capsys, 1, a, save(Record({"y": np.ones(2)}), tmp_path / "d"))
    assert "did you mean" not in out
    assert "  [1]\n" in diff(capsys, 1, b, tmp_path / "d").replace("  [1]  ", "  [1]\n")


def test_against_a_file_of_others(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {"encoder.weight": WEIGHT, "encoder.bias": WEIGHT[0], "positions": np.arange(5)}
    save_file(theirs, tmp_path / "b.safetensors")
    assert "Different: 3 entries agree, 1 only in A\n" in diff(capsys, 1, a, tmp_path / "b.safetensors")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    first = {f"transformer.encoder.blocks.{i}.attention.query.weight": RNG.normal(size=(900, 300)) for i in range(3)}
    second = {path: array * 1e10 for path, array in first.items()}
    a, b = save(Record(first, {"x": "y " * 100}), tmp_path / "a"), save(Record(second, {"x": "z"}), tmp_path / "b")
    lines = on_terminal(columns, "diff", a, b).splitlines()
    assert max(len(line) for line in lines if not line.startswith(("A:", "B:"))) <= columns
    assert sum("270,000 (100%)" in line for line in lines) == 3 and any("..." in line for line in lines)


@pytest.mark.parametrize(("arguments", "part"), [
    (["a", "none"], "none: there is no such file"), (["none", "a"], "none: there is no such file"),
    (["a", "."], "give the name of the file"),
    (["a", "cut.safetensors"], "cut.safetensors: not a valid safetensors record"),
    (["a", "spoilt.safetensors"], "encoder.weight: its checksum does not match"),
], ids=str)  # fmt: skip
def test_bad_input(
    arguments: list[str], part: str, a: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(a.parent)
    data = bytearray(a.read_bytes())
    Path("cut.safetensors").write_bytes(data[:-1])
    data[-WEIGHT.nbytes // 2] ^= 1
    Path("spoilt.safetensors").write_bytes(data)
    assert main(["diff", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("phlox: ") and err.count("\n") == 1 and part in err


@pytest.mark.parametrize("arguments", [
    ["a"], [], ["a", "b", "--rtol", "-1"], ["a", "b", "--atol", "nan"], ["a", "b", "--atol", "inf"],
    ["a", "b", "--rtol", "x"], ["a", "b", "--limit", "1.5"], ["a", "b", "c"],
], ids=str)  # fmt: skip
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["diff", *arguments])
    _, err = capsys.readouterr()
    assert exit_.value.code == 2 and err.count("\n") == 1 and "--help" in err


def test_the_real_command_line(a: Path, tmp_path: Path) -> None:
    b = save(sample(step=8), tmp_path / "b.json", AS_IS)
    for other, status in ((a, 0), (b, 1), (tmp_path / "none", 2)):
        done = run("diff", a, other)
        assert done.returncode == status and (done.stderr == "") == (status < 2)
        assert "Traceback" not in done.stderr
