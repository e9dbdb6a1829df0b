"""A folder on disk for what is costly to compute again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phlox.host import cache_folder
from phlox.host.cache_folder import OFF, VARIABLE, CacheFolder, is_private, private_folder, processor, root

FILES = {"code.py": b"x = 1\n", "lib.so": bytes(range(256)) * 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "kind"


def test_an_entry(folder: Path) -> None:
    entries = CacheFolder("kind", 1 << 20)
    assert entries.load("a") is None
    entries.store("a", FILES)
    found = entries.load("a")
    assert found == folder / "a"
    assert {name: (folder / "a" / name).read_bytes() for name in FILES} == FILES
    assert entries.load("b") is None
    entries.store("a", {"code.py": b"another"})  # the first one stays
    assert (folder / "a" / "code.py").read_bytes() == FILES["code.py"]
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_only_the_user_may_write(folder: Path) -> None:
    old = os.umask(0o002)
    try:
        CacheFolder("kind", 1 << 20).store("a", FILES)
    finally:
        os.umask(old)
    for path in (folder.parent, folder, folder / "a"):
        assert path.stat().st_mode & 0o777 == 0o700, path
    for path in (folder / "a").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "lib.so").write_bytes(FILES["lib.so"][:-1]),
        lambda entry: (entry / "lib.so").write_bytes(b"\1" + FILES["lib.so"][1:]),
        lambda entry: (entry / "code.py").unlink(),
        lambda entry: (entry / "digests").write_bytes(b"\xff"),
        lambda entry: (entry / "digests").unlink(),
        lambda entry: (entry / "more.so").write_bytes(b""),
    ],
    ids=["shorter", "one byte", "a file less", "digests", "no digests", "a file more"],
)
def test_a_damaged_entry_is_made_again(damage: object, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = CacheFolder("kind", 1 << 20)
    entries.store("a", FILES)
    damage(folder / "a")  # type: ignore[operator]
    with caplog.at_level(logging.WARNING, "phlox.compile"):
        assert entries.load("a") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"the cache entry {folder / 'a'} is damaged, and is made again"
    ]
    entries.store("a", FILES)
    assert entries.load("a") is not None


@pytest.mark.parametrize("name", ["..", ".", "a", "a/lib.so", "a/digests"])
def test_what_others_may_write_is_refused(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = CacheFolder("kind", 1 << 20)
    entries.store("a", FILES)
    path = folder / name
    path.chmod(path.stat().st_mode | 0o020)
    with caplog.at_level(logging.WARNING, "phlox.compile"):
        assert entries.load("a") is None
    assert len(caplog.records) == 1
    assert "may write to it" in caplog.text
    assert (folder / "a" / "lib.so").exists()  # it is not ours to delete


@pytest.mark.parametrize("name", ["..", ".", "a", "a/lib.so"])
def test_what_others_own_is_refused(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = CacheFolder("kind", 1 << 20)
    entries.store("a", FILES)
    target = (folder / name).resolve()
    mine = is_private
    monkeypatch.setattr(cache_folder, "is_private", lambda path: Path(path) != target and mine(path))
    assert entries.load("a") is None
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not is_private(target)


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    entries = CacheFolder("kind", 1 << 20)
    entries.store("a", FILES)
    (tmp_path / "other").write_bytes(FILES["lib.so"])
    (folder / "a" / "lib.so").unlink()
    (folder / "a" / "lib.so").symlink_to(tmp_path / "other")
    assert entries.load("a") is None


def test_the_bytes_are_bounded(folder: Path) -> None:
    entries = CacheFolder("kind", 3500)
    now = time.time()
    for number, key in enumerate("abc"):
        entries.store(key, {"x": bytes(1000)})
        os.utime(folder / key / "digests", (now, now - 100 + number))
        os.utime(folder / key / "x", (now, now - 1000))
    assert entries.load("a") is not None  # now it is the youngest
    entries.store("d", {"x": bytes(1000)})
    assert sorted(path.name for path in folder.iterdir()) == ["a", "c", "d"]


def test_unfinished_entries_are_deleted_once_they_are_old(folder: Path) -> None:
    entries = CacheFolder("kind", 1 << 20)
    entries.store("a", FILES)
    for name, age in (("partial-new", 0), ("partial-old", 10_000)):
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(b"x")
        os.utime(folder / name / "x", (time.time(), time.time() - age))
    entries.store("b", FILES)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "partial-new"]


STORING = """
import sys
from phlox.host.cache_folder import CacheFolder
entries = CacheFolder("kind", 1 << 20)
for number in range(200):
    entries.store(f"{number % 10}", {"x": bytes(20_000)})
    entry = entries.load(f"{(number * 7) % 10}")
    if entry is not None:
        assert (entry / "x").read_bytes() == bytes(20_000)
"""


def test_processes_at_once(folder: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", STORING], stderr=subprocess.PIPE) for _ in range(3)]
    assert [child.communicate()[1] for child in children] == [b""] * 3
    assert sorted(path.name for path in folder.iterdir()) == [str(number) for number in range(10)]


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OFF)
    assert root() is None
    assert private_folder("kind") is None
    CacheFolder("kind", 1).store("a", FILES)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert root() == tmp_path / "phlox"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert root() == Path.home() / ".cache" / "phlox"
    monkeypatch.delattr(os, "geteuid")
    assert root() is None


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "cache"))
    CacheFolder("kind", 1).store("a", FILES)
    assert CacheFolder("kind", 1).load("a") is None


def test_the_processor() -> None:
    assert processor() == processor()
    assert len(processor()) == 16
