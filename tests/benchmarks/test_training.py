"""The rows of the benchmark of trainings are made, with tiny sizes; a row says so where a peer is missing.

Serves: benchmarks/training/
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import harness
from benchmarks.harness import SIZES, Ratio
from benchmarks.training import checkpoints, fitting, loading
from benchmarks.training.peers import per_step
from benchmarks.training.tasks import Task, torch_model

ROOT = Path(__file__).parents[2]
MLP = Task((6,), (5,), batch=4, steps=8, rounds=2)
CNN = Task((3, 8, 8), (4, 4, 4), batch=4, steps=8, rounds=2)


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.full
def test_all_rows_are_made(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.rows", "benchmarks.training", "run", str(file)],
        check=True, cwd=ROOT, env={**os.environ, SIZES: "quick"}, timeout=600,
    )  # fmt: skip
    rows = [Ratio(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    missing = {"Keras": has("keras"), "Lightning": has("lightning"), "grain": has("grain")}
    failed = [row.failed for row in rows if row.failed]
    assert not [name for name in failed if missing.get(name.split()[0], True)]
    rows = [row for row in rows if not row.failed]
    assert all(row.ratio > 0.0 and row.subject_us > 0.0 and row.peer_us > 0.0 for row in rows)
    wanted = [(fitting.STEP, 1.5), (fitting.STEP, 1.15)]
    wanted += [(fitting.KERAS, 0.6), (fitting.KERAS_AT_ONCE, None)] * has("keras") + [(fitting.LIGHTNING, 0.3)] * has(
        "lightning"
    )
    wanted += [(fitting.STEP, 1.03)] + [(fitting.LIGHTNING, 1.0), (fitting.LIGHTNING, None)] * has("lightning")
    assert [(row.peer, row.target) for row in rows if row.workload.startswith("step")] == wanted
    loads = [row for row in rows if row.workload.startswith("batch")]
    assert [row.peer for row in loads][:2] == ["torch DataLoader, num_workers=0", "torch DataLoader, num_workers=2"]
    assert len(loads) == 2 + 2 * has("grain")
    assert [row.target for row in rows if "one checkpoint" in row.workload] == [1.02, 1.02]


def test_without_peers_there_are_the_rows_that_need_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("keras", "lightning", "grain", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(torch.utils, "data")
    monkeypatch.setattr(harness, "FAILED", {})
    monkeypatch.setattr(fitting, "phlox_step", lambda task: lambda: 2.0)
    monkeypatch.setattr(fitting, "phlox_fit", lambda task, engine, **options: lambda: 3.0)
    monkeypatch.setattr(fitting, "on_threads", lambda train: train)
    *first, keras, keras_at_once, lightning = fitting.mlp_rows(MLP)
    assert [(row.ratio, row.target) for row in first] == [(1.5, 1.5), (1.5, 1.15)]
    assert [row.failed for row in (keras, keras_at_once, lightning)] == [
        row.peer for row in (keras, keras_at_once, lightning)
    ]
    assert keras.failed == fitting.KERAS and keras.reason is not None and "keras" in keras.reason
    first, *others = fitting.cnn_rows(CNN)
    assert (first.ratio, first.target) == (1.5, 1.03)
    assert [row.failed for row in others] == [fitting.LIGHTNING] * 2
    rows = loading.run(loading.Sizes(40, 8, 8, 2, rounds=2))
    assert [row.failed for row in rows] == [row.peer for row in rows] and len(rows) == 4
    assert "Lightning fit failed: ModuleNotFoundError" in capsys.readouterr().err


def test_what_a_checkpoint_costs_is_put_on_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two checkpoints an epoch of 8 steps: each costs 4 * (1.5 - 1.0) = 2 of the 100 steps between two of them.
    monkeypatch.setattr(checkpoints, "phlox_fit", lambda task, every: lambda: 1.0 if every is None else 1.5)
    (row,) = checkpoints.rows(MLP)
    assert row.ratio == pytest.approx(1.02)
    assert row.peer_us == pytest.approx(100e6)


@pytest.mark.parametrize("task", [MLP, CNN], ids=["mlp", "cnn"])
def test_models_are_the_same_size_in_both_libraries(task: Task) -> None:
    ours = sum(int(np.prod(param.shape)) for param in task.learner("numpy").model.params())
    assert ours == sum(param.numel() for param in torch_model(task).parameters())


@pytest.mark.parametrize("task", [MLP, CNN], ids=["mlp", "cnn"])
def test_a_task_can_be_learnt(task: Task) -> None:
    learner = task.learner("numpy")
    history = learner.fit(task.loader(), epochs=60, progress=False)
    assert history[-1].train["loss"] < 0.8 * history[0].train["loss"]
    assert history[-1].step == 60 * task.steps


def test_the_second_epoch_counts() -> None:
    assert per_step([10.0, 14.0], MLP) == 0.5


def test_contestants_take_turns_after_a_round_to_warm_up() -> None:
    order: list[str] = []

    def one(name: str) -> Any:
        return lambda: order.append(name) or float(len(order))

    assert fitting.in_turn({"a": one("a"), "b": one("b")}, 2) == {"a": [4.0, 5.0], "b": [3.0, 6.0]}
    assert order == [*"ab", *"ba", *"ab"]


def test_peers_give_what_loader_gives() -> None:
    sizes = loading.Sizes(40, 8, 8, 2, rounds=2)
    transforms: list[Any] = [loading.phlox_epochs(sizes, 0), loading.torch_epochs(sizes, 0)]
    if has("grain"):
        transforms.append(loading.grain_epochs(sizes, 0))
    for made in transforms:
        with made as epoch:
            images, labels = epoch()
        assert np.asarray(images).shape == (8, 3, 8, 8) and np.asarray(images).dtype == np.float32
        assert np.asarray(labels).shape == (8,)
