"""One save at a time writes to a folder; what a killed one has left is recognised."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.distributed import latest, load, save
from phlox.distributed.checkpoints import owner
from phlox.distributed.checkpoints.owner import OWNER, Claim
from phlox.distributed.checkpoints.storage import LocalFolder
from phlox.errors import DistributedError
from phlox.record import Record

ONE = Record({"w": np.ones(3)})


def claimed_by(folder: Path, **fields: Any) -> None:
    """A file of an owner that is some process of this machine, unless told otherwise."""
    mine = owner._this_process()
    (folder / OWNER).write_text(json.dumps({**mine, "run": "", "token": "t", "beat": 0, **fields}))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT", 0.05)


def test_it_is_there_while_a_save_is_under_way(tmp_path: Path, quick: None) -> None:
    claim = Claim(LocalFolder(tmp_path / "new"), "a run")
    found = json.loads((tmp_path / "new" / OWNER).read_text())
    assert (found["host"], found["pid"], found["run"]) == (socket.gethostname(), os.getpid(), "a run")
    until = time.monotonic() + 10.0
    while json.loads((tmp_path / "new" / OWNER).read_text())["beat"] < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    claim.release()
    claim.release()
    assert not list((tmp_path / "new").iterdir())
    save(ONE, tmp_path, step=1)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_another_run_that_is_writing_is_named(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        started = owner._start_of(other.pid)
        claimed_by(tmp_path, pid=other.pid, started=started, run="blue")
        message = rf"another run is writing there: process {other.pid} on host {socket.gethostname()} \(run blue\)"
        with pytest.raises(DistributedError, match=message):
            save(ONE, tmp_path, step=1)
        assert latest(tmp_path) is None
        other.communicate(b"\n", timeout=20)
    save(ONE, tmp_path, step=1)  # now it is dead
    assert latest(tmp_path) == 1 and not (tmp_path / OWNER).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": 2**22 + 1, "started": "1"},
        {"pid": 1, "started": "another process had this number"},
        {},  # of this process: saves of one process come one after the other
    ],
)
def test_the_dead_are_recognised(tmp_path: Path, fields: dict[str, Any]) -> None:
    claimed_by(tmp_path, **fields)
    save(ONE, tmp_path, step=1)
    assert latest(tmp_path) == 1


def test_an_earlier_attempt_of_the_same_launch_has_ended(tmp_path: Path) -> None:
    claimed_by(tmp_path, machine="far away", run="a launch/0")
    Claim(LocalFolder(tmp_path), "a launch/1").release()


@pytest.mark.parametrize("theirs, mine", [("none/0", "none/0"), ("/0", "/1"), ("other/0", "a/1"), ("a/2", "a/1")])
def test_a_launch_of_the_same_name_is_not_taken_for_an_attempt(tmp_path: Path, theirs: str, mine: str) -> None:
    """torchrun names all launches `none` that are given no name."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        claimed_by(tmp_path, pid=other.pid, started=owner._start_of(other.pid), run=theirs)
        with pytest.raises(DistributedError, match="another run is writing there"):
            Claim(LocalFolder(tmp_path), mine)
        other.communicate(b"\n", timeout=20)


@pytest.mark.parametrize("text", [None, "", "[1]", '{"pid": '])
def test_an_owner_elsewhere_that_does_nothing_any_more_is_dead(tmp_path: Path, quick: None, text: str | None) -> None:
    claimed_by(tmp_path, machine="far away", host="far")
    if text is not None:
        (tmp_path / OWNER).write_text(text)
    save(ONE, tmp_path)
    assert load(tmp_path)["w"].tensor.read().tolist() == [1.0] * 3


def test_an_owner_elsewhere_that_goes_on_is_alive(tmp_path: Path, quick: None) -> None:
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(0.01):
            number += 1
            claimed_by(tmp_path, machine="far away", host="far", pid=7, beat=number)

    thread = threading.Thread(target=beat)
    claimed_by(tmp_path, machine="far away", host="far", pid=7)
    thread.start()
    try:
        with pytest.raises(DistributedError, match=r"process 7 on host far \(run without a name\)"):
            Claim(LocalFolder(tmp_path), "")
    finally:
        ended.set()
        thread.join()
