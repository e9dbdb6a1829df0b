"""Serves: phlox/train/observers/folder/run_folder.py, phlox/train/observers/folder/lock.py"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import phlox as px
from phlox.backend import as_device
from phlox.errors import RunError, RunWarning
from phlox.train import RunFolder
from phlox.train.observers.folder.run_folder import claim


def make(path: Path, text: bytes = b"one", *, overwrite: bool = False) -> None:
    with RunFolder(path, overwrite=overwrite) as folder:
        folder.write("notes.txt", text)
        assert folder.complete() == path


def older_kind(path: Path, text: bytes = b"old") -> None:
    """A run as the versions before this one have left it."""
    path.mkdir()
    (path / "notes.txt").write_bytes(text)
    (path / "run.json").write_text('{"phlox": "0.1.0", "files": ["notes.txt"]}')


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def manifest(path: Path) -> dict[str, Any]:
    return json.loads((path / "run.json").read_text())


# --- its life


def test_it_is_used_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with RunFolder(path, kind="digits") as folder:
        begun = manifest(path)
        assert begun["status"] == folder.status == "running" and begun["kind"] == "digits"
        (session,) = begun["sessions"]
        assert session["phlox"] == px.__version__ and session["process"] == os.getpid()
        assert session["status"] == "running" and session["ended"] is None
        assert abs(datetime.fromisoformat(session["started"]).timestamp() - datetime.now().timestamp()) < 600
        folder.write("notes.txt", b"half")
        assert (path / "notes.txt").read_bytes() == b"half"
        folder.write("notes.txt", b"whole")
        folder.complete()
    assert names(path) == ["notes.txt", "run.json"] and names(path.parent) == ["run"]
    assert (path / "notes.txt").read_bytes() == b"whole"
    ended = manifest(path)
    assert ended["files"] == ["notes.txt"] and ended["status"] == ended["sessions"][0]["status"] == "finished"
    assert ended["sessions"][0]["ended"] >= ended["sessions"][0]["started"]


@pytest.mark.parametrize(("error", "status", "reason"), [
    (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"), (ValueError("too hot"), "failed", "ValueError: too hot"),
    (SystemExit(), "interrupted", "SystemExit"),
])  # fmt: skip
def test_an_end_that_is_none(tmp_path: Path, error: BaseException, status: str, reason: str) -> None:
    path = tmp_path / "run"
    try:
        with RunFolder(path) as folder:
            folder.write("notes.txt", b"x")
            raise error
    except (KeyboardInterrupt, ValueError, SystemExit):
        pass
    held = manifest(path)
    assert held["status"] == status
    assert held["sessions"][0]["status"] == status and held["sessions"][0]["reason"] == reason
    says = "was interrupted" if status == "interrupted" else "has failed"
    with pytest.raises(RunError, match=rf"a run that {says}; .*resume=True.*overwrite=True"):
        RunFolder(path)


def test_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        folder.write("notes.txt", b"x")
        folder.close("interrupted")
    (path / "mine.txt").write_text("of the user")
    (path / ".phlox-0123abcd.tmp").write_bytes(b"half")
    with RunFolder(path, resume=True) as folder:
        assert folder.is_resumed and folder.files == ["notes.txt"]
        folder.write("more.txt", b"y")
        folder.complete()
    held = manifest(path)
    assert [one["status"] for one in held["sessions"]] == ["interrupted", "finished"]
    assert held["status"] == "finished" and held["files"] == ["notes.txt", "more.txt"]
    assert names(path) == ["mine.txt", "more.txt", "notes.txt", "run.json"]
    with RunFolder(path, resume="auto") as folder:  # a finished run may go on too
        assert folder.is_resumed


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    code = f"""
import os
from phlox.train.observers.folder.run_folder import RunFolder
folder = RunFolder({str(tmp_path / "run")!r})
folder.write("notes.txt", b"x")
os._exit(9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 9
    assert manifest(tmp_path / "run")["status"] == "running"
    with pytest.raises(RunError, match="a run that was killed"):
        RunFolder(tmp_path / "run")
    with RunFolder(tmp_path / "run", resume=True) as folder:
        assert [one["status"] for one in manifest(folder.path)["sessions"]] == ["killed", "running"]


def test_a_run_that_has_nothing_to_show_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for name in (None, "", "step-00000003.safetensors", "mine.txt"):
        folder = RunFolder(path)
        folder.describe(Recipe())
        if name is not None:
            listing = folder.file("checkpoints/") / "checkpoints.json"
            listing.write_text(json.dumps({"phlox": "1", "files": ["step-00000003.safetensors"]}))
        if name:
            (path / "checkpoints" / name).write_text("x")
        folder.close("failed", "the name of a metric is wrong")
        if name:
            with pytest.raises(RunError, match="a run that has failed"):
                RunFolder(path)
            (path / "checkpoints" / name).unlink()
    RunFolder(path).complete()
    with pytest.raises(RunError, match="has finished"):
        RunFolder(path)


def test_auto_begins_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with RunFolder(tmp_path / name, resume="auto") as folder:
            assert not folder.is_resumed
        assert names(tmp_path / name) == ["run.json"]


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with pytest.raises(RunError, match=r"runn: there is no such folder, .*; did you mean .*run\?"):
        RunFolder(tmp_path / "runn", resume=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="is empty"):
        RunFolder(tmp_path / "empty", resume=True)
    assert names(tmp_path) == ["empty", "run"]
    older_kind(tmp_path / "old")
    with pytest.raises(RunError, match=r"written by Phlox 0\.1\.0, whose runs cannot be resumed"):
        RunFolder(tmp_path / "old", resume=True)
    with pytest.raises(RunError, match="is a run of the kind 'training', and cannot be resumed as 'tuning'"):
        RunFolder(tmp_path / "run", resume=True, kind="tuning")
    text = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(RunError, match=r"its run\.json has version 2.*install a newer one"):
        RunFolder(tmp_path / "run", resume=True)
    (tmp_path / "run" / "run.json").write_text(text[:20])
    for resume in (True, "auto"):
        with pytest.raises(RunError, match=r"no run\.json, or a damaged one"):
            RunFolder(tmp_path / "run", resume=resume)
    with pytest.raises(RunError, match="either resumed or overwritten"):
        RunFolder(tmp_path / "run", resume=True, overwrite=True)
    with pytest.raises(RunError, match='expected False, True or "auto"'):
        RunFolder(tmp_path / "run", resume="yes")  # pyright: ignore[reportArgumentType]


# --- other runs, and files of others


def test_an_existing_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    before = (path / "run.json").read_bytes()
    with pytest.raises(RunError, match=r"run: exists already, a run that has finished; .* --overwrite"):
        RunFolder(path)
    assert names(tmp_path) == ["run"] and (path / "notes.txt").read_bytes() == b"one"
    assert (path / "run.json").read_bytes() == before


@pytest.mark.parametrize("old", [make, older_kind])
def test_overwriting_keeps_the_old_run_until_the_new_one_is_complete(tmp_path: Path, old: Any) -> None:
    path = tmp_path / "run"
    old(path)
    text = (path / "notes.txt").read_bytes()
    for number in range(2):  # the first is interrupted
        with RunFolder(path, overwrite=True) as folder:
            folder.write("other.txt", b"two")
            assert names(tmp_path / "run.replaced") == ["notes.txt", "run.json"]
            assert (tmp_path / "run.replaced" / "notes.txt").read_bytes() == text
            if number == 0:
                folder.close()
    assert names(path) == ["other.txt", "run.json"] and names(tmp_path) == ["run"]


def test_a_run_that_overwrites_may_be_resumed(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with RunFolder(tmp_path / "run", overwrite=True) as folder:
        folder.write("other.txt", b"two")
        folder.close()
    with RunFolder(tmp_path / "run", resume=True) as folder:
        assert folder.files == ["other.txt"] and names(tmp_path) == ["run", "run.replaced"]
        folder.complete()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("resume", [False, "auto"])
def test_a_folder_of_somebody_else_is_never_touched(tmp_path: Path, overwrite: bool, resume: Any) -> None:
    path = tmp_path / "thesis"
    path.mkdir()
    (path / "chapter.txt").write_text("years of work")
    with pytest.raises(RunError, match="thesis"):
        RunFolder(path, overwrite=overwrite, resume=resume)
    assert names(path) == ["chapter.txt"] and names(tmp_path) == ["thesis"]
    assert (path / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize("text", ["[]", "{}", "not json", '{"phlox": 1}', '{"phlox": 1, "files": 3}', '"phlox"'])
def test_a_manifest_that_is_none_protects(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json").write_text(text)
    with pytest.raises(RunError, match="not overwritten"):
        RunFolder(path, overwrite=True)
    assert (path / "run.json").read_text() == text


def test_foreign_files_protect(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        (folder.file("checkpoints/") / "step-1").write_text("x")
        (path / "checkpoints" / "checkpoints.json").write_text('{"phlox": "1", "files": ["step-1"]}')
        (folder.file("events/*") / "deep").mkdir()
        (path / "events" / "deep" / "log").write_text("x")
        folder.complete()
    for foreign in ("mine.txt", "checkpoints/step-2", "folder/mine.txt", "checkpoints/deep/mine.txt"):
        (path / foreign).parent.mkdir(exist_ok=True)
        (path / foreign).write_text("keep me")
        before = {entry: entry.is_dir() or entry.read_bytes() for entry in path.rglob("*")}
        with pytest.raises(RunError, match="which no run has written"):
            RunFolder(path, overwrite=True)
        assert {entry: entry.is_dir() or entry.read_bytes() for entry in path.rglob("*")} == before
        (path / foreign).unlink()
        if "/" in foreign and not foreign.startswith("checkpoints/step"):
            (path / foreign).parent.rmdir()
    listing = (path / "checkpoints" / "checkpoints.json").read_text()
    (path / "checkpoints" / "checkpoints.json").unlink()
    with pytest.raises(RunError, match="'checkpoints/step-1', which no run has written"):
        RunFolder(path, overwrite=True)
    (path / "checkpoints" / "checkpoints.json").write_text(listing)
    with RunFolder(path, overwrite=True) as folder:
        folder.complete()
    assert names(path) == ["run.json"] and names(tmp_path) == ["run"]


def test_a_foreign_file_that_comes_during_the_training_protects_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make(path)
    with RunFolder(path, overwrite=True) as folder:
        (tmp_path / "run.replaced" / "mine.txt").write_text("keep me")
        with pytest.warns(RunWarning, match=r"the replaced run could not be deleted: .*mine\.txt"):
            folder.complete()
    assert names(tmp_path / "run.replaced") == ["mine.txt", "notes.txt", "run.json"]
    assert manifest(path)["status"] == "finished"


def test_a_file_and_a_link_are_no_runs(tmp_path: Path) -> None:
    make(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    for name in ("link", "file", "dangling"):
        with pytest.raises(RunError, match="is not the folder of a run"):
            RunFolder(tmp_path / name, overwrite=True)
    assert names(tmp_path / "real") == ["notes.txt", "run.json"] and (tmp_path / "file").read_text() == "x"


# --- two processes, and those that were killed


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"resume": "auto"}, {"overwrite": True}])
def test_two_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.write("notes.txt", b"mine")
        with pytest.raises(RunError, match="another run is writing there"):
            RunFolder(tmp_path / "run", **options)
        assert (folder.path / "notes.txt").read_bytes() == b"mine" and names(tmp_path) == ["run"]
    RunFolder(tmp_path / "run", resume=True).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are copies of their parent")
def test_a_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from phlox.train.observers.folder.run_folder import RunFolder
folder = RunFolder({str(tmp_path / "run")!r})
reads, writes = os.pipe()
if os.fork() == 0:
    os.close(1)
    os.write(writes, b"x")
    time.sleep(60)
os.read(reads, 1)  # the child runs, and has closed what it must not hold
os._exit(9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.wait(60) == 9
            RunFolder(tmp_path / "run", resume=True).close()
        finally:
            os.killpg(process.pid, 9)


def test_killed_between_the_two_renamings(tmp_path: Path) -> None:
    make(tmp_path / "run", b"old")
    (tmp_path / "run").rename(tmp_path / "run.replaced")
    for is_empty in (False, True):
        if is_empty:
            (tmp_path / "run").rename(tmp_path / "run.replaced")
            (tmp_path / "run").mkdir()
        with pytest.raises(RunError, match="exists already"):
            RunFolder(tmp_path / "run")
        assert (tmp_path / "run" / "notes.txt").read_bytes() == b"old" and names(tmp_path) == ["run"]
    (tmp_path / "run").rename(tmp_path / "run.replaced")
    (tmp_path / "run").mkdir()
    make(tmp_path / "run", b"new", overwrite=True)
    assert names(tmp_path) == ["run"] and (tmp_path / "run" / "notes.txt").read_bytes() == b"new"


def test_killed_while_the_old_run_was_deleted(tmp_path: Path) -> None:
    make(tmp_path / "run", b"new")
    make(tmp_path / "run.replaced", b"old")
    (tmp_path / "run.replaced" / "notes.txt").unlink()
    with pytest.raises(RunError, match="exists already"):
        RunFolder(tmp_path / "run")
    assert names(tmp_path) == ["run"] and (tmp_path / "run" / "notes.txt").read_bytes() == b"new"
    make(tmp_path / "run", b"newest", overwrite=True)
    assert names(tmp_path) == ["run"] and (tmp_path / "run" / "notes.txt").read_bytes() == b"newest"


# --- names and places


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_no_name(name: str) -> None:
    with pytest.raises(RunError, match="cannot be the name of a folder"):
        RunFolder(name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", "run.json", "/", "../", "a/b/"])
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


def test_claimed_files_are_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunFolder("run") as folder:
        assert claim(tmp_path / "run", "metrics.csv").resolve() == tmp_path / "run" / "metrics.csv"
        claim(Path("run"), "events/*")
        assert folder.files == ["metrics.csv", "events/*"] == manifest(folder.path)["files"]
    assert claim(tmp_path / "run", "later.csv") == tmp_path / "run" / "later.csv"
    assert claim(tmp_path / "other", "x/*") == tmp_path / "other" / "x" and (tmp_path / "other" / "x").is_dir()
    assert manifest(tmp_path / "run")["files"] == ["metrics.csv", "events/*"]


def test_an_open_folder_is_not_held_by_what_lists_it(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run")
    gc.collect()
    assert claim(tmp_path / "run", "x.csv") == tmp_path / "run" / "x.csv"
    assert manifest(tmp_path / "run")["files"] == []


# --- what the run was


class Recipe(px.Config):
    epochs: int = 3


def test_it_describes_itself_and_keeps_what_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for epochs in (3, 3, 5, 7):
        with RunFolder(path, resume="auto") as folder:
            folder.describe(Recipe(epochs=epochs), as_device("numpy"), {"weights": 7, "data": (0, 1)})
    assert Recipe.load(path / "config.json").epochs == 7
    assert [Recipe.load(path / f"config-{number}.json").epochs for number in (1, 2)] == [3, 5]
    held = json.loads((path / "environment.json").read_text())
    assert held["device"] == "numpy:cpu" and held["seeds"] == {"weights": 7, "data": [0, 1]}
    assert set(manifest(path)["files"]) == {entry.name for entry in path.iterdir()} - {"run.json"}
