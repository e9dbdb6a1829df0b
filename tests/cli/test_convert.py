"""`phlox convert`."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from phlox.cli import main
from phlox.record import BinaryRecorder, LazyTensor, PrecisionSettings, Record, SafetensorsRecorder, TensorEntry, load
from tests.cli.support import run
from tests.record.support import assert_same_record

RNG = np.random.default_rng(7)
AS_IS = PrecisionSettings()
ENDS = [
    form + end
    for form, end in itertools.product((".safetensors", ".msgpack", ".phlox", ".json", ".npz"), ("", ".gz", ".zst"))
]


def sample() -> Record:
    weight = LazyTensor.from_array(RNG.normal(size=(4, 3)).astype(np.float32))
    entries: dict[str, Any] = {
        "encoder.0.weight": TensorEntry(weight, "w"),
        "encoder.0.bias": TensorEntry(LazyTensor.from_array(RNG.normal(size=3)), "b"),
        "encoder.norm.gamma": np.array([np.nan, -0.0, np.inf], ml_dtypes.bfloat16),
        "step": 7,
        "positions": np.arange(-1, 4),
        "mask": np.array([True, False]),
        "schedule": {"warmup": [1, None], "rate": math.inf},
    }
    return Record(entries, {"by": "the tests"}, aliases={"head.weight": "encoder.0.weight"})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return SafetensorsRecorder(AS_IS).save(sample(), tmp_path / "source")


def convert(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["convert", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1
    return out


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["convert", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("phlox: ") and err.count("\n") == 1, err
    return err


def test_every_format_and_back(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chain through all of them: whatever one of them lost would be missing at the end."""
    expected, last = load(source), source
    for place, end in enumerate(ENDS):
        path = tmp_path / f"{place}{end}"
        out = convert(capsys, last, path)
        assert f"-> {path} (" in out and "5 tensors and 2 values" in out
        assert_same_record(load(path), expected)
        last = path
    convert(capsys, last, tmp_path / "last")
    assert (tmp_path / "last.safetensors").read_bytes() == source.read_bytes()


def test_the_line_says_what_became_of_it(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "a.msgpack.gz"
    before, out = source.stat().st_size, convert(capsys, source, written)
    after = written.stat().st_size
    sizes = [f"{size / 1000:.2f} kB" if size >= 1000 else f"{size} B" for size in (before, after)]
    assert out == (
        f"{source} (safetensors, {sizes[0]}) -> {written} (msgpack, gzip, {sizes[1]}): 5 tensors and 2 values\n"
    )


@pytest.mark.parametrize(("name", "dtype"), [
    ("double", np.float64), ("full", np.float32), ("half", np.float16), ("bfloat16", ml_dtypes.bfloat16),
], ids=["double", "full", "half", "bfloat16"])  # fmt: skip
def test_precision(name: str, dtype: Any, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, source, tmp_path / "out", "--precision", name, "--ints", "i16")
    before = load(source)
    with safe_open(tmp_path / "out.safetensors", "numpy") as file:
        for path, entry in before.tensors.items():
            array = entry.tensor.read()
            target = {"float": np.dtype(dtype), "int": np.dtype(np.int16), "bool": np.dtype(bool)}[entry.tensor.kind]
            got = (
                load(tmp_path / "out").tensors[path].tensor.read()
                if target.name == "bfloat16"
                else file.get_tensor(path)
            )
            assert got.dtype == target
            assert got.astype(target).tobytes() == array.astype(target).tobytes()


def test_in_place(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {path: array.astype(np.float16) for path, array in arrays(source).items() if array.dtype.kind == "f"}
    assert "--overwrite" in fails(capsys, source, source, "--precision", "half")
    convert(capsys, source, source, "--precision", "half", "--overwrite")
    found = load(source)
    assert found["encoder.0.weight"].id == "w" and found["step"] == 7
    for path, array in expected.items():
        assert found[path].tensor.read().tobytes() == array.tobytes()
    assert [path.name for path in source.parent.iterdir()] == [source.name]


def arrays(path: Path) -> dict[str, np.ndarray]:
    return {name: np.array(entry.tensor.read()) for name, entry in load(path).tensors.items()}


def test_in_place_through_a_link(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(source)
    convert(capsys, source, link, "--precision", "half", "--overwrite")
    assert link.is_symlink() and load(source)["encoder.0.weight"].tensor.dtype == np.float16


def test_a_failure_leaves_what_was_there(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SafetensorsRecorder(AS_IS).save(Record({"x": np.array([1e6])}), tmp_path / "large")
    for target in (tmp_path / "new.json", source, tmp_path / "large.safetensors"):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        error = fails(capsys, tmp_path / "large", target, "--precision", "half", "--overwrite")
        assert "x: the value 1000000.0 does not fit float16 (largest 65504); give another --precision" in error
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, source, tmp_path / "a", "--include", "encoder", "--include", "head", "--exclude", "**.bias")
    found = load(tmp_path / "a")
    assert found.paths() == ["encoder.0.weight", "encoder.norm.gamma"] and dict(found.aliases) == {
        "head.weight": "encoder.0.weight"
    }
    assert found["encoder.0.weight"].id == "w" and dict(found.metadata) == {"by": "the tests"}
    convert(capsys, source, tmp_path / "b", "--include", "head")
    assert load(tmp_path / "b").paths() == ["head.weight"]
    convert(
        capsys, source, tmp_path / "c", "--rename", r"^encoder\.(\d+)=blocks.\1.linear", "--rename", "[.]gamma$=.weight"
    )
    renamed = load(tmp_path / "c")
    assert renamed.paths()[:3] == ["blocks.0.linear.weight", "blocks.0.linear.bias", "encoder.norm.weight"]
    assert dict(renamed.aliases) == {"head.weight": "blocks.0.linear.weight"}
    convert(capsys, source, tmp_path / "d", "--rename", "(?=encoder)=model.")  # the last = is the sign
    assert load(tmp_path / "d").paths()[0] == "model.encoder.0.weight"


def test_without_names(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, source, tmp_path / "a.phlox", "--no-names")
    found = load(tmp_path / "a.phlox")
    assert found.positional and not found.aliases and found["3"] == 7
    convert(capsys, tmp_path / "a.phlox", tmp_path / "b.json")
    assert load(tmp_path / "b.json").positional
    for arguments in (["--include", "0"], ["--exclude", "0"], ["--rename", "0=1"]):
        error = fails(capsys, tmp_path / "a.phlox", tmp_path / "c", *arguments)
        assert "no names, only positions" in error


def test_json(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(capsys, source, tmp_path / "a.json", "--pretty", "--decimal")
    text = (tmp_path / "a.json").read_text()
    entries = {one["path"]: one for one in json.loads(text)["entries"]}
    assert entries["positions"]["data"] == [-1, 0, 1, 2, 3] and text.count("\n") > 20
    convert(capsys, source, tmp_path / "b.json")
    assert "\n" not in (tmp_path / "b.json").read_text()


def test_gguf(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SafetensorsRecorder().save(Record({"w": RNG.normal(size=(2, 64)), "step": 3}), tmp_path / "a.safetensors")
    convert(capsys, tmp_path / "a.safetensors", tmp_path / "b.gguf", "--type", "Q8_0")
    assert load(tmp_path / "b.gguf")["w"].tensor.stored_as == ("Q8_0", 136)
    convert(capsys, tmp_path / "b.gguf", tmp_path / "c.safetensors")
    assert load(tmp_path / "c.safetensors")["step"] == 3


def test_files_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"a.weight": RNG.normal(size=(3, 2)).astype(np.float32), "b": np.arange(3)}
    save_file(tensors, tmp_path / "theirs.safetensors", {"format": "pt"})
    convert(capsys, tmp_path / "theirs.safetensors", tmp_path / "ours.json.gz")
    convert(capsys, tmp_path / "ours.json.gz", tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == tensors.keys() and all((back[name] == tensors[name]).all() for name in tensors)
    assert load(tmp_path / "ours.json.gz").metadata["format"] == "pt"


def test_files_of_pytorch_numpy_and_in_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight, positions = RNG.normal(size=(3, 2)).astype(np.float32), np.arange(3)
    torch.save({"a.weight": torch.from_numpy(weight), "positions": torch.from_numpy(positions)}, tmp_path / "1.pt")
    np.savez(tmp_path / "2.npz", **{"a.weight": weight, "positions": positions})
    (tmp_path / "3").mkdir()
    shards = {"a.weight": "model-1.safetensors", "positions": "model-2.safetensors"}
    save_file({"a.weight": weight}, tmp_path / "3" / "model-1.safetensors")
    save_file({"positions": positions}, tmp_path / "3" / "model-2.safetensors")
    (tmp_path / "3" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    shown = []
    for name in ("1.pt", "2.npz", "3/model.safetensors.index.json"):
        shown.append(convert(capsys, tmp_path / name, tmp_path / "out", "--overwrite"))
        found = load_file(tmp_path / "out.safetensors")
        assert found.keys() == shards.keys()
        assert (found["a.weight"] == weight).all() and (found["positions"] == positions).all()
    assert [line.split("(")[1].split(",")[0] for line in shown] == ["pytorch", "npz", "sharded"]
    size = sum(path.stat().st_size for path in (tmp_path / "3").iterdir())
    assert f"(sharded, {size} B)" in shown[2]
    for name in ("x.pt", "x.npy"):
        assert "but does not write them" in fails(capsys, tmp_path / "out", tmp_path / name)


def test_files_of_the_first_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[1] / "record" / "golden" / "schema1"
    for old in sorted(folder.iterdir()):
        convert(capsys, old, tmp_path / f"{old.name}.json")
        new = load(tmp_path / f"{old.name}.json")
        assert_same_record(new, load(old))
        assert new.header is not None and new.header.schema >= 2


@pytest.mark.full
@pytest.mark.parametrize("precision", ["as-is", "half"])
@pytest.mark.parametrize("end", [".safetensors", ".msgpack", ".phlox", ".json", ".npz"])
@pytest.mark.filterwarnings("ignore::phlox.errors.RecordWarning")  # a few of so many round to zero
def test_memory_is_that_of_one_tensor(
    end: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = 1 << 22
    big = Record({f"t{i}": RNG.normal(size=each // 4).astype(np.float32) for i in range(10)})
    SafetensorsRecorder(AS_IS).save(big, tmp_path / "big")
    convert(capsys, tmp_path / "big", tmp_path / f"big{end}", "--overwrite")
    warm = ["convert", str(tmp_path / f"big{end}"), str(tmp_path / "warm.json"), "--precision", precision]
    assert main(warm) == 0  # what is imported stays
    tracemalloc.start()
    assert main(["convert", str(tmp_path / f"big{end}"), str(tmp_path / "out.json"), "--precision", precision]) == 0
    _, there = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert (
        main(["convert", str(tmp_path / "big.safetensors"), str(tmp_path / f"x{end}"), "--precision", precision]) == 0
    )
    _, back = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(there, back) < 1.25 * each


@pytest.mark.parametrize(("arguments", "parts"), [
    (["none", "x"], ["none", "no such file"]),
    (["source.safetensor", "x"], ["did you mean source.safetensors"]),
    ([".", "x"], [".", "give the name of the file"]),
    (["broken.safetensors", "x"], ["broken.safetensors", "not a valid safetensors record"]),
    (["text.txt", "x"], ["text.txt", "its content has no format", "safetensors"]),
    (["source", "source"], ["source.safetensors: exists already", "--overwrite"]),
    (["source", "folder.json"], ["folder.json: is a folder"]),
    (["source", "text.txt/x"], ["cannot save text.txt/x.safetensors", "Not a directory"]),
    (["source", "nowhere/x"], ["cannot save nowhere/x.safetensors", "No such file or directory"]),
    (["source", "/proc/x"], ["cannot save /proc/x.safetensors"]),
    (["source", ""], ["is not the name of a file"]),
    (["source", "x" * 300], ["File name too long"]),
    (["source", "x.json", "--format", "msgpack"], ["x.json", "json", "msgpack", ".msgpack"]),
    (["source", "x.json.gz", "--compression", "zstd"], ["x.json.gz", "gzip", "zstd"]),
    (["source", "x.json.gz", "--compression", "none"], ["x.json.gz", "gzip", "none"]),
    (["source", "x", "--no-names"], ["--no-names", "binary", "safetensors"]),
    (["source", "x.phlox", "--pretty"], ["--pretty", "json", "binary"]),
    (["source", "x", "--decimal"], ["--decimal"]),
    (["source", "x.json", "--type", "Q8_0"], ["--type", "gguf", "json"]),
    (["source", "x.gguf", "--type", "Q9"], ["'Q9'", "Q8_0", "MXFP4"]),
    (["source", "x", "--include", "encodr"], ["`encodr`", "did you mean `encoder`"]),
    (["source", "x", "--exclude", "nope"], ["no path matches `nope`"]),
    (["source", "x", "--include", "step", "--exclude", "*"], ["leave none of its 7 entries"]),
    (["source", "x", "--rename", "a(=b"], ["--rename", "'a('", "not a regular expression"]),
    (["source", "x", "--rename", "ab"], ["REGEX=NEW"]),
    (["source", "x", "--rename", "=b"], ["REGEX=NEW"]),
    (["source", "x", "--rename", "zzz=b"], ["no path matches 'zzz'", "encoder.0.weight"]),
    (["source", "x", "--rename", r"weight=\9"], ["--rename", "invalid group reference"]),
    (["source", "x", "--rename", "^.*$=same"], ["--rename: ", "both become 'same'", "drop one of them (--exclude)"]),
    (["source", "x", "--rename", "^step$="], ["--rename: ", "not a path"]),
    (["source", "x", "--ints", "u8", "--rename", "a=b"], ["the value -1 does not fit uint8", "; give other --ints"]),
    (["source", "x", "--ints", "i8", "--precision", "half", "--include", "huge"], ["`huge`"]),
    (["bomb.json.gz", "x", "--max-bytes", "500"], ["bomb.json.gz", "more than 500", "give a larger --max-bytes"]),
], ids=str)  # fmt: skip
def test_bad_input(
    arguments: list[str], parts: list[str], source: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = source.parent
    monkeypatch.chdir(folder)
    (folder / "broken.safetensors").write_bytes(source.read_bytes()[:100])
    (folder / "text.txt").write_text("hello")
    (folder / "folder.json").mkdir()
    assert main(["convert", "source", "bomb.json.gz"]) == 0
    capsys.readouterr()
    before = sorted(folder.iterdir())
    error = fails(capsys, *arguments)
    assert all(part in error for part in parts), error
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("arguments", [
    ["a"], ["a", "b", "--precision", "quarter"], ["a", "b", "--ints", "f32"], ["a", "b", "--compression", "xz"],
    ["a", "b", "--format", "pt"], ["a", "b", "--max-bytes", "-1"], ["a", "b", "--max-bytes", "many"],
], ids=str)  # fmt: skip
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["convert", *arguments])
    _, err = capsys.readouterr()
    assert exit_.value.code == 2 and err.count("\n") == 1 and "phlox convert --help" in err


def test_a_name_cannot_disturb_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SafetensorsRecorder().save(Record({"\x1b[2Jx": np.array([1e9])}), tmp_path / "a")
    error = fails(capsys, tmp_path / "a", tmp_path / "b", "--precision", "half")
    assert "\x1b" not in error and "does not fit" in error


def test_a_file_that_another_program_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = BinaryRecorder().save(Record({"x": np.ones(4)}), tmp_path / "a")
    data = bytearray(path.read_bytes())
    data[-9] ^= 1  # in the last element, before 8 bytes of checksums
    path.write_bytes(data)
    assert "checksum" in fails(capsys, path, tmp_path / "b")
    convert(capsys, path, tmp_path / "b", "--ignore-checksums")
    assert load(tmp_path / "b")["x"].tensor.read().tolist() != [1, 1, 1, 1]


def test_with_numpy_alone(source: Path, tmp_path: Path) -> None:
    without = "for name in ('jax', 'torch', 'rich', 'matplotlib', 'PIL', 'safetensors'): sys.modules[name] = None"
    for arguments in (
        ["convert", source, tmp_path / "a.json"], ["inspect", tmp_path / "a.json", "--stats"],
        ["diff", source, tmp_path / "a.json"],
    ):  # fmt: skip
        done = run(*arguments, before=without)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_what_cannot_be_read_is_left_out_only_when_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", w=np.ones(2), names=np.array(["cat"]))
    command = ["convert", str(tmp_path / "x.npz"), str(tmp_path / "y.safetensors")]
    assert main(command) != 0
    assert "names: text of NumPy's type '<U3'" in (text := capsys.readouterr().err) and "--exclude 'names'" in text
    assert not (tmp_path / "y.safetensors").exists()
    assert main([*command, "--exclude", "names"]) == 0
    assert load(tmp_path / "y.safetensors").paths() == ["w"]
