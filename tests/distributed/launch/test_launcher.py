"""`phlox launch` as a program: what its processes see, how they end, and that none is left.

Serves: phlox/distributed/launch/{children,hosts,launcher}.py, phlox/cli/launch.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.support import ENVIRONMENT, ROOT, free_port

PROGRAM = ROOT / "tests" / "distributed" / "launched_program.py"
LAUNCH = [sys.executable, "-m", "phlox", "launch"]


class Marked:
    """Processes that have a mark in their environment, and so have all that they start."""

    def __init__(self) -> None:
        self.mark = f"PHLOX_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.environment = {**ENVIRONMENT, name: value}

    def left(self) -> list[int]:
        """The processes of the system that have it."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes() and "Z" not in (path.parent / "stat").read_text().split()[2]:
                    found.append(int(path.parent.name))
            except OSError:
                pass
        return found

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*LAUNCH, *map(str, arguments)], env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for_count(self, count: int) -> None:
        """Wait until so many processes are there; one that is being started shows no environment for a moment."""
        end = time.monotonic() + 20
        while len(self.left()) != count and time.monotonic() < end:
            time.sleep(0.05)
        assert len(self.left()) == count

    def wait_for_end(self) -> None:
        self.wait_for_count(0)


@pytest.fixture
def marked() -> Iterator[Marked]:
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system does not show the environment of its processes")
    marked = Marked()
    yield marked
    left = marked.left()
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left, "processes are left"


def test_all_go_well(marked: Marked) -> None:
    done = marked.run("-n", 2, PROGRAM, "none", "well")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr, done.stderr
    for rank in range(2):
        mine = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]
        assert mine[0] == f"attempt 0: {rank} of 2" and mine[-1] == "all is well" and len(mine) == 3
    assert len({line.partition("draw")[2] for line in lines if "draw" in line}) == 1


FIRSTS = [
    ("jax", "raise", 0, "ended with exit status 1"),
    ("jax", "raise", 1, "ended with exit status 1"),
    ("jax", "sys.exit", 1, "ended with exit status 7"),
    ("torch", "raise", 1, "ended with exit status 1"),
    ("torch", "segfault", 0, "was ended by SIGSEGV"),
    ("numpy", "abort", 1, "was ended by SIGABRT"),
]


@pytest.mark.full
@pytest.mark.parametrize("engine, mode, who, sentence", FIRSTS)
def test_the_first_cause_is_told(
    engine: str, mode: str, who: int, sentence: str, marked: Marked, tmp_path: Path
) -> None:
    """Whatever the engines of the others do when one fails, and however long that takes itself."""
    program = tmp_path / "fails.py"
    program.write_text(FAILS)
    done = marked.run("-n", 3, "--grace", 1, program, engine, mode, who)
    told = [line for line in done.stderr.splitlines() if line.startswith("phlox launch: ")]
    assert told == [f"phlox launch: process {who} {sentence}; ending the others"], done.stderr


FAILS = """
import os, signal, sys
import numpy as np
import phlox as px

engine, mode, who = sys.argv[1], sys.argv[2], int(sys.argv[3])
px.distributed.initialize(device=engine, timeout=60)
mesh = px.distributed.Mesh(data=-1, device=engine)
x = mesh.batch(np.ones((3, 2), np.float32))
for step in range(100):
    px.distributed.gather(x).numpy()
    if step == 3 and px.distributed.rank() == who:
        if mode == "raise":
            raise ValueError("an error of the program")
        elif mode == "sys.exit":
            sys.exit(7)
        elif mode == "abort":
            os.abort()
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_the_secret_of_a_launch_is_told_to_its_processes_alone(marked: Marked, tmp_path: Path) -> None:
    program = tmp_path / "secret.py"
    program.write_text(SECRETIVE)
    marked.environment["PHLOX_SECRET"] = "of another launch, as is inherited"
    runs = [marked.run("-n", 2, program) for _ in range(2)]
    digests = {line.split()[-1] for done in runs for line in done.stdout.splitlines()}
    assert [done.returncode for done in runs] == [0, 0] and len(digests) == 2, runs  # one for each launch


SECRETIVE = """
import hashlib, os
from pathlib import Path
secret = os.environ["PHLOX_SECRET"]
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert secret.encode() not in path.read_bytes()
    except OSError:
        pass
import phlox as px
px.distributed.initialize(seed=0, timeout=60)
assert secret not in str(dict(os.environ)) and secret not in repr(px.backend.processes.processes())
assert len(secret) == 64
print(hashlib.sha256(secret.encode()).hexdigest())
"""

ENDS = [
    ("none", "kill", 137, "process 1 was ended by SIGKILL"),
    ("none", "kill first", 137, "process 0 was ended by SIGKILL"),
    ("none", "exit", 3, "process 1 ended with exit status 3"),
    pytest.param("torch", "kill", 137, "process 1 was ended by SIGKILL", marks=pytest.mark.full),
    pytest.param("jax", "kill", 137, "process 1 was ended by SIGKILL", marks=pytest.mark.full),
    pytest.param("jax", "kill first", 137, "process 0 was ended by SIGKILL", marks=pytest.mark.full),
    pytest.param("jax", "raise", 1, "process 1 ended with exit status 1", marks=pytest.mark.full),
]


@pytest.mark.parametrize("engine, mode, status, sentence", ENDS)
def test_the_first_failure_ends_all(engine: str, mode: str, status: int, sentence: str, marked: Marked) -> None:
    done = marked.run("-n", 2, "--grace", 1, PROGRAM, engine, mode)
    assert done.returncode == status and f"phlox launch: {sentence}; ending the others" in done.stderr, done.stderr
    assert "all is well" not in done.stdout


def test_what_processes_leave_behind_ends_too(marked: Marked) -> None:
    assert marked.run("-n", 1, PROGRAM, "none", "leave").returncode == 0


def test_a_time_limit(marked: Marked) -> None:
    done = marked.run("-n", 2, "--timeout", 4, "--grace", 0.5, "--restarts", 5, PROGRAM, "none", "deaf")
    assert done.returncode == 124 and "the 4 s are over; ending all processes" in done.stderr


@pytest.mark.full
def test_a_hang_shows_the_stacks(marked: Marked) -> None:
    done = marked.run("-n", 2, "--hang", 3, PROGRAM, "none", "hang")
    assert done.returncode == 124 and "no process has printed or reported for 3 s" in done.stderr
    for rank in range(2):
        assert f'[{rank}]   File "{PROGRAM}"' in done.stderr
    assert "in meet" in done.stderr  # where process 0 waits


@pytest.mark.full
def test_processes_that_meet_do_not_hang(marked: Marked) -> None:
    done = marked.run("-n", 2, "--hang", 4, PROGRAM, "none", "quiet")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_restarts(marked: Marked) -> None:
    done = marked.run("-n", 3, "--restarts", 2, PROGRAM, "none", "twice")
    assert done.returncode == 0 and "restart 2 of 2" in done.stderr, done.stderr
    assert "attempt 2: 2 of 3" in done.stdout
    # unseeded, all attempts draw the same
    assert len({line.partition("draw")[2] for line in done.stdout.splitlines() if "draw" in line}) == 1


@pytest.mark.full
def test_elastic_restarts(marked: Marked) -> None:
    done = marked.run("-n", 3, "--restarts", 2, "--elastic", "--min", 2, PROGRAM, "none", "twice")
    assert done.returncode == 0, done.stderr
    for line in ("attempt 0: 0 of 3", "attempt 1: 0 of 2", "attempt 2: 0 of 2"):
        assert line in done.stdout
    last = marked.run("-n", 2, "--restarts", 1, PROGRAM, "none", "exit")
    assert last.returncode == 3 and last.stderr.count("ended with exit status 3") == 2


def wait_for(process: subprocess.Popen[str], line: str, times: int) -> None:
    assert process.stdout is not None
    while times:
        found = process.stdout.readline()
        assert found, "it ended early"
        times -= line in found


def test_a_launcher_that_is_killed_leaves_nothing(marked: Marked) -> None:
    process = marked.start("-n", 2, PROGRAM, "none", "deaf")
    wait_for(process, "deaf", 2)
    marked.wait_for_count(6)  # itself, its guard, two processes, and what each of them has started
    process.kill()
    process.communicate(timeout=20)
    marked.wait_for_end()


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_all(number: int, status: int, marked: Marked) -> None:
    process = marked.start("-n", 2, "--grace", 1, PROGRAM, "none", "deaf")
    wait_for(process, "deaf", 2)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == status


@pytest.mark.full
def test_several_hosts(marked: Marked) -> None:
    port = free_port()
    common = ["-n", "1", "--hosts", "localhost,127.0.0.1", "--port", str(port), "--restarts", "2"]
    started = [marked.start(*common, "--host-rank", rank, PROGRAM, "none", "twice") for rank in range(2)]
    for rank, process in enumerate(started):
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0 and f"[{rank}] attempt 2: {rank} of 2" in out, err


@pytest.mark.full
def test_hosts_that_do_not_come_or_say_something_else(marked: Marked) -> None:
    port = free_port()
    common = ["-n", "1", "--hosts", "localhost,127.0.0.1", "--port", str(port), "--timeout", "3"]
    done = marked.run(*common, "--host-rank", 1, PROGRAM, "none", "well")
    assert done.returncode == 2 and "the launchers of localhost, 127.0.0.1 do not come together" in done.stderr
    first = marked.start(*common, "--host-rank", 0, PROGRAM, "none", "well")
    second = marked.run(*common, "--host-rank", 1, PROGRAM, "none", "kill")
    assert second.returncode == 2 and "another launch" in second.stderr
    _, err = first.communicate(timeout=30)
    assert first.returncode == 2 and "host 1 never came" in err


@pytest.mark.full
def test_through_ssh(marked: Marked, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"  # a stand-in that runs on this machine
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    common = ["--hosts", "localhost,127.0.0.1", "--port", free_port(), "--ssh", ssh]
    done = marked.run("-n", 1, *common, PROGRAM, "none", "well")
    assert done.returncode == 0 and "[1] attempt 0: 1 of 2" in done.stdout, done.stderr
    common[3] = free_port()
    done = marked.run("-n", 1, *common, "--grace", 1, PROGRAM, "none", "exit")
    assert done.returncode == 3, done.stderr
    common[3] = free_port()
    process = marked.start("-n", 1, *common, "--grace", 1, PROGRAM, "none", "deaf")
    wait_for(process, "deaf", 2)
    process.kill()
    process.communicate(timeout=20)
    marked.wait_for_end()


def test_devices_and_modules(marked: Marked, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("import os, sys\nprint(os.environ['XLA_FLAGS'], sys.argv[1:])")
    marked.environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    marked.environment.pop("XLA_FLAGS", None)
    done = marked.run("-n", 1, "--devices", 4, "-m", "counting", "--timeout", "x", "-n", "3")
    assert done.stdout == "[0] --xla_force_host_platform_device_count=4 ['--timeout', 'x', '-n', '3']\n", done.stderr


WRONG = [
    (["-n", "2", "missing.py"], "there is no file 'missing.py' to launch"),
    (["-n", "0", PROGRAM], "'0' is not an integer of 1 or more"),
    ([PROGRAM], "required: -n/--processes"),
    (["-n", "2", "--timeout", "-1", PROGRAM], "'-1' is not a positive number of seconds"),
    (["-n", "2", "--min", "3", PROGRAM], "--min 3 is more than the 2 processes"),
    (["-n", "2", "--host-rank", "0", PROGRAM], "give --hosts too"),
    (["-n", "2", "--hosts", "a,b", "--host-rank", "0", "--port", "70000", PROGRAM], "'70000' is not a port"),
    (["-n", "2", "--hosts", "a,b", "--host-rank", "0", PROGRAM], "launchers of several hosts need a secret"),
    (["-n", "2", "--hosts", "a b,c", "--host-rank", "0", PROGRAM], "'a b' is not the name"),
    (["-n", "2", "--hosts", "a,b", "--host-rank", "2", PROGRAM], "--host-rank 2 is not the index of one of 2 hosts"),
]


@pytest.mark.parametrize("arguments, sentence", WRONG)
def test_wrong_arguments(arguments: list[object], sentence: str, marked: Marked) -> None:
    done = marked.run(*arguments)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.full
def test_processes_share_the_cores(marked: Marked, tmp_path: Path) -> None:
    """A process that computes on all cores, beside another that does, waits for threads most of the time."""
    program = tmp_path / "threads.py"
    program.write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    for variable, expected in ((None, str(max(1, len(os.sched_getaffinity(0)) // 2))), ("3", "3")):
        marked.environment.pop("OMP_NUM_THREADS", None)
        marked.environment |= {} if variable is None else {"OMP_NUM_THREADS": variable}
        done = marked.run("-n", 2, program)
        assert done.returncode == 0 and {line.split()[-1] for line in done.stdout.splitlines()} == {expected}
