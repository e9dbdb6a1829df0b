"""As many threads as asked for, on every engine, whoever is imported first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import phlox
from phlox.backend import settings
from phlox.host.threads import VARIABLES, cores

OWN = {*settings.VARIABLES.values(), settings.FILE, *VARIABLES, "XLA_FLAGS"}

CLEAN = {name: value for name, value in os.environ.items() if name not in OWN}


def run(program: str, *warnings: str, **variables: str) -> str:
    """What the program prints in a process of its own with these variables."""
    environment = {**CLEAN, "PYTHONPATH": str(Path(phlox.__path__[0]).parent), **variables}
    flags = warnings or ("-W", "error")
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


THREADS = """
import ctypes, pathlib
{first}
import phlox
import numpy, torch
mapped = pathlib.Path("/proc/self/maps").read_text().splitlines()
path = {{line.split()[-1] for line in mapped if "openblas" in line and "numpy" in line}}.pop()
from phlox.backend.numpy import blocks
print(ctypes.CDLL(path).scipy_openblas_get_num_threads64_(), torch.get_num_threads(), blocks._pool(0)[1])
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the library that Linux says is loaded")
@pytest.mark.parametrize(
    "first", ["", pytest.param("import numpy, torch", marks=pytest.mark.full)], ids=["phlox first", "engines first"]
)
def test_threads_whoever_is_imported_first(first: str) -> None:
    program, here = THREADS.format(first=first), min(2, cores())
    assert run(program, PHLOX_THREADS="1") == "1 1 0"
    # What an engine's own variable says is obeyed.
    assert run(program, PHLOX_THREADS="1", OPENBLAS_NUM_THREADS="2") == f"{here} 1 0"
    assert run(program, PHLOX_THREADS="1", OMP_NUM_THREADS="2") == f"{here} {here} 0"
    assert run(program, OMP_NUM_THREADS="1") == "1 1 0"
