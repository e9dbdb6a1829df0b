"""The program for Ray trains alike in one process, in several, and on actors.

Serves: examples/ray_train.py
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.support import ENVIRONMENT, ROOT, free_port, together

EXAMPLE = ROOT / "examples" / "ray_train.py"
CALL = f"""
import runpy, sys
names = runpy.run_path({str(EXAMPLE)!r})
"""


def losses(program: str) -> list[float]:
    done = together([["-c", CALL + program]], environments=[{}])[0]
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone() -> list[float]:
    found = losses("print(names['train']('numpy', 3, 0)['losses'])")
    assert len(found) == 3 and found[2] < 0.8 * found[0]
    return found


@pytest.mark.full
@pytest.mark.parametrize("device", ["numpy", "jax"])
def test_two_processes_train_as_one_does(alone: list[float], device: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    programs = [
        f"{CALL}print(names['worker']({rank}, 2, {address!r}, {device!r}, 3, 0)['losses'])" for rank in range(2)
    ]
    for done in together([["-c", program] for program in programs], environments=[{}, {}]):
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(ast.literal_eval(done.stdout.splitlines()[-1]), alone, atol=1e-5)


@pytest.mark.full
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_actors_train_as_one_process_does(alone: list[float], tmp_path: Path) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--epochs", "3"], env={**environment, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = f"2 processes: loss {alone[0]:.4f} in the first epoch, {alone[-1]:.4f} in the last one"
    assert done.stdout.splitlines()[-1] == line


@pytest.mark.full
@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], env={**os.environ, **ENVIRONMENT}, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 2 and "pip install ray" in done.stderr and "Traceback" not in done.stderr
