"""Trainings in several processes, and on several devices, end where those of one process and device end.

Serves: phlox/train/step/data_parallel.py, phlox/train/loop/sharded_batch_stream.py, phlox/train/step/sums.py
Serves: phlox/train/observers/checkpoints/writers.py, phlox/train/host_records.py, phlox/train/loop/evaluation.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_ROOT = Path(__file__).parents[3]
_PROGRAM = Path(__file__).parent / "train_in_group.py"
ALL = "same,resumed,damaged,handed_on,stopped,limits,signalled,bad_input,nan,others,options,checked"
FEW = "same,resumed,handed_on,stopped,bad_input,others"  # each learner compiles its step


def run(folder: Path, engine: str, sections: str, processes: int = 1, devices: int = 1, limit: float = 280.0) -> Any:
    """What a group of processes has found; what goes wrong there is the assertion's text."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    more = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "NPROC": "32", "PYTHONPATH": path}
    launch = ["-m", "phlox", "launch", "--timeout", str(limit), "--devices", str(devices), "-n", str(processes)]
    done = subprocess.run(
        [sys.executable, *launch, str(_PROGRAM), engine, str(folder), sections],
        env={**os.environ, **more}, capture_output=True, text=True, check=False, timeout=limit + 40, cwd=_ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-2000:]
    places = processes * devices if engine == "jax" else processes
    return json.loads((folder / f"{processes}x{places}.json").read_text())


def assert_close(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name, value in one.items():
            assert_close(value, other[name], f"{path}/{name}")
    elif isinstance(one, list) and one and isinstance(one[0], (list, dict)):
        assert len(one) == len(other), path
        for number, value in enumerate(one):
            assert_close(value, other[number], f"{path}/{number}")
    else:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=path)


@pytest.mark.full
@pytest.mark.parametrize(("engine", "processes"), [("torch", 2), ("numpy", 3)])
def test_processes_with_rows_of_their_own(engine: str, processes: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    alone = run(tmp_path, engine, ALL)
    assert_close(run(tmp_path, engine, ALL, processes), alone)
    # And back: what several have saved one goes on from.
    assert_close(
        run(tmp_path, engine, "same,handed_on"), {name: alone[name] for name in ("same", "evaluated", "predicted")}
    )


@pytest.mark.full
@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (2, 2)])
def test_devices_that_share_arrays(processes: int, devices: int, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    alone = run(tmp_path, "jax", "same,handed_on,others")
    assert_close(run(tmp_path, "jax", FEW, processes, devices), alone)
    if processes > 1:
        back = run(tmp_path, "jax", "same,handed_on")
        assert_close(back, {name: alone[name] for name in ("same", "evaluated", "predicted")})
