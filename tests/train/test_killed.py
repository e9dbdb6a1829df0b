"""A training that is killed at any moment and started again ends bit for bit where the undisturbed one ends.

Serves: phlox/train/run.py, phlox/train/state.py, phlox/train/observers/checkpoints/checkpoints.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.support import ENVIRONMENT

SCRIPT = """
import sys, time
import numpy as np
import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.train import Callback, Checkpoints, EarlyStopping, LambdaCallback, Learner

folder, engine, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
rng = np.random.default_rng(0)
x = rng.normal(size=(90, 4)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
px.random.seed(1)
layers = [nn.Linear(4, 8), nn.BatchNorm(8), nn.Relu(), nn.Dropout(0.2), nn.Linear(8, 2)]
learner = Learner(
    nn.Sequential(layers).init(device=engine), optim.AdamWConfig(), optim.CosineAnnealingLr(0.05, num_iters=45),
    nn.cross_entropy_loss, metrics={"accuracy": metrics.Accuracy()}, ema=0.9,
)
learner.fit(
    Loader((x, y), 10, shuffle=True, workers=2), epochs=5, validation=Loader((x, y), 30), folder=folder, resume=True,
    callbacks=[Checkpoints(every_steps=2), LambdaCallback(on_step_end=lambda learner: time.sleep(pause))],
    progress=False,
)
learner.model.save(folder + "/../" + sys.argv[4])
"""


def start(base: Path, folder: str, engine: str, pause: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(base / "train.py"), str(base / folder), engine, str(pause), f"{folder}.safetensors"]
    return subprocess.Popen(command, env=ENVIRONMENT, cwd=base)


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
@pytest.mark.parametrize(
    ("engine", "kills"), [("numpy", 3), *(pytest.param(one, 1, marks=pytest.mark.full) for one in ("jax", "torch"))]
)
def test_killed_and_started_again(engine: str, kills: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    whole = start(tmp_path, "whole", engine, 0.0)
    moments = random.Random(engine)
    for kill in range(kills):
        process = start(tmp_path, "run", engine, 0.05)
        listed = tmp_path / "run" / "checkpoints" / "checkpoints.json"
        wanted = 8 * (kill + 1)
        while process.poll() is None:  # until it has come some steps further, and then a moment more
            try:
                steps = [one["step"] for one in json.loads(listed.read_text())["checkpoints"]]
            except (OSError, ValueError, KeyError):
                steps = []
            if steps and max(steps) >= wanted:
                break
            time.sleep(0.01)
        time.sleep(moments.random() * 0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "running"
    last = start(tmp_path, "run", engine, 0.0)
    assert last.wait(60) == 0
    assert whole.wait(60) == 0
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "run"))
    assert one.keys() == other.keys()
    for path, array in one.items():
        np.testing.assert_array_equal(array, other[path], err_msg=path)
    rows = [
        [{key: value for key, value in json.loads(line).items() if "second" not in key} for line in text.splitlines()]
        for text in ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "run"))
    ]
    assert rows[0] == rows[1]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]) == kills + 1
