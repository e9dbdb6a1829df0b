"""What a training costs beside its steps: `fit` against a loop by hand, Keras and Lightning; loading; checkpoints.

Each part runs in a process of its own. A peer that is not installed is left out, and a sentence on stderr says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Ratio

PARTS = ("fitting", "loading", "checkpoints")
"""The modules with the rows. `loading` imports no JAX, which does not go with the processes of its peer."""


def run() -> list[Ratio]:
    """All rows."""
    return [row for part in PARTS for row in _rows(part)]


def _rows(part: str) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        subprocess.run([sys.executable, "-m", "benchmarks.training", part, str(file)], check=True)
        return [Ratio(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
