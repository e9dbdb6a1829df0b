"""Processes that become one group, and those that do not fit together.

Serves: phlox/distributed/processes/agreement.py, phlox/backend/jax/processes.py, phlox/backend/torch/processes.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import phlox as px
from phlox.backend.addresses import address_towards
from phlox.distributed.processes import group
from phlox.errors import DistributedError
from tests.distributed.support import ENVIRONMENT, ROOT, free_port, together, variables

PROGRAM = ROOT / "tests" / "distributed" / "group_program.py"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("PHLOX_COORDINATOR", "RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    before = px.random.state()
    group.shutdown()
    yield
    group.shutdown()
    px.random.restore(before)


@pytest.mark.usefixtures("alone")
def test_alone_it_does_nothing_but_seed() -> None:
    px.random.seed(5)
    before = px.random.state()
    px.distributed.initialize()
    assert px.random.state() == before
    px.distributed.shutdown()
    px.distributed.initialize(seed=7, device="jax")
    seeded = px.random.state()
    px.random.seed(7)
    assert px.random.state() == seeded
    px.distributed.barrier("x")
    px.distributed.check_agreement(x=object())
    assert (px.distributed.rank(), px.distributed.size(), px.distributed.is_main()) == (0, 1, True)


@pytest.mark.usefixtures("alone")
def test_a_second_call_seeds_again_in_a_process_alone() -> None:
    drawn: list[float] = []
    for seed in (7, 7, 8):  # as when a cell of a notebook is run again
        px.distributed.initialize(seed=seed)
        drawn.append(px.random.uniform(()).item())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.usefixtures("alone")
def test_half_set_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(DistributedError, match="torchrun are half set: WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing"):
        px.distributed.initialize()


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["jax"], ["torch", "shutdown"], ["numpy"]])
def test_two_processes_are_a_group(arguments: list[str]) -> None:
    for done in together([[PROGRAM, *arguments]] * 2):
        assert done.returncode == 0 and "all is well" in done.stdout, done.stderr


SAYS = """
import sys
import phlox as px
{before}
try:
    px.distributed.initialize({given})
except px.errors.DistributedError as error:
    print(error)
"""


def script(folder: Path, before: str = "", given: str = "timeout=30") -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(SAYS.format(before=before, given=given))
    return folder / "train.py"


MISFITS = {
    "scripts": ([("pass", "timeout=30"), ("...", "timeout=30")], "content of train.py is"),
    "seeds": ([("s = 1", "s"), ("s = 2", "s")], "the seed given to initialize is 1 in process 0; 2 in process 1"),
    "versions": (
        [("", "timeout=30"), ("import numpy; numpy.__version__ = '1.0'", "timeout=30")],
        "; '1.0' in process 1",
    ),
    "arguments": ([("", "timeout=30"), ("sys.argv.append('--lr')", "timeout=30")], "command line is"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_processes_that_do_not_fit_together(case: str, tmp_path: Path) -> None:
    programs, sentence = MISFITS[case]
    paths = [script(tmp_path / str(rank), *program) for rank, program in enumerate(programs)]
    for done in together([[path] for path in paths]):
        assert "do not fit together" in done.stdout and sentence in done.stdout, done.stderr


@pytest.mark.full
def test_different_numbers_of_devices(tmp_path: Path) -> None:
    path = script(tmp_path / "a", given="device='jax', timeout=60")
    port = free_port()
    environments = [
        {**variables(rank, 2, port), "XLA_FLAGS": f"--xla_force_host_platform_device_count={rank + 1}", "NPROC": "32"}
        for rank in range(2)
    ]
    for done in together([[path]] * 2, environments=environments):
        assert "the number of devices of a process is 1 in process 0; 2 in process 1" in done.stdout, done.stderr


SECRETS = ["0123456789abcdef-1", "0123456789abcdef-2"]
JOINS: dict[str, tuple[list[dict[str, str]], list[str]]] = {
    # what the variables of two processes have instead of those of `variables`, and what each process prints
    "IPv6": ([{"PHLOX_COORDINATOR": "[::1]:{port}"}] * 2, ["joined", "joined"]),
    "an address of this host": ([{"PHLOX_COORDINATOR": "{own}:{port}"}] * 2, ["joined", "joined"]),
    "one secret": ([{"PHLOX_SECRET": SECRETS[0]}] * 2, ["joined", "joined"]),
    "two secrets": ([{"PHLOX_SECRET": one} for one in SECRETS], ["process 1 never came", "the same in all"]),
    "a secret for one": ([{"PHLOX_SECRET": SECRETS[0]}, {}], ["process 1 never came", "was not given the secret"]),
    "another host": (
        [{"PHLOX_LOCAL_NUM_PROCESSES": "1", "PHLOX_LOCAL_PROCESS_ID": "0", "TMPDIR": "{folder}"}, {}],
        ["process 1 never came", "set PHLOX_SECRET, to the same in all of them: export PHLOX_SECRET="],
    ),
    "no such name": (
        [{"PHLOX_COORDINATOR": "no-such-host.invalid:{port}", "PHLOX_LOCAL_NUM_PROCESSES": ""}] * 2,
        [
            "the name 'no-such-host.invalid' does not resolve",
            "does the name exist there? (it was named by PHLOX_COORDINATOR=no-such-host.invalid",
        ],
    ),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.endswith((" secret", " secrets")) else pytest.mark.full) for case in JOINS],
)
def test_who_joins_and_who_does_not(case: str, tmp_path: Path) -> None:
    program = """
import sys
sys.path.insert(0, {root!r})
from tests.distributed.support import listening
import phlox as px
try:
    px.distributed.initialize(timeout=3)
except px.errors.DistributedError as error:
    print(error)
else:
    assert not listening() & {{"00000000", 32 * "0"}}
    px.distributed.barrier()
    print("joined")
"""
    changes, printed = JOINS[case]
    own = address_towards("192.0.2.1") or "127.0.0.1"
    given = {"port": free_port(), "own": own, "folder": tmp_path}
    environments = [
        variables(rank, 2, given["port"]) | {name: value.format(**given) for name, value in change.items()}
        for rank, change in enumerate(changes)
    ]
    for done, sentence in zip(
        together([["-c", program.format(root=str(ROOT))]] * 2, environments=environments), printed, strict=True
    ):
        assert sentence in done.stdout and not done.stderr, (done.stdout, done.stderr)
        assert not any(secret in done.stdout for secret in SECRETS)


def test_what_sys_exit_raises_may_be_caught() -> None:
    program = """
import sys
import phlox as px
px.distributed.initialize(timeout=30)
def main():
    try:
        sys.exit(3 * (1 - px.distributed.rank()))
    except SystemExit:
        pass
    px.distributed.barrier()
main()
print("all is well")
"""
    for done in together([["-c", program]] * 2):
        assert done.returncode == 0 and "all is well" in done.stdout and not done.stderr, done.stderr


@pytest.mark.usefixtures("alone")
def test_a_listener_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a socket that another process had, or of something else that is open here."""
    with socket.socket() as silent, socket.create_server(("", 0)) as everywhere, TemporaryFile() as file:
        for number in ("77", "x", "-1", "9" * 30, silent.fileno(), everywhere.fileno(), file.fileno()):
            for name, value in {**variables(0, 2, 29999), "PHLOX_LISTENER": str(number)}.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(
                DistributedError, match=f"PHLOX_LISTENER='{number}' is not the number of an open socket"
            ):
                px.distributed.initialize(timeout=3)
        for one in (silent, everywhere, file):
            os.fstat(one.fileno())  # it is still open


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(DistributedError, match="must be a number of seconds above 0"):
        px.distributed.initialize(timeout=timeout)


@pytest.mark.full
def test_one_that_does_not_come_is_named(tmp_path: Path) -> None:
    path = script(tmp_path / "a", given="timeout=4")
    environments = [variables(rank, 3, port := free_port()) for rank in range(2)]
    environments = [{**each, "PHLOX_COORDINATOR": f"127.0.0.1:{port}"} for each in environments]
    for done in together([[path]] * 2, environments=environments):
        assert "process 2 never came to the group" in done.stdout, done.stderr
    alone = together([[path]], environments=[variables(1, 2, free_port())])[0]
    assert "process 1 has waited 4 s for process 0 at 127.0.0.1" in alone.stdout


@pytest.mark.full
def test_jax_that_was_used_before() -> None:
    program = """
import phlox as px
px.ones((1,), device="jax")
try:
    px.distributed.initialize(device="jax", timeout=30)
except px.errors.DistributedError as error:
    print(error)
"""
    for rank, done in enumerate(together([["-c", program]] * 2)):
        assert f"process {rank} has used JAX before it joined the others" in done.stdout, done.stderr


def test_a_mesh_joins_an_engine_that_was_not_named() -> None:
    program = """
import phlox as px
px.distributed.initialize(seed=0, timeout=60)
mesh = px.distributed.Mesh(data=-1, device="jax")
print(mesh.shape, mesh.part)
"""
    for rank, done in enumerate(together([["-c", program]] * 2)):
        assert f"{{'data': 2}} ({rank}, 2)" in done.stdout, done.stderr


@pytest.mark.full
def test_under_torchrun(tmp_path: Path) -> None:
    for engine in ("torch", "jax"):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", PROGRAM, engine],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stderr


@pytest.mark.full
def test_in_a_step_of_slurm_and_under_open_mpi() -> None:
    job = str(free_port())
    slurm = {
        "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }  # fmt: skip
    mpi = {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"prterun-{job}@1",
    }  # fmt: skip
    steps = [{**slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    mpirun = [{**mpi, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)} for rank in range(2)]
    for environments in (steps, mpirun):
        for done in together([[PROGRAM, "torch"]] * 2, environments=environments):
            assert done.returncode == 0 and "all is well" in done.stdout, done.stderr


@pytest.mark.full
def test_an_error_in_one_process_ends_it_though_its_engine_would_wait() -> None:
    program = """
import phlox as px
px.distributed.initialize(device="jax", timeout=60)
px.distributed.barrier()
if px.distributed.rank() == 0:
    raise ValueError("an error of the program")
px.distributed.barrier("later")
"""
    first, second = together([["-c", program]] * 2, timeout=45)
    assert first.returncode and "ValueError: an error of the program" in first.stderr
    assert second.returncode and "process 0" in second.stderr
