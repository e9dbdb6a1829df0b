"""Trainings with parameters in slices have the numbers of one process, whatever the engine, optimizer and number.

Serves: phlox/sharding/
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

from tests.sharding.in_processes import FEW, SAME

_ROOT = Path(__file__).parents[2]


def run(folder: Path, processes: int) -> dict[str, Any]:
    path = os.pathsep.join([str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")])
    # What a compiler makes of loops is another test's.
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PHLOX_TORCH_CODEGEN": "none"}
    command = [sys.executable, "-m", "phlox", "launch", "-n", str(processes), "--timeout", "280"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "in_processes.py"), str(folder)],
        env={**os.environ, **more}, capture_output=True, text=True, check=False, timeout=320,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return json.loads((folder / f"{processes}.json").read_text())


@pytest.mark.full
def test_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    alone = run(tmp_path, 1)
    for processes in (2, 4):
        found = run(tmp_path, processes)
        assert found.keys() == (set(FEW) if processes == 4 else {*alone, *(k for k in SAME if "replicas" not in k)})
        for name, values in found.items():
            tolerance = 1e-2 if "bf16" in name else 1e-5
            np.testing.assert_allclose(
                values, alone[SAME.get(name, name)], rtol=tolerance, atol=tolerance, err_msg=f"{name}, {processes}"
            )
