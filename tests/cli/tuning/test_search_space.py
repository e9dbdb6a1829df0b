"""What `phlox tune` tries on an engine: one setting each, that the engine knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import phlox
from phlox.backend import settings
from phlox.backend.settings import Settings
from phlox.cli.tuning.search_space import candidates
from phlox.host.threads import VARIABLES

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


def test_flags_that_are_tried_are_known_to_xla() -> None:
    flags = " ".join(one.xla_flags for one in candidates("jax") if one.xla_flags)
    assert flags and all(word.startswith("--xla_") for word in flags.split())
    program = "import phlox as px; print(px.ones((2,)).tolist())"
    assert run(program, PHLOX_DEVICE="jax", PHLOX_XLA_FLAGS=flags) == "[1.0, 1.0]"


def test_candidates_change_one_setting_each() -> None:
    for engine in ("numpy", "jax", "torch", "stranger"):
        found = candidates(engine, ["--xla_a --xla_b"])
        assert all(len(one.given()) == 1 for one in found) and len(found) == len(set(found))
        assert (Settings(xla_flags="--xla_a --xla_b") in found) is (engine == "jax")
        assert (Settings(torch_codegen="none") in found) is (engine == "torch")
