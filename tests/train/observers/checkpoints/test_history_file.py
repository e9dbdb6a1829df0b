"""What only grows is in a file beside the checkpoints: each entry is written once, and no damage costs weights."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import RecordError, RunWarning
from phlox.record import load
from phlox.train import Callback, Checkpoints, Learner
from phlox.train.events import Growing, entries_of
from phlox.train.observers.checkpoints.history_file import HistoryFile, read
from tests.train.fake_learner import FakeLearner, at_once, names, steps_in

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Seen(Callback):
    """Keeps the losses of all epochs."""

    def __init__(self) -> None:
        self.losses: Growing[list[float]] = Growing()

    def on_epoch_end(self, learner: Any) -> None:
        self.losses.append([learner.epoch, learner.value("train/loss")])

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "count": len(self.losses)}

    def restore(self, state: Any, /) -> None:
        self.losses = Growing(state["losses"])
        assert state["count"] == len(self.losses)


def learner() -> Learner[Any]:
    return Learner(nn.Linear(3, 1).init(seed=0), optim.SgdConfig(), 0.1, nn.mse_loss)


def fit(trained: Learner[Any], folder: Path, epochs: int, *callbacks: Callback, **options: Any) -> Seen:
    seen = Seen()
    trained.fit(
        Loader((X, X[:, :1]), 4, shuffle=True, seed=1), epochs=epochs, folder=folder, progress=False,
        callbacks=[seen, *callbacks, Checkpoints(background=False, keep=None)], **options,
    )  # fmt: skip
    return seen


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, whose checksums are compared with those that zlib computes."""
    found: list[dict[str, Any]] = []
    total = 0
    for line in path.read_bytes().splitlines():
        content, _, checksum = line.rpartition(b', "crc32": "')
        total = zlib.crc32(content, total)
        assert checksum == b'%08x"}' % total
        found.append(json.loads(content + b"}"))
    return found


def test_each_entry_is_written_once_and_comes_back(tmp_path: Path) -> None:
    whole, first, second = learner(), learner(), learner()
    expected = fit(whole, tmp_path / "whole", 6)
    fit(first, tmp_path / "run", 3)
    first_file = (tmp_path / "run" / "checkpoints" / "history-1.jsonl").read_bytes()
    again = fit(second, tmp_path / "run", 6, resume=True)
    assert again.losses == expected.losses and len(again.losses) == 6
    for one, other in zip(second.history, whole.history, strict=True):
        assert (one.epoch, one.step, one.train) == (other.epoch, other.step, other.train)
    folder = tmp_path / "run" / "checkpoints"
    assert [name for name in names(folder) if "history" in name] == ["history-1.jsonl", "history-2.jsonl"]
    assert (folder / "history-1.jsonl").read_bytes() == first_file  # which the first checkpoints need
    reports = [line["history"]["epoch"] for line in lines_of(folder / "history-2.jsonl") if "history" in line]
    assert reports == [1, 2, 3, 4, 5, 6]
    mine = [line["Seen.losses"] for line in lines_of(folder / "history-2.jsonl") if "Seen.losses" in line]
    assert mine == expected.losses
    # The checkpoints have none of it.
    sizes = {path.stat().st_size for path in (tmp_path / "whole" / "checkpoints").glob("step-*")}
    assert max(sizes) - min(sizes) < 128
    for epoch, path in enumerate(sorted(folder.glob("step-*")), start=1):
        assert [one["epoch"] for one in entries_of(Checkpoints.load(path)["log"]["lines"]["history"])] == [
            *range(1, epoch + 1)
        ]


def test_no_checkpoint_is_left_without_its_history(tmp_path: Path) -> None:
    """Also those of a branch that a training has left, by going back to an older one."""
    fit(learner(), tmp_path / "run", 4)
    folder = tmp_path / "run" / "checkpoints"
    fit(learner(), tmp_path / "run", 3, resume=folder / "step-00000004.safetensors")
    for path in folder.glob("step-*"):
        record = Checkpoints.load(path)
        assert len(entries_of(record["log"]["lines"]["history"])) == record["progress"]["epoch"]
    keeps = FakeLearner(tmp_path / "fake", at_once(keep=1))
    for epochs in (2, 4, 6):
        keeps.reports = True
        keeps.fit(epochs)
        keeps.is_resumed = True
    assert names(tmp_path / "fake" / "checkpoints") == [
        "checkpoints.json", "history-3.jsonl", "step-00000018.safetensors",
    ]  # fmt: skip


# --- damage


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b'"step": 6')] ^= 1
    path.write_bytes(data)


def _drop(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"step": 6' not in line))


DAMAGES: list[tuple[Callable[[Path], object], int, str]] = [
    (Path.unlink, 0, "history-1.jsonl, which belongs beside it, is missing"),
    (lambda path: path.write_bytes(b""), 0, "ends after 0 of "),
    (_cut, 3, "is damaged from line 4 on"),
    (_flip, 1, "is damaged from line 2 on"),
    (_drop, 1, "is damaged from line 2 on"),
    (lambda path: path.write_bytes(b"\0" * 5000), 0, "is damaged from line 1 on"),
]
"""What happens to the file of four epochs, how many reports are left, and what is said."""


@pytest.mark.parametrize(("damage", "left", "message"), DAMAGES, ids=[str(n) for n in range(len(DAMAGES))])
def test_a_history_that_is_damaged_is_said_and_costs_nothing_else(
    tmp_path: Path, damage: Callable[[Path], object], left: int, message: str
) -> None:
    first = FakeLearner(tmp_path, at_once())
    first.reports = True
    first.fit(4)
    folder = tmp_path / "checkpoints"
    damage(folder / "history-1.jsonl")
    with pytest.warns(RunWarning, match=f"of its history, {4 - left} reports of epochs are lost: .*{message}"):
        record = Checkpoints.load(tmp_path)
    second = FakeLearner(tmp_path, at_once())
    second.reports = True
    second.load_state(record)
    assert steps_in(record) == 12 and [one.epoch for one in second.history] == [*range(1, left + 1)]
    second.fit(5)
    # From now on it is in a file that is whole.
    assert [one["epoch"] for one in entries_of(Checkpoints.load(tmp_path)["log"]["lines"]["history"])] == [
        *range(1, left + 1), 5,
    ]  # fmt: skip


def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    for value in ({"file": "../history-1.jsonl", "bytes": 3}, {"file": "notes.txt", "bytes": 3}, {"file": 3}):
        found, problem = read(tmp_path / "checkpoints", {"counts": {}, **value})
        assert found["lines"] == {} and "is no name of a history" in problem


def test_a_checkpoint_alone_has_the_weights(tmp_path: Path) -> None:
    trained, other = learner(), learner()
    fit(trained, tmp_path / "run", 3)
    alone = shutil.copy(tmp_path / "run" / "checkpoints" / "step-00000006.safetensors", tmp_path)
    with pytest.warns(RunWarning, match=r"3 reports of epochs, .* are lost: history-1\.jsonl, which belongs"):
        other.load_state(Checkpoints.load(alone))
    assert (other.epoch, other.step, other.history) == (3, 6, [])
    np.testing.assert_array_equal(other.model.weight.val().numpy(), trained.model.weight.val().numpy())
    # The reader of records knows nothing of it.
    with pytest.warns(RunWarning, match=r"lacks its history \(3 reports of epochs, .*\), which is in history-1"):
        other.load_state(load(tmp_path / "run" / "checkpoints" / "step-00000006.safetensors"))
    # And what is saved by hand needs no other file.
    other.load_state(load(trained.save(tmp_path / "by-hand")))
    assert other.history == trained.history


# --- what it costs


def calls_of(function: Callable[[], object]) -> int:
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # finalizers of other tests' garbage are calls, too
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_snapshot_costs_the_same_after_many_epochs(tmp_path: Path) -> None:
    trained = learner()
    counts: dict[tuple[int, bool], int] = {}
    for epochs in (10, 490):
        trained.fit(Loader((X, X[:, :1]), 8), epochs=epochs, progress=False)
        for whole in (False, True):
            trained.snapshot(whole=whole)  # what is new is encoded once
            counts[trained.epoch, whole] = calls_of(lambda: trained.snapshot(whole=whole))  # noqa: B023
    assert counts[500, False] <= counts[10, False] + 5 and counts[500, True] <= counts[10, True] + 5


def test_what_is_added_is_all_that_is_written(tmp_path: Path) -> None:
    grown = {"history": Growing([[1]]), "events": Growing[Any]()}
    file = HistoryFile(tmp_path)

    def take() -> int:
        position = file.extend(grown, {name: len(entries) for name, entries in grown.items()})
        assert position is not None
        file.write(position)
        return position.value["bytes"]

    first = take()
    inode = file.path.stat().st_ino
    grown["events"].append("é\n")
    second = take()
    assert file.path.stat().st_size == second > first and file.path.stat().st_ino == inode
    with file.path.open("ab") as stream:
        stream.write(b"of a write that failed")
    grown["history"].append([2])
    third = take()
    assert lines_of(file.path) == [{"history": [1]}, {"events": "é\n"}, {"history": [2]}]
    file.path.unlink()
    grown["history"].append([3])
    assert take() > third and len(lines_of(file.path)) == 4  # made anew
    for length, count in ((first, 1), (second, 2), (third, 3)):
        found, problem = read(tmp_path, {"counts": {}, "file": file.path.name, "bytes": length})
        assert problem == "" and sum(each.count("\n") for each in found["lines"].values()) == count
    grown["history"][0] = [7]
    grown["history"].pop()
    assert file.extend(grown, {"history": 2, "events": 1}) is None  # that is not what it was: another file is needed
    assert HistoryFile(tmp_path).path.name == "history-2.jsonl"


def test_what_is_no_plain_value_is_refused(tmp_path: Path) -> None:
    class Keeps(Callback):
        def state(self) -> dict[str, Any]:
            return {"things": Growing([object()])}

    with pytest.raises(RecordError, match="an entry of a list that only grows is <object object .* no plain value"):
        fit(learner(), tmp_path / "run", 1, Keeps())
    grown = Growing([{1: (np.float32(0.5), np.arange(2))}])  # as in any other state
    assert entries_of("".join(grown.lines(1))) == [{"1": [0.5, [0, 1]]}]


def test_a_state_that_is_loaded_in_between_begins_another_file(tmp_path: Path) -> None:
    class Back(Callback):
        record: Any = None

        def on_epoch_end(self, learner: Any) -> None:
            if self.record is None:
                self.record = learner.snapshot()
            elif self.record and learner.epoch == 3:
                learner.load_state(self.record)
                learner.history = list(learner.history)  # and a list of one's own
                self.record = False

    trained = learner()
    trained.fit(
        Loader((X, X[:, :1]), 8), epochs=4, progress=False, callbacks=[Back(), Checkpoints(tmp_path, background=False)]
    )
    assert names(tmp_path)[1] == "history-2.jsonl"  # the checkpoints that needed the first are older than three
    assert len(entries_of(Checkpoints.load(tmp_path)["log"]["lines"]["history"])) == len(trained.history)
