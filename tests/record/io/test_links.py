"""Links in the folders of checkpoints and runs: whatever is at a name, nothing outside changes, and the save succeeds.

Serves: phlox/record/io/links.py, phlox/distributed/checkpoints/storage.py, phlox/train/observers/
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.distributed import latest, load, save
from phlox.errors import RunError
from phlox.record import FULL, Record
from phlox.record.formats.parts import INDEX, OWNER
from phlox.record.io import links
from phlox.record.io.links import remove_files
from phlox.train import Callback, Checkpoints, RunFolder
from phlox.train.observers.checkpoints.files import Job
from phlox.train.observers.checkpoints.writers import ShardWriter
from tests.train.fake_learner import FakeLearner, at_once, steps, steps_in

RECORD = Record({"w": np.arange(3, dtype=np.float32)})
KINDS = ["folder", "file", "dangling", "loop", "hard"]


class Outside:
    """A checkpoint and files in another place, which must stay as they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        save(RECORD, path / "checkpoint")
        (path / "checkpoint" / ".phlox-0123456789abcdef-0123456789abcdef.tmp").write_bytes(b"under way")
        save(RECORD, path / "other", step=1)
        (path / "text").write_bytes(b"{}\n")
        self._before = self._files()

    def _files(self) -> dict[str, bytes | None]:
        """The bytes of all files, None for folders and links."""
        return {str(one): one.read_bytes() if one.is_file() else None for one in sorted(self.path.rglob("*"))}

    def link(self, kind: str, place: Path, target: str = "checkpoint") -> None:
        """Put a link to something outside at `place`, in place of what is there."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_file():
            place.unlink()
        elif place.is_dir():
            place.rename(place.with_name("moved"))
        if kind == "hard":
            os.link(self.path / "text", place)
        else:
            names = {"folder": target, "file": "text", "dangling": "nowhere"}
            place.symlink_to(place if kind == "loop" else self.path / names[kind])

    def check(self) -> None:
        assert self._files() == self._before


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "outside")


# --- records in shards


def own_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("step-") or entry.is_dir())


PART = "part-0123abcd-00000.safetensors"
PLACES = {
    "folders": [
        "step-00000001",  # an old step
        "step-00000005",  # the step to save
        ".phlox-step-00000005.unfinished",  # where it is written
        ".phlox-step-00000009.unfinished",  # what another has left
    ],
    "files": [
        f"step-00000005/{INDEX}",
        f"step-00000005/{PART}",
        f".phlox-step-00000005.unfinished/{INDEX}",
        f".phlox-step-00000009.unfinished/{PART}",
        OWNER,
        PART,
    ],
}


@pytest.mark.parametrize("protocol", ["", "file://"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_in_shards(kind: str, places: str, protocol: str, outside: Outside, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if protocol:
        pytest.importorskip("fsspec")
    if (kind, places) == ("hard", "folders"):
        pytest.skip("a file where a folder belongs is an error")
    save(RECORD, folder, step=3)
    for place in PLACES[places]:
        outside.link(kind, folder / place)
    for step in (5, 6):
        save(RECORD, f"{protocol}{folder}", step=step, keep=1)
        outside.check()
        written = folder / f"step-{step:08d}"
        assert not any(one.is_symlink() for one in (written, *written.iterdir()))
        assert latest(folder) == step and load(folder)["w"].tensor.read().tolist() == [0, 1, 2]
    assert not (folder / "step-00000005").exists() and not (folder / "step-00000003").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_step(kind: str, outside: Outside, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    for protocol in ("", "file://"):
        outside.link(kind, tmp_path / "run" / INDEX)
        save(RECORD, f"{protocol}{tmp_path}/run")
        outside.check()
        assert load(tmp_path / "run")["w"].tensor.read().tolist() == [0, 1, 2]


def test_the_folder_itself_may_be_a_link_and_steps_are_read_through_links(outside: Outside, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    outside.link("folder", tmp_path / "disk" / "step-00000001", "other/step-00000001")
    for folder in (f"{tmp_path}/run", f"file://{tmp_path}/run"):
        assert load(folder)["w"].tensor.read().tolist() == [0, 1, 2] and latest(folder) == 1
    save(RECORD, tmp_path / "run", step=2, keep=2)
    assert own_names(tmp_path / "disk") == ["step-00000001", "step-00000002"]
    save(RECORD, tmp_path / "run", step=3, keep=2)
    assert own_names(tmp_path / "disk") == ["step-00000002", "step-00000003"] and (tmp_path / "run").is_symlink()
    outside.check()


@pytest.mark.parametrize("kind", ["folder", "dangling", "loop"])
def test_the_best_of_several_processes(kind: str, outside: Outside, tmp_path: Path) -> None:
    errors: list[Exception | None] = []
    writer = ShardWriter(tmp_path, lambda job, error: errors.append(error), FULL, background=False)
    outside.link(kind, tmp_path / "best")
    writer.put("best", Job("best", RECORD, {}, 0.0, is_best=True))
    writer.wait()
    assert errors == [None] and not (tmp_path / "best").is_symlink() and len(load(tmp_path / "best")) == 1
    outside.check()


# --- a training


@pytest.mark.parametrize("kind", KINDS)
def test_a_training(kind: str, outside: Outside, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    places = [
        "step-00000003.safetensors",  # removed by `keep`
        "step-00000012.safetensors",  # written
        "best.safetensors",  # replaced
        "best-00000006.safetensors",  # removed by `keep_best`
        "best-00000012.safetensors",
        "history-1.jsonl",  # added to
        "checkpoints.json",
        ".phlox-0123456789abcdef-0123456789abcdef.tmp",
    ]

    class Meddles(Callback):
        def on_epoch_start(self, learner: Any) -> None:
            if learner.epoch == 2:
                for place in places:
                    outside.link(kind, folder / "checkpoints" / place)

    learner = FakeLearner(folder, at_once(best="validation/f1", keep=2, keep_best=2), Meddles())
    learner.reports = True
    learner.scores = {epoch: epoch / 10 for epoch in range(1, 7)}
    learner.fit(6)
    outside.check()
    assert steps(folder) == [15, 18] and steps_in(Checkpoints.load(folder)) == 18
    assert steps_in(Checkpoints.best_in(folder)) == 18 and steps_in(Checkpoints.best_in(folder, 2)) == 15
    assert not learner.events


def test_the_folder_of_checkpoints_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    FakeLearner(tmp_path / "run", at_once(keep=1)).fit(2)
    assert steps(tmp_path / "run") == [6] and (tmp_path / "disk" / "step-00000006.safetensors").is_file()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", "config.json", "notes.txt"])
def test_the_files_of_a_run(kind: str, name: str, outside: Outside, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        outside.link(kind, folder.path / name)
        folder.write("notes.txt" if name == "run.json" else name, b"mine")
    outside.check()
    assert not (tmp_path / "run" / name).is_symlink()


def test_a_run_that_is_overwritten(outside: Outside, tmp_path: Path) -> None:
    """Links in it are removed or protect it; one where the older run would be kept is told of, and is not entered."""
    with RunFolder(tmp_path / "outside" / "run") as other:
        other.write("notes.txt", b"keep me")
    outside = Outside(tmp_path / "outside")
    with RunFolder(tmp_path / "run") as folder:
        outside.link("folder", folder.file("profile/*") / "deep")
        outside.link("file", folder.file("notes.txt"))
    outside.link("folder", tmp_path / "run.replaced", "run")
    with pytest.raises(RunError, match="run.replaced: is a link or a file, where the older run would be kept"):
        RunFolder(tmp_path / "run", overwrite=True)
    RunFolder(tmp_path / "run", resume=True).complete()
    outside.check()
    (tmp_path / "run.replaced").unlink()
    RunFolder(tmp_path / "run", overwrite=True).complete()
    outside.check()
    assert own_names(tmp_path / "run") == ["run.json"] and not (tmp_path / "run.replaced").exists()
    outside.link("folder", tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match="contains 'checkpoints', which no run has written"):
        RunFolder(tmp_path / "run", overwrite=True)
    outside.link("dangling", tmp_path / "run" / "profile")
    run = RunFolder(tmp_path / "run", resume=True)
    with pytest.raises(RunError, match=r"profile: cannot be created \(it is a link that leads nowhere\)"):
        run.file("profile/*")


# --- the mechanism


@pytest.mark.parametrize("has_handles", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_removed(
    kind: str, has_handles: bool, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_HAS_HANDLES", links._HAS_HANDLES and has_handles)
    folder = tmp_path / "folder"
    order: list[str] = []

    def chosen(name: str) -> bool:
        order.append(name)
        return name != "stays"

    for name in ("first", "link", "stays"):
        outside.link(kind, folder / name)
    remove_files(folder, chosen, "link")
    assert own_names(folder) == ["stays"] and order[0] == "link"
    (folder / "stays").unlink()
    remove_files(folder, chosen)
    assert not folder.exists()
    remove_files(folder, chosen)
    if kind != "hard":
        outside.link(kind, folder)
        remove_files(folder, chosen)
        assert not os.path.lexists(folder)
    outside.check()


@pytest.mark.skipif(not links._HAS_HANDLES, reason="the system has no handles of folders")
def test_a_folder_that_is_exchanged_for_a_link(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(links, "remove_link", lambda path: outside.link("folder", path))  # the moment after the look
    remove_files(tmp_path / "folder", lambda name: True)
    outside.check()
