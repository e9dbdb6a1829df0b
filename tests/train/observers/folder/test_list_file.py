"""A list in a file, and the changes beside it: they belong to that list only, and damage loses what is behind it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phlox.train.observers.folder.list_file import ListFile, added_file, names_added, read_list_file

CONTENT = {"files": ["a"], "value": float("inf")}


@pytest.fixture
def file(tmp_path: Path) -> ListFile:
    """A list of many entries, and three changes."""
    file = ListFile(tmp_path / "list.json")
    file.write(CONTENT, 100)
    assert all(file.append({"file": name, "value": float("nan")}) for name in "bcd")
    return file


def names(file: ListFile) -> list[str]:
    content, changes = read_list_file(file.path)
    assert content == CONTENT and {change["file"] for change in changes} == names_added(file.path)
    return [change["file"] for change in changes]


def test_changes_are_beside_the_list_until_it_is_written(file: ListFile) -> None:
    assert names(file) == ["b", "c", "d"] and file.is_behind
    file.write(CONTENT, 100)
    assert names(file) == [] and not file.is_behind
    assert [path.name for path in file.path.parent.iterdir()] == ["list.json"]


def test_a_short_list_has_no_changes_beside_it_and_a_long_one_as_many_as_entries(tmp_path: Path) -> None:
    file = ListFile(tmp_path / "list.json")
    assert not file.append({"file": "b"})  # it is unknown what is there
    file.write(CONTENT, 64)
    assert not file.append({"file": "b"}) and [*tmp_path.iterdir()] == [file.path]
    file.write(CONTENT, 65)
    assert [file.append({"file": str(number)}) for number in range(66)] == [True] * 65 + [False]
    assert len(names(file)) == 65


def test_changes_of_another_list_are_none(file: ListFile) -> None:
    """Of a process that was killed after it wrote the list, and before it deleted the changes."""
    old = added_file(file.path).read_bytes()
    file.write({**CONTENT, "new": True}, 100)
    added_file(file.path).write_bytes(old)
    assert read_list_file(file.path) == ({**CONTENT, "new": True}, [])


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        (b'{"file": "e"', 3), (b'{"file": "e"}', 3), (b'{"file": "e"}\n', 4), (b'"e"\n{"file": "f"}\n', 3),
        (b'{"file": \xff}\n', 3), (b"[" * 100_000 + b"\n", 3),
    ],
)  # fmt: skip
def test_what_is_before_the_damage_is_read(file: ListFile, tail: bytes, left: int) -> None:
    path = added_file(file.path)
    path.write_bytes(path.read_bytes() + tail)
    assert len(names(file)) == left


def test_without_its_first_line_or_a_list_there_are_none(file: ListFile) -> None:
    added_file(file.path).write_bytes(b"")
    assert names(file) == []
    file.path.write_bytes(b"damaged")
    assert names_added(file.path) == set()
    with pytest.raises(ValueError, match="Expecting value"):
        read_list_file(file.path)


def test_another_file_under_its_name_is_not_changed(file: ListFile, tmp_path: Path) -> None:
    path, other = added_file(file.path), tmp_path / "other"
    os.link(path, other)  # a second name
    before = other.read_bytes()
    assert not file.append({"file": "e"}) and other.read_bytes() == before
    for make in (lambda: path.symlink_to(other), lambda: None):  # a link, or nothing
        file.write(CONTENT, 100)
        assert file.append({"file": "b"})
        path.unlink()
        make()
        assert not file.append({"file": "c"}) and other.read_bytes() == before
        assert not file.append({"file": "c"})  # until the list is written


def test_a_disk_that_is_full_leaves_the_list(file: ListFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert not file.append({"file": "e"})
    file.write(CONTENT, 100)
    assert json.loads(file.path.read_bytes())["files"] == ["a"] and file.append({"file": "e"})
    assert names(file) == ["e"]
