from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import phlox

SMALL = '{"model": {"channels": [2, 3]}, "epochs": 2, "batch_size": 256}'
"""A recipe that takes no time."""

ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(Path(phlox.__path__[0]).parent), "OPENBLAS_NUM_THREADS": "1", "TERM": "xterm",
}  # fmt: skip


def run(*arguments: object, before: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`phlox ARGUMENTS` in a process of its own, after the statements `before`."""
    code = f"import sys\n{before}\nfrom phlox.cli import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )
