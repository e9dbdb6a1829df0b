from __future__ import annotations

from typing import Any

import pytest

from phlox.backend.processes import Processes
from phlox.distributed.processes.environment import first_host, read_environment
from phlox.errors import DistributedError

PHLOX = {
    "PHLOX_COORDINATOR": "10.0.0.1:9000", "PHLOX_NUM_PROCESSES": "4", "PHLOX_PROCESS_ID": "3",
    "PHLOX_LOCAL_PROCESS_ID": "1", "PHLOX_LOCAL_NUM_PROCESSES": "2", "PHLOX_ATTEMPT": "2", "PHLOX_RUN": "abc",
}  # fmt: skip
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1",
}  # fmt: skip
SLURM_SCRIPT = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SLURM = SLURM_SCRIPT | {
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08,11]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}  # fmt: skip


def test_a_process_alone() -> None:
    assert read_environment({}) == Processes()
    assert read_environment({"PHLOX_NUM_PROCESSES": ""}) == Processes()
    assert read_environment(SLURM_SCRIPT) == Processes()  # the job script is one process, whatever SLURM_NTASKS says


def test_phlox_launch() -> None:
    assert read_environment(PHLOX) == Processes(3, 4, 1, 2, "10.0.0.1:9000", 2, "abc", "phlox launch")


def test_torchrun() -> None:
    # Its own store listens on MASTER_PORT.
    assert read_environment(TORCHRUN) == Processes(1, 2, 1, 2, "", 1, "none", "torchrun")
    plain = {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name}
    assert read_environment(plain).address == "localhost:29500"


def test_a_step_of_slurm() -> None:
    found = read_environment(SLURM)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (5, 7, 1, 2)
    assert found.address.startswith("gpu07:") and found.launcher == "SLURM"
    others = [read_environment(SLURM | {"SLURM_PROCID": str(rank)}) for rank in range(7)]
    assert {one.address for one in others} == {found.address} and {one.run for one in others} == {"77.0"}
    assert read_environment(SLURM | {"SLURM_JOB_ID": "78"}).address != found.address
    script = {"MASTER_ADDR": "gpu07", "MASTER_PORT": "6000", "WORLD_SIZE": "7"}  # as job scripts export them
    assert read_environment(SLURM | script).address == "gpu07:6000"
    assert read_environment(SLURM | {"PHLOX_COORDINATOR": "gpu07:7000"}).address == "gpu07:7000"
    alone = SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert read_environment(alone).size == 1  # an interactive shell


def test_open_mpi() -> None:
    found = read_environment(OPEN_MPI)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (2, 4, 0, 2)
    assert found.address.startswith("10.96.0.1:")
    assert read_environment(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).address.startswith("127.0.0.1:")
    del (unknown := dict(OPEN_MPI))["OMPI_MCA_orte_hnp_uri"]
    with pytest.raises(DistributedError, match="on which host process 0 runs; set PHLOX_COORDINATOR"):
        read_environment(unknown)
    assert read_environment(unknown | {"PHLOX_COORDINATOR": "a:1"}).address == "a:1"


def test_the_launcher_inside_comes_first() -> None:
    assert read_environment(SLURM | OPEN_MPI | TORCHRUN | PHLOX).launcher == "phlox launch"
    assert read_environment(SLURM | TORCHRUN).launcher == "torchrun"
    assert read_environment(SLURM | OPEN_MPI).launcher == "Open MPI"


NEEDED = [
    *((PHLOX, name) for name in ("PHLOX_COORDINATOR", "PHLOX_NUM_PROCESSES", "PHLOX_PROCESS_ID")),
    *((TORCHRUN, name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")),
    *((SLURM, name) for name in ("SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS")),
    *((OPEN_MPI, name) for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")),
]


@pytest.mark.parametrize("environment, missing", NEEDED)
def test_half_set_variables_are_named(environment: dict[str, str], missing: str) -> None:
    some = {name: value for name, value in environment.items() if name != missing}
    with pytest.raises(DistributedError, match=f"half set: {missing} missing beside"):
        read_environment(some)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"PHLOX_PROCESS_ID": "4"}, "PHLOX_PROCESS_ID=4 must be at least 0 and less than PHLOX_NUM_PROCESSES=4"),
        ({"PHLOX_PROCESS_ID": "one"}, "PHLOX_PROCESS_ID='one' is not a whole number"),
        ({"PHLOX_NUM_PROCESSES": "-2"}, "PHLOX_NUM_PROCESSES='-2' is not a whole number"),
    ],
)
def test_wrong_values_are_named(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(DistributedError, match=sentence):
        read_environment(PHLOX | change)


@pytest.mark.parametrize(
    "nodes, first",
    [("n1", "n1"), ("n1,n2", "n1"), ("n[01-04]", "n01"), ("n[3,5-7],m", "n3"), ("a[1-2]b[08-09].x", "a1b08.x")],
)
def test_the_first_host_of_a_list(nodes: str, first: Any) -> None:
    assert first_host(nodes) == first
