"""One run of a program with certain settings, in a new process."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import phlox
from phlox.backend.settings import Settings, environment_before

FAILED = 3
"""The exit status of the process if the program raised an error, which is the last line on standard error."""


@dataclass(frozen=True, slots=True)
class Program:
    """The Python file to run, its arguments, how long its steps are measured, and the time limit of a run."""

    script: str
    arguments: Sequence[str]
    seconds: float
    limit: float


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a run."""

    problem: str | None = None
    """Why nothing was measured; the other fields are then empty. None if it was."""
    step: str | None = None
    """The function whose calls are the steps; None if no step was detected."""
    windows: Sequence[float] = field(default_factory=list[float])
    """The seconds per step, in order; if no step was detected, the seconds of the whole program."""
    value: float | None = None
    """The loss of the first step, or another number that tells whether the same was computed."""
    device: str = ""
    peak_memory: int | None = None

    @property
    def seconds(self) -> float:
        """The median of the seconds per step."""
        return math.inf if self.problem else statistics.median(self.windows)


def run(program: Program, settings: Settings, step: str | None) -> Trial:
    """Run the program with these settings on top of the environment, and measure `step`, or a detected step if None."""
    environment = {**environment_before(), **settings.variables()}
    # Use the Phlox that this process imported, and import nothing from the current folder (-P).
    sources = [str(Path(phlox.__path__[0]).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sources))
    with tempfile.TemporaryDirectory(prefix="phlox-tune-") as folder, tempfile.TemporaryFile() as errors:
        report = Path(folder) / "report.json"
        command = [
            sys.executable, "-P", "-m", "phlox.cli.tuning.child", str(report), str(program.seconds), step or "",
            program.script, *program.arguments,
        ]  # fmt: skip
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                status = process.wait(program.limit)
            except subprocess.TimeoutExpired:
                return Trial(f"its steps were not measured within {program.limit:g} s")
            finally:
                _end(process)
        if not report.exists():
            return Trial(_problem(status, errors))
        return Trial(**json.loads(report.read_text(encoding="utf-8")))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all processes that it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its own group, which exists while one of its processes runs
        except (ProcessLookupError, PermissionError):
            pass
    if process.poll() is None:
        process.kill()


def _problem(status: int, errors: IO[bytes]) -> str:
    """Why a process ended without a report."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        unknown = next((line for line in lines if "Unknown flag" in line), None)
        return f"crashed ({name}): unknown XLA flag" if unknown else f"crashed ({name})"
    if status == FAILED:
        return last or "the program failed"
    return f"ended with status {status}" + (f": {last}" if last else "")
