"""A save that is killed, wherever it is, leaves the checkpoint before it or the new one, and the next one cleans up."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phlox.distributed import latest, load, save
from phlox.record import Record
from phlox.record.formats.parts import INDEX

PROGRAM = """
import os, signal, sys
import numpy as np
from phlox.distributed import save
from phlox.distributed.checkpoints import committing, storage
from phlox.record import Record

stage, folder, step = sys.argv[1], sys.argv[2], None if sys.argv[3] == "none" else int(sys.argv[3])

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def then_die(function, when=lambda *arguments: True):
    def both(*arguments, **more):
        function(*arguments, **more)
        if when(*arguments):
            die()
    return both

is_index = lambda self, path, *rest: path.endswith(committing.INDEX)
if stage == "claimed":
    committing._remove_leftovers = die
elif stage == "writing":
    committing.write_file = then_die(committing.write_file)
elif stage == "written":
    committing._commit = die
elif stage == "index":
    storage.LocalFolder.write = then_die(storage.LocalFolder.write, is_index)
elif stage == "moved":
    storage.sync_folder = die
elif stage == "committed":
    storage.LocalFolder.commit = then_die(storage.LocalFolder.commit)
elif stage == "removing":
    os.unlink = then_die(os.unlink, lambda name: str(name) == committing.INDEX)
values = {"w": np.full((3, 4), 2.0), "n": 2}
save(Record(values), folder, step=step, keep=None if step is None else 1)
"""


def killed(stage: str, folder: Path, step: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, stage, str(folder), step], timeout=60, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def values(number: int) -> Record:
    return Record({"w": np.full((3, 4), float(number)), "n": number})


def is_whole(record: Record) -> bool:
    return bool((record["w"].tensor.read() == record["n"]).all())


@pytest.mark.parametrize("stage", ["claimed", "writing", "written", "index", "moved", "committed", "removing"])
def test_steps(tmp_path: Path, stage: str) -> None:
    save(values(1), tmp_path, step=1)
    killed(stage, tmp_path, "2")
    found = latest(tmp_path)
    assert found == (2 if stage in ("moved", "committed", "removing") else 1)
    record = load(tmp_path)
    assert record["n"] == found and is_whole(record)
    save(values(3), tmp_path, step=3, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    assert load(tmp_path)["n"] == 3 and is_whole(load(tmp_path))


@pytest.mark.full
@pytest.mark.parametrize("stage", ["claimed", "writing", "written", "index", "moved", "committed"])
def test_a_folder_that_is_replaced(tmp_path: Path, stage: str) -> None:
    save(values(1), tmp_path)
    killed(stage, tmp_path, "none")
    record = load(tmp_path)
    assert record["n"] == (2 if stage == "committed" else 1) and is_whole(record)
    save(values(3), tmp_path)
    assert load(tmp_path)["n"] == 3 and is_whole(load(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2 and (tmp_path / INDEX).exists()
