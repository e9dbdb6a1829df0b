"""The parent's side of a contestant's process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.workloads import Workload

ROOT = Path(__file__).parents[2]
DECIDED = ("PHLOX_ALLOCATOR", "PHLOX_SETTINGS", "GLIBC_TUNABLES", "JAX_DEFAULT_PRNG_IMPL")
"""Variables that the contestants set: values from the caller's shell would make some contestants equal."""
PATIENCE = 300.0
"""The longest time for an answer, in seconds."""


class Failed(Exception):
    """The contestant could not do it; the message says why."""


class Child:
    """A process that starts at once, receives requests and returns answers.

    With an empty folder as its cache, everything is compiled again, whatever earlier runs have cached.
    """

    command: Sequence[str] = (sys.executable, "-m", "benchmarks.arena.worker")

    def __init__(
        self, contestant: Contestant, workload: Workload, cache: str | None, patience: float | None = None
    ) -> None:
        self.name = contestant.name
        self._patience = PATIENCE if patience is None else patience
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        environment = {
            **{name: value for name, value in os.environ.items() if name not in DECIDED},
            **({} if cache is None else {"TORCHINDUCTOR_CACHE_DIR": cache, "PHLOX_CACHE": f"{cache}/phlox"}),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share an accelerator
            **contestant.environment_for(workload),
        }
        self._process = subprocess.Popen(
            self.command, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._late = False
        given = {"workload": dataclasses.asdict(workload), "library": contestant.library, "variant": contestant.variant}
        self.send("enter", **given)

    def send(self, do: str, **request: Any) -> None:
        """Send a request, without waiting."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` reports it

    def answer(self) -> dict[str, Any]:
        """The answer to the last request; raises `Failed`."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._patience, self._give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise Failed(self._why())
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(do, **request)
        return self.answer()

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _why(self) -> str:
        if self._late:
            return f"no answer in {self._patience:.0f} s"
        code = self._process.wait()
        self._log.seek(0)
        last = deque((line.strip() for line in self._log if line.strip()), 1)
        return f"ended with status {code}" + (f": {last[0][:200]}" if last else "")

    def close(self) -> None:
        """Kill the process. It has nothing to save, and libraries may take seconds to exit normally."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        self._log.close()
