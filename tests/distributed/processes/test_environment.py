from __future__ import annotations

from typing import Any

import pytest

from phlox.backend.processes import Processes
from phlox.distributed.processes.environment import first_host, read_environment, seed_of
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


WRONG = [
    (PHLOX, {"PHLOX_COORDINATOR": "node1:70000"}, "PHLOX_COORDINATOR='node1:70000': '70000' is not a port"),
    (PHLOX, {"PHLOX_COORDINATOR": "node1"}, "PHLOX_COORDINATOR='node1' is not HOST:PORT"),
    (PHLOX, {"PHLOX_PROCESS_ID": "9" * 5000}, "PHLOX_PROCESS_ID='9+' is not a whole number"),
    (PHLOX, {"PHLOX_PROCESS_ID": "١"}, "PHLOX_PROCESS_ID='١' is not a whole number"),
    (PHLOX, {"PHLOX_PROCESS_ID": " "}, "PHLOX_PROCESS_ID=' ' is not a whole number"),
    (PHLOX, {"PHLOX_NUM_PROCESSES": "0"}, "PHLOX_NUM_PROCESSES=0 must be at least 1"),
    (PHLOX, {"PHLOX_NUM_PROCESSES": "99999999"}, "PHLOX_NUM_PROCESSES=99999999 must be at least 1, at most"),
    (PHLOX, {"PHLOX_LOCAL_PROCESS_ID": "2"}, r"this one is 2 of those \(PHLOX_LOCAL_PROCESS_ID\)"),
    (
        PHLOX,
        {"PHLOX_LOCAL_NUM_PROCESSES": "5"},
        r"of 4 processes \(PHLOX_NUM_PROCESSES\), 5 are said to be on this host",
    ),
    (PHLOX, {"PHLOX_ATTEMPT": "first"}, "PHLOX_ATTEMPT='first' is not a whole number"),
    (TORCHRUN, {"MASTER_PORT": "70000"}, "MASTER_PORT='70000': '70000' is not a port, from 1 to 65535"),
    (TORCHRUN, {"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
    (TORCHRUN, {"MASTER_ADDR": "tcp://node1"}, "MASTER_ADDR='tcp://node1': 'tcp://node1' is not the name"),
    (TORCHRUN, {"LOCAL_WORLD_SIZE": "two"}, "LOCAL_WORLD_SIZE='two' is not a whole number"),
    (TORCHRUN, {"RANK": "2"}, "RANK=2 must be at least 0 and less than WORLD_SIZE=2"),
    (TORCHRUN, {"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1' is not a whole number"),
    (
        SLURM,
        {"SLURM_STEP_TASKS_PER_NODE": "many"},
        "SLURM_STEP_TASKS_PER_NODE='many' is not a list of numbers of tasks",
    ),
    (SLURM, {"SLURM_STEP_TASKS_PER_NODE": "0"}, "SLURM_STEP_TASKS_PER_NODE='0' is not a list"),
    (SLURM, {"SLURM_NODEID": "3"}, "SLURM_NODEID=3 is more than there are nodes in SLURM_STEP_TASKS_PER_NODE"),
    (SLURM, {"SLURM_STEP_NODELIST": "gpu 1"}, "SLURM_STEP_NODELIST='gpu 1'"),
    (SLURM, {"MASTER_ADDR": "gpu07"}, "MASTER_PORT is missing beside MASTER_ADDR=gpu07"),
    (OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "x"}, "OMPI_COMM_WORLD_LOCAL_SIZE='x' is not a whole number"),
    (OPEN_MPI, {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://a b:1"}, "OMPI_MCA_orte_hnp_uri="),
    ({}, {"MASTER_PORT": "29500"}, "MASTER_ADDR is missing beside MASTER_PORT=29500"),
    (
        {},
        {"LOCAL_RANK": "1"},
        "torchrun are half set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing beside LOCAL_RANK=1",
    ),
    ({}, {"PHLOX_LISTENER": "5"}, "phlox launch are half set: .* missing beside PHLOX_LISTENER=5"),
]


@pytest.mark.parametrize("environment, change, sentence", WRONG)
def test_what_is_malformed_is_named(environment: dict[str, str], change: dict[str, str], sentence: str) -> None:
    with pytest.raises(DistributedError, match=sentence):
        read_environment(environment | change)


def test_addresses_of_one_host_and_of_ipv6() -> None:
    """What all processes of which are on one host needs no address that others reach."""
    one = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert read_environment(one | {"LOCAL_WORLD_SIZE": "2"}).address == "127.0.0.1:29500"
    found = read_environment(one | {"LOCAL_WORLD_SIZE": "1"})
    assert found.address == "10.0.0.1:29500" and found.spans_hosts
    found = read_environment(one)  # as set by hand
    assert found.address == "10.0.0.1:29500" and not found.spans_hosts
    assert read_environment(one | {"MASTER_ADDR": "::1", "LOCAL_WORLD_SIZE": "2"}).address == "[::1]:29500"
    assert read_environment(one | {"MASTER_ADDR": "[fd00::2]"}).address == "[fd00::2]:29500"
    uri = "1531576320.0;tcp6://[fd00::2]:34911"
    assert read_environment(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": uri}).address.startswith("[fd00::2]:")
    many = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x9999999),3", "SLURM_NODEID": "9999998"}
    assert read_environment(many).local_size == 2


def test_what_says_where_process_0_is() -> None:
    both = {"MASTER_ADDR": "gpu07", "MASTER_PORT": "6000"}
    assert read_environment(PHLOX).named == "PHLOX_COORDINATOR=10.0.0.1:9000"
    assert read_environment(TORCHRUN).named == "MASTER_ADDR=localhost, MASTER_PORT=29500"
    assert read_environment(SLURM | both).named == "MASTER_ADDR=gpu07, MASTER_PORT=6000"
    assert "SLURM_STEP_NODELIST=gpu[07-08,11]" in read_environment(SLURM).named


def test_the_seed_of_a_launch() -> None:
    assert seed_of({"PHLOX_SEED": "18446744073709551615"}) == 2**64 - 1 and seed_of({}) is None
    for wrong in ("x", "-1", "1.5", str(2**64)):
        with pytest.raises(DistributedError, match="PHLOX_SEED="):
            seed_of({"PHLOX_SEED": wrong})


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
