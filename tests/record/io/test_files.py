"""Files: atomic, durable, bounded; never another exception than RecordError, whatever is in them."""

from __future__ import annotations

import gzip
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.record import (
    HALF,
    BinaryRecorder,
    JsonRecorder,
    LazyTensor,
    Record,
    Recorder,
    RecordError,
    SafetensorsRecorder,
    TensorEntry,
    load,
    save,
)
from tests.record.support import AS_IS, FORMATS, assert_same_record, recorders

RECORD = Record(
    {
        "a.weight": TensorEntry(LazyTensor.from_array(np.arange(4, dtype=np.float32)), "p0"),
        "a.mask": np.array([True, False]),
        "state": {"step": 3, "x": [1.5, float("inf"), None]},
        "n": np.array(5, np.int64),
    },
    {"k": "v"},
    aliases={"b.weight": "a.weight"},
)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def read_all(record: Record) -> None:
    for entry in record.tensors.values():
        entry.tensor.read()


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_truncation(name: str, compression: Any) -> None:
    recorder = recorders(AS_IS, compression)[name]
    data = recorder.to_bytes(RECORD)
    for end in range(len(data)):
        if name == "json-decimal" and compression is None and data[end:] == b"\n":
            continue  # the line break after the end is no loss
        with pytest.raises(RecordError, match=f"{recorder.format} bytes: ."):
            recorder.from_bytes(data[:end])


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@pytest.mark.parametrize("name", FORMATS)
def test_random_damage(name: str, compression: Any) -> None:
    rng = random.Random(f"{name} {compression}")
    recorder = recorders(AS_IS, compression)[name]
    data = recorder.to_bytes(RECORD)
    for trial in range(600):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            at = rng.randrange(len(damaged))
            change = rng.randrange(4)
            if change == 0:
                damaged[at] ^= 1 << rng.randrange(8)
            elif change == 1:
                damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDD, 0xDF, 0xFF, ord("{"), ord("["), ord("9")))
            elif change == 2:
                del damaged[at]
            else:
                damaged[at:at] = damaged[rng.randrange(len(data)) :][: rng.randrange(1, 9)]
        try:
            record = recorder.from_bytes(bytes(damaged))
            read_all(record)
        except RecordError as error:
            assert f"{recorder.format} bytes: " in str(error), trial
        else:
            if compression is not None:  # whose checksum finds what the formats cannot
                assert_same_record(record, RECORD)


def test_garbage_of_every_beginning() -> None:
    rng = random.Random(0)
    starts = [b"", b"\x89PHX", b"\x84\xa5phlox", b'{"phlox":', b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", bytes(8) + b"{"]
    for start in starts:
        for recorder in recorders().values():
            for _ in range(60):
                with pytest.raises(RecordError):
                    read_all(recorder.from_bytes(start + rng.randbytes(rng.randrange(60))))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_bomb_fails_clearly(compression: Any, tmp_path: Path) -> None:
    recorder = JsonRecorder(compression=compression)
    data = recorder.to_bytes(Record({"a": np.zeros(1_000_000, np.float32)}))
    assert len(data) < 10_000
    with pytest.raises(RecordError, match="unpack to more than 1000000, .*bomb.*max_bytes"):
        JsonRecorder(max_bytes=1_000_000).from_bytes(data)
    path = tmp_path / "a.json.gz"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"a\.json\.gz: its .* bytes unpack"):
        load(path, max_bytes=100_000)
    assert load(path, max_bytes=10_000_000)["a"].tensor.shape == (1_000_000,)


def test_the_default_bound_is_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phlox.record.io.compression._SAFE_BYTES", 1000)
    with pytest.raises(RecordError, match="bomb"):
        SafetensorsRecorder().from_bytes(gzip.compress(bytes(100_000)))
    dense = np.random.default_rng(0).normal(size=10_000)
    data = SafetensorsRecorder(compression="gzip").to_bytes(Record({"a": dense}))
    SafetensorsRecorder().from_bytes(data)


def test_damaged_compression(tmp_path: Path) -> None:
    data = SafetensorsRecorder(compression="gzip").to_bytes(RECORD)
    for damaged in (data[:-8] + b"\0" * 8, data + b"junk", data[:10] + b"\xff" * 9):
        with pytest.raises(RecordError, match="safetensors bytes: damaged compressed data: ."):
            SafetensorsRecorder().from_bytes(damaged)
    assert data[4:8] == bytes(4) and data[3] == 0  # no time of day, no name
    plain = BinaryRecorder(AS_IS).to_bytes(RECORD)
    assert zlib.decompress(BinaryRecorder(AS_IS, "gzip").to_bytes(RECORD), 31) == plain


def test_zstd_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SafetensorsRecorder(compression="zstd").to_bytes(RECORD)
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    for operation in (
        lambda: SafetensorsRecorder(compression="zstd").to_bytes(RECORD),
        lambda: SafetensorsRecorder().from_bytes(data),
    ):
        with pytest.raises(RecordError, match=r"install Phlox with the extra 'zstd'"):
            operation()


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    save(RECORD, tmp_path / "model.safetensors")
    for loading in (load, SafetensorsRecorder().load):
        with pytest.raises(RecordError, match=r"modle\.safetensors: .*no such file; did you mean model\.safetensors"):
            loading(tmp_path / "modle.safetensors")
        with pytest.raises(RecordError, match="no such file"):
            loading(tmp_path / "zzz")
        with pytest.raises(RecordError, match="folder .*nowhere does not exist"):
            loading(tmp_path / "nowhere" / "model.safetensors")
        (tmp_path / "folder").mkdir(exist_ok=True)
        for name in ("folder", "model.safetensors/x", "n" * 300, "a\0"):
            with pytest.raises(RecordError):
                loading(tmp_path / name)
        for path in (Path(), tmp_path / "folder"):
            with pytest.raises(RecordError):
                loading(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_file_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(RecordError, match=r"pipe\.safetensors: it is not a regular file"):
        load(tmp_path / "pipe.safetensors")


def test_a_file_of_no_known_format(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"hello")
    with pytest.raises(RecordError, match=r"a\.xyz: its content has no format that Phlox knows"):
        load(tmp_path / "a.xyz")
    (tmp_path / "b.safetensors").write_bytes(b"hello")
    with pytest.raises(RecordError, match=r"b\.safetensors: not a valid safetensors record: it has 5 bytes"):
        load(tmp_path / "b.safetensors")


def test_two_files_of_one_stem(tmp_path: Path) -> None:
    JsonRecorder().save(Record({"a": 1}), tmp_path / "m")
    BinaryRecorder().save(Record({"a": 2}), tmp_path / "m")
    with pytest.raises(RecordError, match=r"which of m\.phlox, m\.json is meant"):
        load(tmp_path / "m")
    assert JsonRecorder().load(tmp_path / "m")["a"] == 1
    (tmp_path / "m").mkdir()  # a folder beside it is in nobody's way
    assert BinaryRecorder().load(tmp_path / "m")["a"] == 2


def test_suffixes(tmp_path: Path) -> None:
    def name(recorder: Recorder, path: str) -> str:
        return recorder.save(Record(), tmp_path / path).name

    packed = JsonRecorder(compression="gzip")
    assert name(JsonRecorder(), "a") == name(JsonRecorder(), "a.json") == "a.json"
    assert name(packed, "a") == name(packed, "a.json") == name(packed, "a.json.gz") == "a.json.gz"
    assert JsonRecorder().load(tmp_path / "a.json.gz").paths() == packed.load(tmp_path / "a.json").paths() == []
    with pytest.raises(RecordError, match=r"compression is None, not \.json\.gz"):
        name(JsonRecorder(), "b.json.gz")
    with pytest.raises(RecordError):
        JsonRecorder().save(Record(), "")


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "m")
    before = path.read_bytes()

    def fail() -> np.ndarray:
        raise KeyboardInterrupt

    broken = LazyTensor.from_function((3,), np.float32, fail)
    for recorder in recorders().values():
        with pytest.raises(KeyboardInterrupt):
            recorder.save(Record({"a": np.ones(100_000), "b": broken}), tmp_path / "m")
    with pytest.raises(RecordError, match=r"cannot save .*m\.safetensors: w: the value 1e\+20 does not fit"):
        save(Record({"w": np.array([1e20])}), tmp_path / "m", precision=HALF)
    assert path.read_bytes() == before and names_in(tmp_path) == ["m.safetensors"]


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot save .*gone/m\.safetensors: No such file or directory"):
        save(RECORD, tmp_path / "gone" / "m")
    (tmp_path / "d.safetensors").mkdir()
    with pytest.raises(RecordError, match="cannot save .*d.safetensors: Is a directory"):
        save(RECORD, tmp_path / "d")
    assert names_in(tmp_path) == ["d.safetensors"]


def test_permissions_are_kept_and_links_followed(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "m")
    path.chmod(0o600)
    (tmp_path / "link.safetensors").symlink_to(path)
    save(Record({"new": 1}), tmp_path / "link")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and load(path)["new"] == 1
    assert (tmp_path / "link.safetensors").is_symlink()


def test_a_mapped_file_can_be_replaced(tmp_path: Path) -> None:
    old = load(save(Record({"a": np.zeros(10_000)}), tmp_path / "m"))
    save(Record({"a": np.ones(10_000)}), tmp_path / "m")
    assert old["a"].tensor.read().sum() == 0 and load(tmp_path / "m")["a"].tensor.read().sum() == 10_000


KILLED = """
import os, signal, sys
import numpy as np
from phlox.record import LazyTensor, Record, save

def die():
    os.kill(os.getpid(), signal.SIGKILL)

save(Record({"a": np.ones(500_000), "b": LazyTensor.from_function((3,), np.float32, die)}), sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_writer_killed_in_the_middle(tmp_path: Path) -> None:
    path = save(RECORD, tmp_path / "m.safetensors")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert_same_record(load(path), RECORD)
    assert len(names_in(tmp_path)) == 2  # what it had written is under another name
    assert_same_record(load(save(RECORD, path)), RECORD)


def test_writers_of_one_path_never_mix(tmp_path: Path) -> None:
    def write(value: int) -> None:
        for _ in range(5):
            save(Record({"a": np.full(20_000, value, np.float32), "n": value}), tmp_path / "m")

    threads = [threading.Thread(target=write, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "m.safetensors").exists():
            record = load(tmp_path / "m")
            assert (record["a"].tensor.read() == record["n"]).all()
    assert names_in(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize("name", FORMATS)
def test_reading_one_tensor_reads_only_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    original = LazyTensor._stored

    def stored(self: LazyTensor) -> np.ndarray:
        counted.append(self.path)
        return original(self)

    recorder = recorders()[name]
    loaded = recorder.from_bytes(recorder.to_bytes(RECORD))
    monkeypatch.setattr(LazyTensor, "_stored", stored)
    loaded.with_precision(AS_IS).select("a")["weight"].tensor.read()
    assert counted == ["a.weight"]


def test_writing_reads_one_tensor_at_a_time() -> None:
    alive: list[int] = []
    peak = 0

    class Counted(np.ndarray):
        def __del__(self) -> None:
            if self.base is None:
                alive.pop()

    def make() -> np.ndarray:
        nonlocal peak
        alive.append(1)
        peak = max(peak, len(alive))
        return np.ndarray.__new__(Counted, (1000,), np.float64)

    def filled() -> np.ndarray:
        array = make()
        array[...] = 1
        return array

    entries = {f"t{i}": LazyTensor.from_function((1000,), np.float64, filled) for i in range(5)}
    for recorder in recorders(HALF).values():
        peak = 0
        recorder.to_bytes(Record(entries))
        assert peak <= 2 and not alive
