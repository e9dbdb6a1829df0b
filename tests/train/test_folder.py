from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phlox.errors import RunError
from phlox.train import RunFolder


def make(path: Path, text: bytes = b"one", *, overwrite: bool = False) -> None:
    with RunFolder(path, overwrite=overwrite) as folder:
        folder.write("notes.txt", text)
        assert folder.complete() == path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_it_takes_its_name_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with RunFolder(path) as folder:
        folder.write("notes.txt", b"half")
        folder.write("notes.txt", b"whole")
        assert not path.exists() and folder.partial == tmp_path / "deep" / "run.partial"
        folder.complete()
    assert names(path) == ["notes.txt", "run.json"] and names(path.parent) == ["run"]
    assert (path / "notes.txt").read_bytes() == b"whole"
    assert json.loads((path / "run.json").read_text())["files"] == ["notes.txt"]


def test_an_existing_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    with pytest.raises(RunError, match=r"run: exists already; .* --overwrite"):
        RunFolder(path)
    assert names(tmp_path) == ["run"] and (path / "notes.txt").read_bytes() == b"one"


def test_overwriting_keeps_the_old_run_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    with RunFolder(path, overwrite=True) as folder:
        folder.write("other.txt", b"two")
        assert names(path) == ["notes.txt", "run.json"]
        folder.complete()
    assert names(path) == ["other.txt", "run.json"] and names(tmp_path) == ["run"]


def test_what_an_interrupted_run_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        folder.write("old.txt", b"x")
        (folder.partial / ".phlox-0123abcd.tmp").write_bytes(b"half")
    assert names(tmp_path) == ["run.partial"]
    make(path)
    assert names(tmp_path) == ["run"] and names(path) == ["notes.txt", "run.json"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_else_is_never_deleted(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "thesis"
    path.mkdir()
    (path / "chapter.txt").write_text("years of work")
    with pytest.raises(RunError, match="thesis"):
        RunFolder(path, overwrite=overwrite)
    assert (path / "chapter.txt").read_text() == "years of work" and names(tmp_path) == ["thesis"]


@pytest.mark.parametrize("manifest", ["[]", "{}", "not json", '{"phlox": 1}', '{"phlox": 1, "files": 3}', '"phlox"'])
def test_a_manifest_that_is_none_protects(tmp_path: Path, manifest: str) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json").write_text(manifest)
    with pytest.raises(RunError, match="not overwritten"):
        RunFolder(path, overwrite=True)
    assert (path / "run.json").read_text() == manifest


@pytest.mark.parametrize("folder", ["run", "run.partial"])
def test_a_foreign_file_in_a_run_protects_it(tmp_path: Path, folder: str) -> None:
    make(tmp_path / folder)
    (tmp_path / folder / "mine.txt").write_text("keep me")
    with pytest.raises(RunError, match=r"contains 'mine\.txt'"):
        RunFolder(tmp_path / "run", overwrite=True)
    assert names(tmp_path / folder) == ["mine.txt", "notes.txt", "run.json"]


def test_a_foreign_file_that_comes_during_the_training_protects_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    with RunFolder(path, overwrite=True) as folder:
        (path / "mine.txt").write_text("keep me")
        with pytest.raises(RunError, match=r"mine\.txt"):
            folder.complete()
    assert names(tmp_path) == ["run", "run.partial"]


def test_a_file_and_a_link_are_no_runs(tmp_path: Path) -> None:
    make(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("x")
    for name in ("link", "file"):
        with pytest.raises(RunError, match="is not the folder of a run"):
            RunFolder(tmp_path / name, overwrite=True)
    assert names(tmp_path / "real") == ["notes.txt", "run.json"] and (tmp_path / "file").read_text() == "x"


def test_two_at_once(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write("notes.txt", b"mine")
        with pytest.raises(RunError, match="another run is writing there"):
            RunFolder(tmp_path / "run")
        assert (folder.partial / "notes.txt").read_bytes() == b"mine"
    make(tmp_path / "run")


def test_killed_between_the_two_renamings(tmp_path: Path) -> None:
    make(tmp_path / "run", b"old")
    (tmp_path / "run").rename(tmp_path / "run.replaced")
    make(tmp_path / "run.partial", b"new")
    with pytest.raises(RunError, match="exists already"):
        RunFolder(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_bytes() == b"old"


def test_killed_while_the_old_run_was_deleted(tmp_path: Path) -> None:
    make(tmp_path / "run", b"new")
    make(tmp_path / "run.replaced", b"old")
    (tmp_path / "run.replaced" / "notes.txt").unlink()
    make(tmp_path / "run", b"newest", overwrite=True)
    assert names(tmp_path) == ["run"] and (tmp_path / "run" / "notes.txt").read_bytes() == b"newest"


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_no_name(name: str) -> None:
    with pytest.raises(RunError, match="cannot be the name of a folder"):
        RunFolder(name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", "run.json"])
def test_files_stay_inside(tmp_path: Path, name: str) -> None:
    with RunFolder(tmp_path / "run") as folder, pytest.raises(RunError, match="plain name"):
        folder.write(name, b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_parent_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot be created"):
        RunFolder(tmp_path / "run")


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be created"):
        RunFolder(tmp_path / "file" / "run")
