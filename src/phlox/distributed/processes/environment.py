"""The launcher, rank and number of processes, read from the environment variables of the launchers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from phlox.backend.addresses import LOOPBACK, check_host, check_port, is_loopback, join_address, split_address
from phlox.backend.processes import Processes
from phlox.errors import DistributedError

Environment: TypeAlias = Mapping[str, str]

COORDINATOR = "PHLOX_COORDINATOR"
"""The variable with the host:port of process 0's store. It may be set beside the variables of another launcher."""
LISTENER = "PHLOX_LISTENER"
"""The environment variable with the number of the open socket on which process 0 keeps the store."""
SEED = "PHLOX_SEED"
"""The environment variable with the seed of a launch, for programs that give none."""
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_MOST_PROCESSES = 1 << 20


@dataclass(frozen=True, slots=True)
class Launcher:
    """The variables with which a launcher describes a process."""

    name: str
    rank: str
    size: str
    needs: tuple[str, ...]
    """Further variables that it always sets: if one of them is missing, its variables are incomplete."""
    marks: tuple[str, ...]
    """If any of these is set, this launcher started the process, or the user set them for it."""
    address: Callable[[Environment], str]
    """The variable with the address of process 0's store; "" if process 0 has to publish it."""
    run: tuple[str, ...]
    """The variables whose values together are the name of the launch."""
    local_rank: str
    local_size: Callable[[Environment], int | None]
    """The number of processes on this host; None if the launcher does not say."""
    attempt: str = ""

    def missing(self, environment: Environment) -> list[str]:
        """The variables that are not set, or are empty."""
        return [name for name in (self.rank, self.size, *self.needs) if not environment.get(name)]

    def read(self, environment: Environment) -> Processes:
        """The process that these variables describe."""
        size = _required(environment, self.size, 1, _MOST_PROCESSES)
        rank = _required(environment, self.rank, 0)
        if rank >= size:
            raise DistributedError(
                f"{self.name}: {self.rank}={rank} must be at least 0 and less than {self.size}={size}"
            )
        local_size = 1 if size == 1 else self.local_size(environment)
        local_rank = 0 if size == 1 else _whole_number(environment, self.local_rank, 0)
        if local_size is not None and not (local_rank or 0) < local_size <= size:
            raise DistributedError(
                f"{self.name}: of {size} processes ({self.size}), {local_size} are said to be on this host, and this "
                f"one is {local_rank or 0} of those ({self.local_rank}), counted from 0; correct these variables"
            )
        address = "" if size == 1 else self._address(environment)
        if local_size == size and address and not is_loopback(split_address(address)[0]):
            address = join_address(LOOPBACK, split_address(address)[1])  # no other host connects
        return Processes(
            rank=rank,
            size=size,
            local_rank=local_rank or 0,
            local_size=max(local_size or 1, (local_rank or 0) + 1),
            address=address,
            attempt=_whole_number(environment, self.attempt, 0) or 0,
            run=".".join(filter(None, (environment.get(name) for name in self.run))),
            launcher=self.name,
            spans_hosts=local_size is not None and local_size < size,
            named=", ".join(
                f"{name}={environment[name]}" for name in self._address_variables(environment) if environment.get(name)
            ),
        )

    def _address_variables(self, environment: Environment) -> tuple[str, ...]:
        if environment.get(COORDINATOR):
            return (COORDINATOR,)
        return _MASTER if environment.get(_MASTER[0]) else self.needs

    def _address(self, environment: Environment) -> str:
        if text := environment.get(COORDINATOR):
            return join_address(*split_address(text.strip(), COORDINATOR))
        return self.address(environment)


def _whole_number(environment: Environment, variable: str, least: int, most: int | None = None) -> int | None:
    """A whole number, or None if the variable is not set."""
    text = environment.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise DistributedError(f"{variable}={text!r} is not a whole number; set it right, or start by its launcher")
    if int(text) < least or (most is not None and int(text) > most):
        raise DistributedError(f"{variable}={text} must be at least {least}" + (f", at most {most}" if most else ""))
    return int(text)


def _required(environment: Environment, variable: str, least: int, most: int | None = None) -> int:
    number = _whole_number(environment, variable, least, most)
    if number is None:  # blanks
        raise DistributedError(f"{variable}={environment[variable]!r} is not a whole number")
    return number


def seed_of(environment: Environment) -> int | None:
    """The seed of the launch, or None."""
    return _whole_number(environment, SEED, 0, (1 << 64) - 1)


def _as_given(environment: Environment) -> str:
    raise AssertionError("PHLOX_COORDINATOR is one of the variables that it needs")


def _of_torch(environment: Environment) -> str:
    address = _of_master(environment)
    # torchrun's own store already listens on this port; process 0 publishes another port through it.
    return "" if environment.get("TORCHELASTIC_RUN_ID") else address


def _of_master(environment: Environment) -> str:
    host, port = environment["MASTER_ADDR"].strip(), environment["MASTER_PORT"].strip()
    host = check_host(host.removeprefix("[").removesuffix("]"), f"MASTER_ADDR={host!r}")
    return join_address(host, check_port(port, f"MASTER_PORT={port!r}"))


def _of_slurm(environment: Environment) -> str:
    if _has_master(environment):  # many job scripts set them
        return _of_master(environment)
    nodes = environment["SLURM_STEP_NODELIST"]
    host = check_host(first_host(nodes), f"SLURM_STEP_NODELIST={nodes!r}")
    return f"{host}:{port_of(environment['SLURM_JOB_ID'], environment['SLURM_STEP_ID'])}"


def _has_master(environment: Environment) -> bool:
    """Are MASTER_ADDR and MASTER_PORT set? One of them alone is an error."""
    missing = [name for name in _MASTER if not environment.get(name)]
    if len(missing) == 1:
        (present,) = set(_MASTER) - set(missing)
        raise DistributedError(
            f"{missing[0]} is missing beside {present}={environment[present]}: they are the address of process 0; set "
            "both, or none"
        )
    return not missing


def _of_open_mpi(environment: Environment) -> str:
    names = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid")
    job = [environment.get(name, "") for name in names]
    if not any(job):
        raise DistributedError(
            f"Open MPI: none of {', '.join(names)} says which job this is; set {COORDINATOR}=HOST:PORT, the host of "
            "process 0 and a free port there (mpirun -x passes it on)"
        )
    if environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["OMPI_COMM_WORLD_SIZE"]:
        return f"{LOOPBACK}:{port_of(*job)}"
    host = re.search(r"tcp6?://\[?([^,\]]+?)(?:\]|,|:\d+$|:\d+;)", environment.get("OMPI_MCA_orte_hnp_uri", ""))
    if host is None:
        raise DistributedError(
            f"Open MPI does not say on which host process 0 runs; set {COORDINATOR}=HOST:PORT (mpirun -x passes it on)"
        )
    return join_address(check_host(host[1], f"OMPI_MCA_orte_hnp_uri={host[0]!r}"), port_of(*job))


def first_host(nodes: str) -> str:
    """The first host of a list in SLURM's notation.

    >>> first_host("gpu[007-012,020],login")
    'gpu007'
    >>> first_host("a[1-2]-ib[3,4].net")
    'a1-ib3.net'
    """
    match = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", match[0] if match else nodes)


def port_of(*job: str) -> int:
    """A port that all processes of a job compute alike, below the ports that systems give to connections."""
    return 10_000 + int.from_bytes(hashlib.sha256("/".join(job).encode()).digest()[:4]) % 22_000


def _count_in(variable: str) -> Callable[[Environment], int | None]:
    return lambda environment: _whole_number(environment, variable, 1, _MOST_PROCESSES)


def _tasks_here(environment: Environment) -> int | None:
    """The tasks on this node, from a list such as `4(x2),3`."""
    variable = "SLURM_STEP_TASKS_PER_NODE"
    if not (text := environment.get(variable)):
        return None
    node = after = _whole_number(environment, "SLURM_NODEID", 0) or 0
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d{0,6})(?:\(x([1-9]\d{0,6})\))?", part.strip(), re.ASCII)
        if match is None:
            raise DistributedError(f"{variable}={text!r} is not a list of numbers of tasks, such as 4(x2),3")
        after -= int(match[2] or 1)
        if after < 0:
            return int(match[1])
    raise DistributedError(f"SLURM_NODEID={node} is more than there are nodes in {variable}={text}, counted from 0")


LAUNCHERS = (
    Launcher(
        "phlox launch",
        rank="PHLOX_PROCESS_ID",
        size="PHLOX_NUM_PROCESSES",
        needs=(COORDINATOR,),
        marks=("PHLOX_PROCESS_ID", "PHLOX_NUM_PROCESSES", COORDINATOR, LISTENER, "PHLOX_LOCAL_PROCESS_ID"),
        address=_as_given,
        run=("PHLOX_RUN",),
        local_rank="PHLOX_LOCAL_PROCESS_ID",
        local_size=_count_in("PHLOX_LOCAL_NUM_PROCESSES"),
        attempt="PHLOX_ATTEMPT",
    ),
    Launcher(
        "torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        needs=("MASTER_ADDR", "MASTER_PORT"),
        marks=("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        address=_of_torch,
        run=("TORCHELASTIC_RUN_ID",),
        local_rank="LOCAL_RANK",
        local_size=_count_in("LOCAL_WORLD_SIZE"),
        attempt="TORCHELASTIC_RESTART_COUNT",
    ),
    Launcher(
        "Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        needs=("OMPI_COMM_WORLD_LOCAL_RANK",),
        marks=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        address=_of_open_mpi,
        run=("PMIX_NAMESPACE",),
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size=_count_in("OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    # Only a step's variables: SLURM_NTASKS and SLURM_PROCID are also set in the job script, which is one process.
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
"""The launchers; a launcher that may run inside another comes first."""


def read_environment(environment: Environment | None = None) -> Processes:
    """The process that the first launcher with complete variables describes; a single process if there is none.

    Raises `DistributedError`, which names the variables, if a launcher's are incomplete or have a wrong value.

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
            values = ", ".join(f"{name}={environment[name]}" for name in present)
            raise DistributedError(
                f"the variables of {launcher.name} are half set: {', '.join(missing)} missing "
                f"beside {values}; set all, or none for a program of one process"
            )
    _has_master(environment)
    return Processes()
