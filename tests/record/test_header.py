"""Files of every schema version are read for ever, and today's writer still writes those of today byte for byte."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from phlox.record import Header, Record, Recorder, RecordError, load
from phlox.record.header import SCHEMA
from phlox.record.io.compression import decompressed
from phlox.record.names import fingerprint_of
from tests.record.support import assert_same_record

FOLDER = Path(__file__).parent / "golden"


def _make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", FOLDER / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = _make()
STEMS = ("safetensors", "msgpack", "binary", "positional", "json", "decimal", "gzip", "zstd", "gguf", "half")
FIRST = {"gguf": 2}
"""The schema of the first files of a kind."""
FILES = sorted(path for path in FOLDER.glob("schema*/*") if path.is_file())
IDS = [f"{path.parent.name}/{path.name}" for path in FILES]


def stem(path: Path) -> str:
    return path.name.split(".")[0]


def recorder_of(path: Path) -> Recorder:
    return MAKE.files()[stem(path)]


def written(path: Path) -> Record:
    """What the file was made of."""
    if stem(path) == "half":
        return Record({"weight": np.array([0.1, 0.2], np.float32)})
    return MAKE.golden()


def expected(path: Path) -> Record:
    """What is to be read from it."""
    record = written(path)
    if stem(path) == "half":
        return Record({"weight": np.array([0.1, 0.2], np.float16)})
    if stem(path) == "positional":
        entries = [record[p] if p in record.values else record[p].tensor for p in record]
        return Record({str(i): entry for i, entry in enumerate(entries)}, record.metadata, positional=True)
    return record


def header_of(path: Path) -> Header:
    header = load(path).header
    assert header is not None
    return header


def test_every_schema_has_a_file_of_every_kind() -> None:
    for schema in range(1, SCHEMA + 1):
        kept = {stem(path) for path in FILES if path.parent.name == f"schema{schema}"}
        expected = {each for each in STEMS if FIRST.get(each, 1) <= schema}
        assert kept == expected, f"write them: python -m tests.record.golden.make tests/record/golden/schema{schema}"
    assert set(MAKE.files()) == set(STEMS)


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_every_file_is_read(path: Path, verify: bool) -> None:
    assert_same_record(load(path, verify=verify), expected(path), nan_bits=stem(path) != "decimal")
    assert_same_record(recorder_of(path).from_bytes(path.read_bytes()), expected(path), stem(path) != "decimal")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_every_file_says_what_it_is(path: Path) -> None:
    header = header_of(path)
    assert header.schema == int(path.parent.name.removeprefix("schema"))
    assert header.format == recorder_of(path).format and header.phlox[0].isdigit()
    assert header.precision == ("float=f16, int=as is" if stem(path) == "half" else "float=as is, int=as is")
    assert header.positional == (stem(path) == "positional")
    has_fingerprint = stem(path) == "positional" and header.schema >= 2
    assert header.fingerprint == (fingerprint_of(written(path)) if has_fingerprint else None)


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_copy_at_the_newest_schema_is_equal(path: Path, tmp_path: Path) -> None:
    for name, recorder in MAKE.files().items():
        if name not in ("half", "positional"):
            again = load(recorder.save(load(path), tmp_path / "copy"))
            assert again.header is not None and again.header.schema == SCHEMA
            assert again.paths() == expected(path).paths() and dict(again.aliases) == dict(expected(path).aliases)


NEWEST = [path for path in FILES if path.parent.name == f"schema{SCHEMA}" and ".8." not in path.name]
"""Without those whose tensors begin at a multiple of 8 bytes only, as they did in safetensors for a while."""


@pytest.mark.parametrize("path", NEWEST, ids=[path.name for path in NEWEST])
def test_todays_writer_writes_the_same_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a format without a new schema version, and new files of it here, cannot go unnoticed."""
    monkeypatch.setattr("phlox.record.header.__version__", header_of(path).phlox)
    now, then = recorder_of(path).to_bytes(written(path)), path.read_bytes()
    # What a compressor makes of it is the compressor's affair, and changes with its version.
    assert bytes(decompressed(memoryview(now))) == bytes(decompressed(memoryview(then)))


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_damaged_copy_is_told(path: Path) -> None:
    if header_of(path).schema < 2:
        return
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        try:
            record = recorder_of(path).from_bytes(damaged)
            for entry in record.tensors.values():
                entry.tensor.read()
        except RecordError:
            continue
        assert_same_record(record, expected(path), nan_bits=stem(path) != "decimal")


def test_gzip_files_open_with_gzip() -> None:
    for path in FILES:
        if path.suffix == ".gz":
            assert gzip.decompress(path.read_bytes())[8:9] == b"{"
