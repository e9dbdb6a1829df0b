"""Programs in several processes of one group, each of which has a limit, and none of which stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_group(count: int, folder: Path, program: str, *arguments: str, limit: float = 240.0) -> list[str]:
    """What the processes write that run the text of a program; what goes wrong in one is the assertion's text.

    `sys.argv` has the rank, the count and a path through which they find each other before the arguments.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    running: list[subprocess.Popen[bytes]] = []
    files = [(folder / f"out-{rank}", folder / f"err-{rank}") for rank in range(count)]
    try:
        for rank, (out, err) in enumerate(files):
            with out.open("w") as to_out, err.open("w") as to_err:
                command = [sys.executable, "-c", program, str(rank), str(count), str(folder / "meeting"), *arguments]
                running.append(subprocess.Popen(command, stdout=to_out, stderr=to_err, cwd=_ROOT, env=environment))
        for process in running:
            process.wait(limit)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    for rank, (process, (_, err)) in enumerate(zip(running, files, strict=True)):
        assert process.returncode == 0, f"process {rank} ended with {process.returncode}:\n{err.read_text()[-4000:]}"
    return [out.read_text() for out, _ in files]
