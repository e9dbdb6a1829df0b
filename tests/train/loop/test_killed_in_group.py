"""A rank that is killed in mid-epoch: the launcher starts all again, and the end is the undisturbed one, bit for bit.

Serves: phlox/train/loop/lock_step.py, phlox/train/run.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

_ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, signal, sys
import numpy as np
import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.distributed import Layout, Mesh
from phlox.train import Checkpoints, LambdaCallback, Learner

engine, folder, victim, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
px.distributed.initialize(seed=0, device=engine)
mesh = Mesh(data=-1, device=engine)
rng = np.random.default_rng(0)
x = rng.normal(size=(88, 4)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
model = nn.Sequential([nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)]).init(0, device=engine)

def kill(learner):
    if px.distributed.attempt() == 0 and px.distributed.rank() == victim and learner.step == when:
        os.kill(os.getpid(), signal.SIGKILL)

layout = Layout({}, rest="data", least=0)
learner = Learner(
    model.shard(layout, mesh), optim.AdamWConfig(), optim.CosineAnnealingLr(0.05, num_iters=45),
    nn.cross_entropy_loss, metrics={"accuracy": metrics.Accuracy(num_classes=2)}, ema=0.9, mesh=mesh,
)
learner.fit(
    Loader((x, y), 12, shuffle=True, workers=1), epochs=4, validation=Loader((x, y), 30), folder=folder, resume=True,
    callbacks=[Checkpoints(every_steps=2, best="validation/accuracy"), LambdaCallback(on_step_end=kill)],
    progress=False,
)
learner.save(folder + ".safetensors")
if px.distributed.is_main():
    print("resumed" if learner.is_resumed else "new", learner.step)
"""


def launch(base: Path, engine: str, name: str, victim: int, when: int) -> str:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    more = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "NPROC": "32", "PYTHONPATH": path}
    command = [sys.executable, "-m", "phlox", "launch", "-n", "2", "--devices", "2", "--restarts", "1"]
    done = subprocess.run(
        [*command, "--timeout", "200", "--grace", "2", "train.py", engine, str(base / name), str(victim), str(when)],
        env={**os.environ, **more}, capture_output=True, text=True, check=False, timeout=240, cwd=base,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="kill -9")
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_killed_rank(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    (tmp_path / "train.py").write_text(PROGRAM)
    moments = random.Random(engine)
    assert "new 32" in launch(tmp_path, engine, "whole", 0, 0)
    when = moments.randrange(9, 16)
    assert "resumed 32" in launch(tmp_path, engine, "run", moments.randrange(2), when)
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "run"))
    # The last step of the training is one of the last epoch, whose states have names of their own in each launch.
    assert len(one) == len(other)
    models = [path for path in one if path.startswith(("models.", "aids.", "totals."))]
    for path in models:
        np.testing.assert_array_equal(one[path], other[path], err_msg=path)
    moments_of = [
        sorted(array.tobytes() for path, array in each.items() if path.startswith("optimizers."))
        for each in (one, other)
    ]
    assert models and moments_of[0] and moments_of[0] == moments_of[1]
    rows = [
        [{key: value for key, value in json.loads(line).items() if "second" not in key} for line in text.splitlines()]
        for text in ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "run"))
    ]
    assert rows[0] == rows[1]
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]) == 2
