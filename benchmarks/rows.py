"""`python -m benchmarks.rows MODULE FUNCTION FILE`: the rows of a benchmark, made in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Ratio, why

ROOT = Path(__file__).parents[1]
OURS = "Phlox"
"""Who has failed, if that is not the import of another library."""


def rows_of(module: str, function: str = "run", environment: Mapping[str, str] | None = None) -> list[Ratio]:
    """What the function returns in a new process; one row without figures if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.rows", module, function, str(file)]
        done = subprocess.run(command, check=False, env={**os.environ, **(environment or {})}, cwd=ROOT)
        if not file.exists():
            return [Ratio.without_figures(module, OURS, "", OURS, f"it ended with status {done.returncode}")]
        return [Ratio(**row) for row in json.loads(file.read_text(encoding="utf-8"))]


def output_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a process prints; an error with the last line of its own if it fails."""
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return done.stdout


def main(module: str, function: str, file: str) -> None:
    """Write the rows."""
    try:
        rows = getattr(importlib.import_module(module), function)()
    except Exception as error:
        traceback.print_exc()
        name = (getattr(error, "name", None) if isinstance(error, ImportError) else None) or OURS
        peer = "" if name.partition(".")[0] in (OURS, "phlox", "benchmarks") else name.partition(".")[0]
        rows = [Ratio.without_figures(module, OURS, peer, peer or OURS, why(error))]
    Path(file).write_text(json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
