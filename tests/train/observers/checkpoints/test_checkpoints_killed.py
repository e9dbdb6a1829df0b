"""A process that is killed, at whatever moment, leaves whole checkpoints, and what it had begun is cleaned up.

Serves: phlox/train/observers/checkpoints/checkpoints.py, phlox/train/observers/checkpoints/files.py
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phlox.train.events import entries_of
from phlox.train.observers.checkpoints.catalog import BestName
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.checkpoints.files import step_of, whole
from tests.train.fake_learner import FakeLearner, steps_in

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be killed")

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}

AT_EACH_CALL = """
import os, pathlib, signal, sys, warnings
warnings.simplefilter("ignore")
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from tests.train.fake_learner import FakeLearner

def train(folder):
    saver = Checkpoints(keep=1, best="validation/f1", keep_best=int(sys.argv[2]), background=False)
    learner = FakeLearner(folder, saver, steps_per_epoch=1)
    learner.scores = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.2}
    learner.reports = True
    learner.fit(4)

count = at = 0

def dying(function):
    def call(*arguments, **options):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

for holder, *all_names in [(os, "fsync", "pwrite"), (pathlib.Path, "replace", "rename", "unlink")]:
    for name in all_names:
        setattr(holder, name, dying(getattr(holder, name)))
base = pathlib.Path(sys.argv[1])
train(base / "whole")
for at in range(1, count + 1):
    child = os.fork()
    if child == 0:
        count = 0
        train(base / str(at))
        os._exit(0)  # never reached
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, at
print(count)
"""

AT_ANY_TIME = """
import pathlib, sys
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from tests.train.fake_learner import FakeLearner
saver = Checkpoints(every_steps=1, keep=2, best="validation/f1")
learner = FakeLearner(pathlib.Path(sys.argv[1]), saver, steps_per_epoch=1)
learner.reports = True
if Checkpoints.exist_in(sys.argv[1]):
    learner.load_state(Checkpoints.load(sys.argv[1]))
learner.scores = {epoch: epoch / 1e6 for epoch in range(1_000_000)}
print("begins", flush=True)
learner.fit(1_000_000)
"""


def check(folder: Path) -> int:
    """All that is visible is whole, and what is listed and there is what the list says; returns the newest step."""
    held = json.loads((folder / "checkpoints.json").read_text()) if (folder / "checkpoints.json").exists() else {}
    for path in folder.iterdir():
        if re.fullmatch(r"\.phlox-[0-9a-f-]+\.tmp", path.name) or path.name == "checkpoints.json":
            continue
        assert path.name in held["files"]
        if path.suffix == ".jsonl":
            continue
        record = whole(path)
        if not BestName.fits(path.name):
            assert steps_in(record) == step_of(path.name)
    if not any(folder.glob("step-*")):
        return 0
    record = Checkpoints.load(folder)  # which warns if the history is not whole
    step = steps_in(record)
    reports = entries_of(record["log"]["lines"].get("history", ""))
    assert [one["epoch"] for one in reports] == [*range(1, record["progress"]["epoch"] + 1)]
    assert step == max(step_of(path.name) or 0 for path in folder.glob("step-*"))
    return step


@pytest.mark.full
@pytest.mark.parametrize("keep_best", [1, 2])
def test_at_each_call_of_the_system(tmp_path: Path, keep_best: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EACH_CALL, tmp_path, str(keep_best)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout)
    assert calls > 40
    newest = 0
    for at in range(1, calls + 1):
        folder = tmp_path / str(at) / "checkpoints"
        step = check(folder)
        assert step >= newest, "a later death loses nothing"
        newest = step
        saver = Checkpoints(keep=1, best="validation/f1", keep_best=keep_best)
        learner = FakeLearner(folder.parent, saver, steps_per_epoch=1)
        learner.scores = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.2, 5: 0.2}
        learner.reports = True
        if step:
            learner.load_state(Checkpoints.load(folder))
        learner.fit(5)
        assert steps_in(Checkpoints.load(folder)) == 5 and steps_in(Checkpoints.best_in(folder)) == 2
        held = json.loads((folder / "checkpoints.json").read_text())
        assert [one["step"] for one in held["bests"]] == [2, 3][:keep_best] and held["best"] == held["bests"][0]
        for rank, one in enumerate(held["bests"], start=1):
            assert steps_in(Checkpoints.best_in(folder, rank)) == one["step"]
        needed = {one[key] for one in held["checkpoints"] for key in ("file", "history")}
        at_best = {"step-00000002.safetensors", "step-00000003.safetensors"}  # which may be there
        assert needed - at_best > {"step-00000005.safetensors"}
        bests = ["best.safetensors", "best-00000003.safetensors"][:keep_best]
        assert {path.name for path in folder.iterdir()} == {*bests, "checkpoints.json", *needed}
        assert check(folder) == 5 and not learner.events
    assert newest == 4


@pytest.mark.full
def test_at_any_time(tmp_path: Path) -> None:
    chance, newest = random.Random(5), 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", AT_ANY_TIME, tmp_path], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "begins\n"
            folder = tmp_path / "checkpoints"
            while process.poll() is None and not any((step_of(path.name) or 0) > newest for path in folder.glob("*")):
                time.sleep(0.01)  # a slow machine has not come to its first step yet
            time.sleep(0.2 * chance.random())
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        step = check(folder)
        assert step > newest
        newest = step
