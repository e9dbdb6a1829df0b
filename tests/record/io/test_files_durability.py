"""Durability: killed, crashed, out of space or in company, a writer leaves the old file or the new one, whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.record import (
    DOUBLE,
    FULL,
    JsonRecorder,
    LazyTensor,
    Record,
    Recorder,
    RecordError,
    SafetensorsRecorder,
    Sink,
    Source,
    load,
    save,
)
from phlox.record.formats.registry import RECORDERS
from phlox.record.io import files as files_module
from phlox.record.io.compression import Compression
from phlox.record.io.files import atomic_write

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, SIGKILL and flock")

PRELUDE = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from phlox.record import Record, load, save
path = Path(sys.argv[1])

def record(n):
    return Record({"n": n, "a": np.full(500_000, n, np.float32), "b": np.full(10, n)}, {"n": str(n)})

def number():
    loaded = load(path)
    n = loaded["n"]
    assert loaded.metadata["n"] == str(n)
    for name in "ab":
        assert (loaded[name].tensor.read() == n).all()  # and its checksum holds
    return n

def child(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
"""

KILLED = """
rng, last = random.Random(0), 0
save(record(0), path)
start = time.monotonic()
save(record(0), path)
took = time.monotonic() - start

def write():
    for n in range(last + 1, last + 1000):
        save(record(n), path)

seen = set()
for trial in range(40):
    pid = child(write)
    time.sleep(rng.uniform(0, 3 * took + 0.005))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    n = number()
    assert n >= last, (n, last)
    last = n
    seen.add(n)
    assert len(os.listdir(path.parent)) <= 2, os.listdir(path.parent)
assert len(seen) > 1
save(record(7), path)
assert number() == 7 and os.listdir(path.parent) == [path.name]
"""

TOGETHER = """
save(record(0), path)

def writer(first):
    def write():
        for n in range(first, first + 25):
            save(record(n), path)
    return write

pids = [child(writer(first)) for first in (100, 200, 300)]
alive = set(pids)
while alive:
    number()
    for pid in list(alive):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            alive.remove(pid)
assert number() in (124, 224, 324)
assert os.listdir(path.parent) == [path.name]
"""


def run(script: str, path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PRELUDE + script, str(path)]
    done = subprocess.run(command, env=environment, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "suffix", [".safetensors", *(pytest.param(one, marks=pytest.mark.full) for one in (".phlox", ".msgpack.gz"))]
)
def test_a_writer_killed_at_many_moments(suffix: str, tmp_path: Path) -> None:
    run(KILLED, tmp_path / f"m{suffix}")


def test_processes_that_write_one_path_never_mix(tmp_path: Path) -> None:
    run(TOGETHER, tmp_path / "m.safetensors")


OLD, NEW = Record({"n": 1, "w": np.ones(100_000)}), Record({"n": 2, "w": np.full(100_000, 2.0)})


class Crash(BaseException):
    """Nothing that code would catch."""


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after it"])
def test_a_crash_between_any_two_system_calls(after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(OLD, tmp_path / "m.safetensors")
    left, calls = -1, 0

    def crashing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left, calls
            calls += 1
            left -= 1
            if left == 0 and not after:
                raise Crash
            result = function(*args, **options)
            if left == 0:
                raise Crash
            return result

        return call

    for owner, name in (
        (os, "fsync"), (os, "open"), (os, "close"), (Path, "replace"), (Path, "chmod"),
        (files_module.EagerFile, "write"), (os, "pwrite"), (os, "pwritev"), (files_module.fcntl, "flock"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, crashing(getattr(owner, name)))
    save(OLD, path)
    assert calls > 9  # write twice or more, lock, chmod, sync, rename, open, sync, close
    found: list[int] = []
    for crash in range(1, calls + 1):
        left = -1
        save(OLD, path)
        left = crash
        with pytest.raises(Crash):
            save(NEW, path)
        left = -1
        loaded = load(path)
        found.append(loaded["n"])
        assert (loaded["w"].tensor.read() == loaded["n"]).all()
        assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert found == sorted(found) and set(found) == {1, 2}  # old before the rename, new after it


def test_the_data_is_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), replace(self, to)))
    save(OLD, tmp_path / "m")
    assert calls == ["file", "rename", "folder"]
    calls.clear()
    monkeypatch.setattr(files_module, "_EARLY", 1)
    advised: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments[0]), raising=False)
    save(OLD, tmp_path / "m")
    assert calls == ["file", "rename", "folder"] and advised


@pytest.mark.parametrize("suffix", ["safetensors", "phlox", "json", "npz", "msgpack"])
def test_what_need_not_be_durable_is_whole_and_not_synced(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise AssertionError("the disk was asked for something")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "posix_fadvise", fail, raising=False)
    monkeypatch.setattr(files_module, "_EARLY", 1)
    path = save(OLD, tmp_path / f"m.{suffix}", durable=False)
    assert load(path)["n"] == 1 and [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(AssertionError, match="the disk"):
        save(OLD, path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1000, 390_000])
def test_a_full_disk_leaves_the_old_file(room: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(OLD, tmp_path / "m")
    write, pwrite = files_module.EagerFile.write, os.pwrite
    there = 0

    def full(data: Any, write: Callable[[], int]) -> int:
        nonlocal there
        if there + len(data) > room:
            raise OSError(code, os.strerror(code))
        there += (count := write())
        return count

    monkeypatch.setattr(files_module.EagerFile, "write", lambda file, data: full(data, lambda: write(file, data)))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: full(data, lambda: pwrite(file, data, at)))
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: os.pwrite(file, b"".join(parts), at))
    with pytest.raises(RecordError) as caught:
        save(NEW, tmp_path / "m")
    assert str(caught.value) == f"cannot save {path}: {os.strerror(code)}"
    assert load(path)["n"] == 1 and [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("at_once", [1, 70_000, 200_001])
def test_a_system_that_writes_less_than_it_is_given_gets_the_rest(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    write, pwrite = files_module.EagerFile.write, os.pwrite

    def some(data: Any) -> Any:
        calls.append(len(data))
        return memoryview(data)[: at_once if len(calls) < 100 else None]

    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, some(data), at))
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: os.pwrite(file, b"".join(parts), at))
    monkeypatch.setattr(files_module.EagerFile, "write", lambda file, data: write(file, some(data)))
    expected = {f"w{i}": np.random.default_rng(i).normal(size=(3, 10_000 + i)) for i in range(9)} | {"e": np.ones(0)}
    for suffix in ("phlox", "npz"):  # by places, and one after the other
        calls.clear()
        path = save(Record(expected), tmp_path / f"m.{suffix}", DOUBLE)
        assert len(calls) > 9 and max(calls) > at_once
        for name, entry in load(path).tensors.items():
            np.testing.assert_array_equal(entry.tensor.read(), expected[name])


@pytest.mark.parametrize("suffix", sorted(each.suffix for each in RECORDERS))
def test_no_call_goes_beyond_where_the_system_divides_its_memory(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[tuple[int, int]] = []
    write, pwrite = files_module.EagerFile.write, os.pwrite

    def follow(file: Any, data: Any) -> int:
        at = file.tell()
        parts.append((at, write(file, data)))
        return parts[-1][1]

    def place(file: int, data: Any, at: int) -> int:
        parts.append((at, pwrite(file, data, at)))
        return parts[-1][1]

    monkeypatch.setattr(files_module.EagerFile, "write", follow)
    monkeypatch.setattr(os, "pwrite", place)
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: place(file, b"".join(parts), at))
    path = save(Record({"w": np.ones(files_module.CALL, np.float32)}), tmp_path / f"m{suffix}")
    assert max(count for _, count in parts) <= files_module.CALL
    assert all(at // files_module.CALL == (at + count - 1) // files_module.CALL for at, count in parts)
    assert sum(count for _, count in parts) >= path.stat().st_size > 4 * files_module.CALL


def refuse_room(monkeypatch: pytest.MonkeyPatch, code: int) -> list[int]:
    """The system sets nothing aside, and says `code`; gives how much it is asked for."""
    asked: list[int] = []

    def ioctl(_file: Any, request: int, argument: bytes) -> None:
        assert request == files_module._RESERVE
        asked.append(struct.unpack("hhqqiI16x", argument)[3])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files_module.fcntl, "ioctl", ioctl)
    return asked


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to set room aside")


@only_linux
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_too_full_says_so_before_anything_is_written(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(OLD, tmp_path / "m")
    asked = refuse_room(monkeypatch, code)
    written: list[Any] = []
    monkeypatch.setattr(files_module.EagerFile, "write", lambda _, data: written.append(data))
    with pytest.raises(RecordError) as caught:
        save(NEW, tmp_path / "m")
    assert str(caught.value) == f"cannot save {path}: {os.strerror(code)}"
    assert asked == [NEW.with_precision(FULL).nbytes] and not written
    assert load(path)["n"] == 1 and [p.name for p in tmp_path.iterdir()] == [path.name]


@only_linux
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM])
@pytest.mark.parametrize("durable", [True, False])
def test_what_cannot_be_set_aside_is_written_all_the_same(
    durable: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = save(NEW, tmp_path / "m", durable=durable).read_bytes()
    asked = refuse_room(monkeypatch, code)
    assert save(NEW, tmp_path / "m", durable=durable).read_bytes() == expected
    assert asked == [NEW.with_precision(FULL).nbytes]


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_set_aside_and_is_not_needed_is_given_back(durable: bool, tmp_path: Path) -> None:
    with atomic_write(tmp_path / "m", 1_000_000, durable=durable) as file:
        file.write(b"less")
    status = (tmp_path / "m").stat()
    assert (tmp_path / "m").read_bytes() == b"less" and 512 * status.st_blocks < 100_000


class NameRecorder(Recorder):
    """Of a user: it writes the names alone."""

    format, suffix = "names", ".names"

    def write(self, record: Record, sink: Sink) -> None:
        sink.write(" ".join(record).encode())

    def read(self, source: Source) -> Record:
        return Record(dict.fromkeys(bytes(source.data).decode().split()))


@only_linux
def test_room_is_set_aside_where_the_file_cannot_be_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refuse_room(monkeypatch, errno.ENOTTY)
    for own in RECORDERS:
        path = own().save(NEW, tmp_path / own.format)
        expected = [] if own is JsonRecorder else [NEW.with_precision(FULL).nbytes]
        assert asked == expected and path.stat().st_size >= sum(asked)
        asked.clear()
    NameRecorder().save(NEW, tmp_path / "m")
    assert not asked


@only_linux
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_file_takes_no_more_room_than_it_needs(
    compression: Compression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = Record({"w": np.zeros(1 << 20, np.float32)})
    path = save(zeros, tmp_path / "m", compression=compression)
    expected = path.read_bytes()
    assert len(expected) < 10_000 and 512 * path.stat().st_blocks < 100_000
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTTY):  # all of it is not there, and is not needed
        asked = refuse_room(monkeypatch, code)
        assert save(zeros, tmp_path / "m", compression=compression).read_bytes() == expected
        assert asked == [zeros.nbytes]


LIMITED = """
import resource, signal
save(record(1), path)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    save(record(2), path)
except Exception as error:
    assert type(error).__name__ == "RecordError" and "cannot save" in str(error), error
else:
    raise SystemExit("it was saved")
assert number() == 1 and os.listdir(path.parent) == [path.name]
"""


def test_the_system_refuses_more_bytes(tmp_path: Path) -> None:
    run(LIMITED, tmp_path / "m.safetensors")


def test_a_sync_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(OLD, tmp_path / "m")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RecordError, match=r"cannot save .*m\.safetensors: Input/output error"):
        save(NEW, path)
    assert load(path)["n"] == 1


def test_a_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(OLD, tmp_path / "m")
    tmp_path.chmod(0o500)
    try:
        if os.geteuid() == 0:  # whom no permission stops

            def refuse(*args: Any) -> None:
                raise PermissionError(errno.EACCES, "Permission denied")

            monkeypatch.setattr(files_module, "EagerFile", refuse)
        with pytest.raises(RecordError) as caught:
            save(NEW, path)
    finally:
        tmp_path.chmod(0o700)
    assert str(caught.value) == f"cannot save {path}: the folder {tmp_path} cannot be written to: Permission denied"
    assert load(path)["n"] == 1


def test_leftovers_are_removed_only_when_their_writer_is_dead(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "m") as file:
        file.write(b"living")
        (living,) = tmp_path.iterdir()
        dead, later = (living.with_name(f"{living.name[:-20]}{number:016x}.tmp") for number in (1, 3))
        for leftover in (dead, later):
            leftover.write_bytes(b"dead")
        other = tmp_path / ".phlox-of-another-file.tmp"
        other.write_bytes(b"another's")
        with atomic_write(tmp_path / "m") as second:
            assert living.exists() and not later.exists() and dead.read_bytes() == b""  # the second writer's by now
            second.write(b"second")
        assert living.exists() and (tmp_path / "m").read_bytes() == b"second"
    assert (tmp_path / "m").read_bytes() == b"living"
    assert sorted(p.name for p in tmp_path.iterdir()) == [other.name, "m"]


def test_more_writers_of_one_path_than_have_names(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(7):
            stack.enter_context(atomic_write(tmp_path / "m")).write(b"%d" % number)
        assert len(list(tmp_path.iterdir())) == 7
    assert (tmp_path / "m").read_bytes() == b"0" and [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_leftover_whose_name_is_another_writers_by_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if files_module.fcntl is None:
        pytest.skip("there are no locks")
    with atomic_write(tmp_path / "m"):
        (leftover,) = tmp_path.iterdir()
    leftover.write_bytes(b"dead")

    def lock(*_: Any) -> None:
        """Between opening and locking it, another writer removes the leftover and takes its name."""
        leftover.unlink()
        leftover.write_bytes(b"living")

    monkeypatch.setattr(files_module.fcntl, "flock", lock)
    files_module.remove_leftovers(tmp_path)
    assert leftover.read_bytes() == b"living"


def test_a_write_does_not_list_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        save(NEW, tmp_path / f"{number}")

    def scandir(*_: Any) -> None:
        raise AssertionError("the more files a folder has, the longer this takes")

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "listdir", scandir)
    assert load(save(NEW, tmp_path / "m"))["n"] == 2


def test_names_as_long_as_the_system_allows(tmp_path: Path) -> None:
    name = "n" * (255 - len(".safetensors")) + ".safetensors"
    assert load(save(OLD, tmp_path / name))["n"] == 1


def test_what_is_written_early_is_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_EARLY", 1000)
    array = np.random.default_rng(0).normal(size=100_000)
    record = Record({"a": array, "b": array[:10], "n": 3})
    recorder = SafetensorsRecorder()
    assert recorder.save(record, tmp_path / "m").read_bytes() == recorder.to_bytes(record)
    np.testing.assert_array_equal(load(tmp_path / "m")["a"].tensor.read(), array.astype(np.float32))


def test_a_mapped_file_that_is_replaced_keeps_its_content(tmp_path: Path) -> None:
    path = save(OLD, tmp_path / "m")
    old = load(path)
    for _ in range(3):
        save(NEW, path)
    assert (old["w"].tensor.read() == 1).all() and load(path)["n"] == 2
    path.unlink()
    assert (old["w"].tensor.read() == 1).all()


def test_a_tensor_that_fails_midway_leaves_the_old_file(tmp_path: Path) -> None:
    path = save(OLD, tmp_path / "m")

    def fail() -> np.ndarray:
        raise MemoryError

    broken = LazyTensor.from_function((3,), np.float32, fail)
    with pytest.raises(MemoryError):
        save(Record({"n": 2, "a": np.ones(10), "z": broken}), path)
    assert load(path)["n"] == 1 and [p.name for p in tmp_path.iterdir()] == [path.name]
