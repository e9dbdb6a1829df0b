"""Programs that run in several processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import phlox

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PHLOX_", "SLURM_", "OMPI_"))},
    "PYTHONPATH": os.pathsep.join([str(Path(phlox.__path__[0]).parent), str(ROOT)]),
    "JAX_PLATFORMS": "cpu",
}  # fmt: skip


def variables(rank: int, size: int, port: int, run: str = "run") -> dict[str, str]:
    """What `phlox launch` would set."""
    return {
        "PHLOX_COORDINATOR": f"127.0.0.1:{port}", "PHLOX_NUM_PROCESSES": str(size), "PHLOX_PROCESS_ID": str(rank),
        "PHLOX_LOCAL_PROCESS_ID": str(rank), "PHLOX_LOCAL_NUM_PROCESSES": str(size), "PHLOX_RUN": run,
    }  # fmt: skip


def listening() -> set[str]:
    """The addresses on which this process listens, as Linux writes them; empty elsewhere."""
    folder = Path("/proc/self/fd")
    own: set[str] = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            own.add(str(path.readlink()))
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, address, _, state, *_, number = line.split()[:10]
            if state == "0A" and f"socket:[{number}]" in own:
                found.add(address.partition(":")[0])
    return found


LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, as IPv4 and within IPv6, and ::1, as Linux writes them."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def together(
    commands: Sequence[Sequence[object]], *, environments: Sequence[dict[str, str]] | None = None, timeout: float = 90
) -> list[subprocess.CompletedProcess[str]]:
    """Run Python with each of these arguments, at the same time, as one group; no process is left."""
    port, run = free_port(), uuid.uuid4().hex
    if environments is None:
        environments = [variables(rank, len(commands), port, run) for rank in range(len(commands))]
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, command)], env={**ENVIRONMENT, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]  # fmt: skip
    try:
        done: list[subprocess.CompletedProcess[str]] = []
        for process in started:
            out, err = process.communicate(timeout=timeout)
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        return done
    finally:
        for process in started:
            process.kill()
            process.wait()
