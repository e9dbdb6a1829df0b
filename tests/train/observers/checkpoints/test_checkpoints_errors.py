"""A disk or a memory that is full ends no training, and costs no checkpoint that is there.

Serves: phlox/train/observers/checkpoints/checkpoints.py, phlox/train/observers/checkpoints/files.py
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.errors import RecordError
from phlox.record import Record
from phlox.train.observers.checkpoints import files as checkpoint_files
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from tests.train.fake_learner import FakeLearner, at_once, listed, names, steps, steps_in


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool, code: int) -> None:
    is_full = [False]
    flush = checkpoint_files.SafetensorsRecorder.write

    def write(self: Any, record: Record, sink: Any) -> None:
        flush(self, record, sink)
        if is_full[0]:
            raise OSError(code, "no room at all")

    monkeypatch.setattr(checkpoint_files.SafetensorsRecorder, "write", write)
    saver = Checkpoints(every_steps=1, keep=1, best="validation/f1", background=background)
    learner = FakeLearner(tmp_path, saver)

    def train() -> None:
        learner.train()
        learner.call("on_step_end")
        saver._writer.wait()

    learner.call("on_fit_start")
    train()
    is_full[0] = True
    learner.scores[0] = 0.5
    learner.call("on_validation_end")
    train()
    train()
    learner.call("on_epoch_start")
    folder = tmp_path / "checkpoints"
    # The events are in a file beside the checkpoints, which there is room for.
    assert names(folder) == ["checkpoints.json", "history-1.jsonl", "step-00000001.safetensors"]
    assert len(learner.events) == 3
    for _, text in learner.events:
        assert str(folder) in text and "no room at all" in text and "the next checkpoint tries again" in text
    is_full[0] = False
    learner.scores[0] = 0.3  # better than what there is on the disk
    learner.call("on_validation_end")
    train()
    learner.call("on_fit_end")
    assert names(folder) == [
        "best.safetensors", "checkpoints.json", "history-1.jsonl", "step-00000004.safetensors",
    ]  # fmt: skip
    assert len(learner.events) == 3 and listed(tmp_path)["best"]["value"] == 0.3


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    saver = Checkpoints(every_steps=1, keep=2)
    learner = FakeLearner(tiny_disk, saver)
    learner.more = {"large": Record({"x": np.arange(12_000.0)})}  # 94 KiB: two of them fit, and not a third
    learner.call("on_fit_start")
    for _ in range(4):
        learner.train()
        learner.call("on_step_end")
        saver._writer.wait()
    folder = tiny_disk / "checkpoints"
    assert names(folder) == [
        "checkpoints.json", "history-1.jsonl", "step-00000001.safetensors", "step-00000002.safetensors",
    ]  # fmt: skip
    learner.more = {}
    learner.call("on_fit_end")
    assert steps(tiny_disk) == [2, 4] and steps_in(Checkpoints.load(tiny_disk)) == 4
    assert ["No space left on device" in text for _, text in learner.events] == [True, True]


def test_what_cannot_be_saved_at_all_is_an_error(tmp_path: Path) -> None:
    learner = FakeLearner(tmp_path, Checkpoints(every_steps=1))
    learner.more = {"x": Record({"y": 1}, unreadable={"z": "it is an object"})}
    with pytest.raises(RecordError, match="it is an object"):
        learner.fit(3)


def test_no_memory_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = FakeLearner(tmp_path, at_once(best="validation/f1"))

    def full(**options: Any) -> Record:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(learner, "snapshot", full)
        patch.setattr(learner, "weights", full)
        learner.fit(1)
    assert len(learner.events) == 3 and all("none left" in text for _, text in learner.events)
    learner.fit(2)
    assert steps(tmp_path) == [6] and steps_in(Checkpoints.best_in(tmp_path)) == 6
