"""Programs that run where XLA shows the processor as several devices, which a process has to ask for at its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def check_on_devices(count: int, program: str, *arguments: str, flags: str = "") -> None:
    """Runs the text of a program in a process with so many devices; what goes wrong there is the assertion's text.

    `flags` are more of XLA's.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    xla = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count} {flags}"
    settings = {"XLA_FLAGS": xla, "NPROC": "32", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=700,
        cwd=_ROOT,
        env={**os.environ, **settings, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
