"""The launcher, rank and number of processes, read from the environment variables of the launchers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from phlox.backend.processes import Processes
from phlox.errors import DistributedError

Environment: TypeAlias = Mapping[str, str]

COORDINATOR = "PHLOX_COORDINATOR"
"""The variable with the host:port of process 0's store. It may be set beside the variables of another launcher."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The variables with which a launcher describes a process."""

    name: str
    rank: str
    size: str
    needs: tuple[str, ...]
    """Further variables that it always sets: if one is missing, the variables are half set."""
    marks: tuple[str, ...]
    """If any of these is set, this launcher started the process, or is meant."""
    address: Callable[[Environment], str]
    """The variable with the address of process 0's store; "" if process 0 has to publish it."""
    run: tuple[str, ...]
    """The variables that together are the name of the launch."""
    local_rank: str = ""
    local_size: Callable[[Environment], int] = field(default=lambda environment: 1)
    attempt: str = ""

    def missing(self, environment: Environment) -> list[str]:
        """The variables that are not set, or are empty."""
        return [name for name in (self.rank, self.size, *self.needs) if not environment.get(name)]

    def read(self, environment: Environment) -> Processes:
        """The process that these variables describe."""
        rank, size = self._number(environment, self.rank), self._number(environment, self.size)
        local_rank = self._number(environment, self.local_rank) if environment.get(self.local_rank) else 0
        local_size = self.local_size(environment)
        attempt = self._number(environment, self.attempt) if environment.get(self.attempt) else 0
        if not 0 <= rank < size:
            raise DistributedError(
                f"{self.name}: {self.rank}={rank} must be at least 0 and less than {self.size}={size}"
            )
        address = "" if size == 1 else environment.get(COORDINATOR) or self.address(environment)
        return Processes(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=max(local_size, local_rank + 1),
            address=address,
            attempt=attempt,
            run=".".join(filter(None, (environment.get(name) for name in self.run))),
            launcher=self.name,
        )

    def _number(self, environment: Environment, variable: str) -> int:
        text = environment[variable]
        if not text.isdecimal():
            raise DistributedError(f"{self.name}: {variable}={text!r} is not a whole number")
        return int(text)


def _as_given(environment: Environment) -> str:
    return environment[COORDINATOR]


def _of_torch(environment: Environment) -> str:
    # torchrun's own store listens on this port already; process 0 then tells another one through it.
    if environment.get("TORCHELASTIC_RUN_ID"):
        return ""
    return f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"


def _of_slurm(environment: Environment) -> str:
    if environment.get("MASTER_ADDR") and environment.get("MASTER_PORT"):  # many job scripts set them
        return f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    host = first_host(environment["SLURM_STEP_NODELIST"])
    return f"{host}:{port_of(environment['SLURM_JOB_ID'], environment['SLURM_STEP_ID'])}"


def _of_open_mpi(environment: Environment) -> str:
    names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid")
    job = [environment.get(name, "") for name in names]
    if not any(job):
        raise DistributedError(
            f"Open MPI: none of {', '.join(names)} says which job this is; set {COORDINATOR}=HOST:PORT, the host of "
            "process 0 and a free port there (mpirun -x passes it on)"
        )
    if environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["OMPI_COMM_WORLD_SIZE"]:
        return f"127.0.0.1:{port_of(*job)}"
    host = re.search(r"tcp://([^,:]+)", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    if host is None:
        raise DistributedError(
            f"Open MPI does not say on which host process 0 runs; set {COORDINATOR}=HOST:PORT (mpirun -x passes it on)"
        )
    return f"{host[1]}:{port_of(*job)}"


def first_host(nodes: str) -> str:
    """The first host of a list as SLURM writes it.

    >>> first_host("gpu[007-012,020],login")
    'gpu007'
    >>> first_host("a[1-2]-ib[3,4].net")
    'a1-ib3.net'
    """
    found = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found[0] if found else nodes)


def port_of(*job: str) -> int:
    """A port that all processes of a job compute alike, below those that systems give to connections."""
    return 10_000 + int.from_bytes(hashlib.sha256("/".join(job).encode()).digest()[:4]) % 22_000


def _whole(variable: str) -> Callable[[Environment], int]:
    return lambda environment: int(environment.get(variable) or 1)


def _tasks_here(environment: Environment) -> int:
    """The tasks on this node, from a list such as `4(x2),3`."""
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        counts += [int(found[1])] * int(found[2] or 1) if found else [1]
    node = int(environment.get("SLURM_NODEID") or 0)
    return counts[node] if node < len(counts) else 1


LAUNCHERS = (
    Launcher(
        "phlox launch",
        rank="PHLOX_PROCESS_ID",
        size="PHLOX_NUM_PROCESSES",
        needs=(COORDINATOR,),
        marks=("PHLOX_PROCESS_ID", "PHLOX_NUM_PROCESSES", COORDINATOR),
        address=_as_given,
        run=("PHLOX_RUN",),
        local_rank="PHLOX_LOCAL_PROCESS_ID",
        local_size=_whole("PHLOX_LOCAL_NUM_PROCESSES"),
        attempt="PHLOX_ATTEMPT",
    ),
    Launcher(
        "torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        needs=("MASTER_ADDR", "MASTER_PORT"),
        marks=("RANK", "WORLD_SIZE"),
        address=_of_torch,
        run=("TORCHELASTIC_RUN_ID",),
        local_rank="LOCAL_RANK",
        local_size=_whole("LOCAL_WORLD_SIZE"),
        attempt="TORCHELASTIC_RESTART_COUNT",
    ),
    Launcher(
        "Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        needs=("OMPI_COMM_WORLD_LOCAL_RANK",),
        marks=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        address=_of_open_mpi,
        run=("PMIX_NAMESPACE",),
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size=_whole("OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    # Of a step alone: SLURM_NTASKS and SLURM_PROCID are set in the job script too, which is one process.
    Launcher(
        "SLURM",
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        needs=("SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"),
        marks=("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"),
        address=_of_slurm,
        run=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        local_rank="SLURM_LOCALID",
        local_size=_tasks_here,
        attempt="SLURM_RESTART_COUNT",
    ),
)
"""The launchers, first those that may run inside another."""


def read_environment(environment: Environment | None = None) -> Processes:
    """Which process this is, by the first launcher whose variables are all set; a single process if there is none.

    Raises `DistributedError`, which names the missing variables, if those of a launcher are half set.

    >>> read_environment({"PHLOX_COORDINATOR": "127.0.0.1:9000", "PHLOX_PROCESS_ID": "1"})
    Traceback (most recent call last):
    phlox.errors.DistributedError: the variables of phlox launch are half set: PHLOX_NUM_PROCESSES missing beside ...
    """
    environment = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        if not launcher.missing(environment):
            return launcher.read(environment)
    for launcher in LAUNCHERS:
        present = [name for name in launcher.marks if environment.get(name)]
        if present:
            missing = launcher.missing(environment)
            there = ", ".join(f"{name}={environment[name]}" for name in present)
            raise DistributedError(
                f"the variables of {launcher.name} are half set: {', '.join(missing)} missing "
                f"beside {there}; set all, or none for a program of one process"
            )
    return Processes()
