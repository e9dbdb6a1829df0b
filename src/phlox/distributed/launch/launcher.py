"""`phlox launch`: N processes of one program on one host or several, with restarts and time limits."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from phlox.backend.addresses import join_address
from phlox.backend.processes import PROGRESS
from phlox.distributed.launch.causes import Failed, first_cause
from phlox.distributed.launch.children import Children, code_text, exit_status
from phlox.distributed.launch.hosts import Failure, Hosts
from phlox.distributed.processes.environment import COORDINATOR, LISTENER, SEED
from phlox.distributed.processes.failures import forget_reports, report_of
from phlox.distributed.processes.secret import SECRET, derived, take_secret
from phlox.errors import DistributedError
from phlox.host.threads import cores

OVER = 124
"""The exit status when a time limit ended the processes."""
PORT = 29_577
"""The default port of the launcher on the first host."""
_SETTLES = 3.0
"""The seconds within which a failing process ends, or reports that others failed before."""
_FORCED = "--xla_force_host_platform_device_count"
_PASSED_ON = ("PHLOX_", "JAX_", "XLA_", "NCCL_", "GLOO_", "TORCH_", "OMP_", "CUDA_", "PYTHON")
"""The prefixes of the environment variables that are passed through ssh."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The options of a launch.

    Attributes:
        command: the program and its arguments.
        processes: the number of processes on each host.
        hosts: the names of the hosts; the others must reach the first by its name. Empty means only this host.
        host_rank: the index of this host among them.
        port: the port of the launcher on the first host.
        devices: the number of CPU devices that XLA shows each process.
        restarts: how often to restart all after a failure.
        elastic: whether to restart with one process fewer after a process failed.
        least: the number of processes that `elastic` keeps on a host.
        timeout: the seconds after which all processes are ended.
        hang: the seconds after which all are ended if no process prints or reports.
        grace: the seconds between SIGTERM and SIGKILL.
        watch_input: end all when the input ends, as it does when the ssh connection is lost.
    """

    command: tuple[str, ...]
    processes: int
    hosts: tuple[str, ...] = ()
    host_rank: int = 0
    port: int = PORT
    devices: int | None = None
    restarts: int = 0
    elastic: bool = False
    least: int = 1
    timeout: float | None = None
    hang: float | None = None
    grace: float = 5.0
    watch_input: bool = False


def launch(options: Launch) -> int:
    """Run the processes to their end, and return the exit status: 0, or the status of the first that failed.

    A process that was ended by a signal counts as 128 and its number, a time limit as 124, Ctrl-C as 130. Raises
    `DistributedError` if a host does not join, or a program does not exist.
    """
    _check(options)
    secret = take_secret(os.environ) if len(options.hosts) > 1 else None  # else a new one is drawn
    if options.watch_input:
        secret = _line_of_input()
    with _signals() as received, tempfile.TemporaryDirectory(prefix="phlox-launch-") as folder:
        limit = options.timeout or 300.0
        hosts = Hosts(options.hosts, options.host_rank, options.port, options.command, limit, secret)
        try:
            return _Launcher(options, hosts, received, Path(folder)).run()
        except DistributedError as error:
            if hosts.size == 1:
                raise
            raise DistributedError(f"the launchers of the hosts: {str(error).replace('process', 'host')}") from error
        finally:
            hosts.close()


def launch_by_ssh(options: Launch, ssh: Sequence[str], arguments: Sequence[str]) -> int:
    """Run `phlox launch` with these arguments on every host, through ssh, and return the first status that is not 0.

    Each host needs the same folder, and the same Python at the same place.
    """
    _check(options)
    secret = take_secret(os.environ) or secrets.token_hex(32)
    passed = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_PASSED_ON)]
    with _signals() as received:
        children = Children(lambda label, name, line: _show("", name, line), input_too=True)
        try:
            for host, name in enumerate(options.hosts):
                command = ["env", *passed, sys.executable, "-m", "phlox", "launch"]
                command += ["--host-rank", str(host), "--end-with-input", *arguments]
                children.start(
                    name, [*ssh, name, f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}"], os.environ
                )
                with contextlib.suppress(OSError):  # it has ended; its status is checked below
                    stdin = children.children[-1].process.stdin
                    assert stdin is not None
                    stdin.write(f"{secret}\n".encode())  # all users of that host could read the command line
                    stdin.flush()
            status = 0
            while children.running and not received and not status:
                for child in children.step():
                    status = status or exit_status(child.code or 0)
            # The launchers end together by themselves, and report the reason.
            over = time.monotonic() + 2 * options.grace + 5.0
            while children.running and not received and time.monotonic() < over:
                children.step()
        finally:
            for child in children.children:  # ends the launcher on that host
                if child.process.stdin is not None:
                    with contextlib.suppress(OSError):
                        child.process.stdin.close()
            over = time.monotonic() + 2 * options.grace + 5.0
            while children.running and time.monotonic() < over:
                children.step()
            children.end()
    return exit_status(-received[0]) if received else status


class _Launcher:
    def __init__(self, options: Launch, hosts: Hosts, received: list[int], folder: Path) -> None:
        self._options, self._hosts, self._received = options, hosts, received
        self._progress = folder / "progress"
        self._progress.touch()
        self._end = time.monotonic() + options.timeout if options.timeout is not None else float("inf")
        self._run = hosts.from_first("run", lambda: secrets.token_hex(8))
        self._secret = derived(hosts.secret, self._run)
        self._seed = hosts.from_first("seed", lambda: os.environ.get(SEED) or str(secrets.randbits(63)))

    def run(self) -> int:
        count = self._options.processes
        for attempt in range(self._options.restarts + 1):
            failure = self._attempt(attempt, count)
            if failure is None:
                return 0
            if attempt == self._options.restarts or failure.final:
                return failure.status
            _say(f"restart {attempt + 1} of {self._options.restarts}")
            if self._options.elastic and failure.loses and failure.host == self._hosts.rank:
                count = max(count - 1, self._options.least)
        raise AssertionError("the last attempt has returned")

    def _attempt(self, attempt: int, count: int) -> Failure | None:
        """Start the processes and wait for their end; the failure, or None if all ended well."""
        counts: list[int] = self._hosts.share(f"counts/{attempt}", count)
        first, size = sum(counts[: self._hosts.rank]), sum(counts)
        listener = None
        if self._hosts.rank == 0:
            listener = self._hosts.listen(backlog=max(size, 128))
        bound = join_address(self._hosts.name, listener.getsockname()[1]) if listener is not None else ""
        address = self._hosts.from_first(f"address/{attempt}", lambda: bound)
        width = len(str(size - 1))
        children = Children(_show, mark=f"{PROGRESS}={self._progress}")
        forget_reports(self._progress.parent)
        failure: Failure | None = None
        try:
            for local in range(count):
                rank = first + local
                keep = [listener.fileno()] if listener is not None and rank == 0 else []
                environment = self._environment(attempt, rank, size, local, count, address, keep)
                children.start(f"[{rank:{width}d}]", self._options.command, environment, keep)
            if listener is not None:
                listener.close()  # only process 0 keeps it open
            own_failure = self._watch(children, attempt, first)
            if own_failure is not None:
                self._hosts.fail(attempt, own_failure)
            failure = own_failure or self._await_others(attempt)
            if failure is not None:
                self._end_all(children, failure)
        finally:
            children.end(signal.SIGTERM, self._options.grace if failure is None else 0.0, self._is_hurried)
        return None if failure is None else self._hosts.first_failure(attempt)

    def _environment(
        self, attempt: int, rank: int, size: int, local: int, count: int, address: str, keep: Sequence[int]
    ) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name != LISTENER}
        environment |= {
            COORDINATOR: address,
            "PHLOX_NUM_PROCESSES": str(size),
            "PHLOX_PROCESS_ID": str(rank),
            "PHLOX_LOCAL_PROCESS_ID": str(local),
            "PHLOX_LOCAL_NUM_PROCESSES": str(count),
            "PHLOX_ATTEMPT": str(attempt),
            "PHLOX_RUN": self._run,
            SECRET: self._secret,
            SEED: self._seed,
            PROGRESS: str(self._progress),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # an aborted process writes its stacks
        }
        if count > 1:  # or each would use all cores, and wait for the others' threads
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
        if keep:
            environment[LISTENER] = str(keep[0])
        if self._options.devices is not None:
            flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(_FORCED)]
            environment["XLA_FLAGS"] = " ".join([*flags, f"{_FORCED}={self._options.devices}"])
            environment["JAX_PLATFORMS"] = "cpu"
            # XLA runs each device on a thread of a pool of this size; with fewer, collectives wait for ever.
            environment["NPROC"] = str(max(32, 4 * self._options.devices, os.cpu_count() or 1))
        return environment

    def _watch(self, children: Children, attempt: int, first: int) -> Failure | None:
        """Wait until all have ended well (None), or until there is a reason to end them."""
        active = time.monotonic()
        touched = self._progress.stat().st_mtime
        looked = 0.0
        while True:
            if any(child.code for child in children.step()):
                return self._first_cause(children, attempt, first)
            if not children.running:
                return None
            if (reason := self._reason_to_end()) is not None:
                return reason
            now = time.monotonic()
            if now < looked + 0.5:
                continue
            looked = now
            if self._hosts.size > 1 and (failure := self._hosts.failure(attempt)) is not None:
                return failure
            mtime = self._progress.stat().st_mtime
            if mtime != touched or self._hosts.are_active(max(children.heard, active)):
                touched, active = mtime, now
            silent = now - max(active, children.heard)
            if self._options.hang is not None and silent > self._options.hang and self._hosts.rank == 0:
                reason = f"no process has printed or reported for {self._options.hang:g} s"
                return self._failed(reason, OVER, hung=True)

    def _first_cause(self, children: Children, attempt: int, first: int) -> Failure:
        """The first cause of a failure: another process may have failed before, and be about to end or to report it."""
        over = time.monotonic() + _SETTLES
        while True:
            failed: list[Failed] = []
            for local, child in enumerate(children.children):
                report = report_of(self._progress.parent, first + local)
                if child.code or (report is not None and child.code is None):
                    position = children.over.index(child) if child.code else len(children.children)
                    failed.append(Failed(first + local, position, child.code, report))
            cause = first_cause(failed)
            if cause.is_settled or time.monotonic() > over or self._reason_to_end() is not None:
                break
            children.step()
        if cause.follows and self._hosts.size > 1 and (other := self._hosts.failure(attempt)) is not None:
            return other
        code = cause.code
        if cause.report is not None and (code is None or code > 0):
            code = cause.report.status  # an engine that waits for others ends with another code
        assert code is not None
        return self._failed(
            f"process {cause.rank} {code_text(code)}", exit_status(code), loses=True, follows=cause.follows
        )

    def _await_others(self, attempt: int) -> Failure | None:
        """All processes here have ended well; wait for the other hosts, and return their failure or None."""
        self._hosts.done(attempt)
        while not self._hosts.all_done(attempt):
            if (failure := self._hosts.failure(attempt) or self._reason_to_end()) is not None:
                if failure.host == self._hosts.rank:
                    self._hosts.fail(attempt, failure)
                return failure
            time.sleep(0.1)
        return None

    def _reason_to_end(self) -> Failure | None:
        if self._received:
            number = self._received[0]
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            return self._failed(f"{name} came", exit_status(-number), final=True)
        if time.monotonic() > self._end:
            return self._failed(f"the {self._options.timeout:g} s are over", OVER, final=True)
        if self._options.watch_input and _has_ended(sys.stdin.fileno()):
            return self._failed("the connection of ssh has ended", exit_status(-signal.SIGHUP), final=True)
        return None

    def _failed(self, reason: str, status: int, **marks: bool) -> Failure:
        """A failure on this host, now; `marks` are its other fields."""
        return Failure(reason, status, self._hosts.rank, time.time(), **marks)

    def _end_all(self, children: Children, failure: Failure) -> None:
        _say(f"{failure.reason}; ending the others" if failure.loses else f"{failure.reason}; ending all processes")
        if failure.hung:
            _say("what each process is at:")
            children.send(signal.SIGABRT, groups=False)
            over = time.monotonic() + 3.0
            while children.running and time.monotonic() < over and not self._is_hurried():
                children.step()
        first = signal.SIGINT if self._received == [signal.SIGINT] else signal.SIGTERM
        children.end(first, self._options.grace, self._is_hurried)

    def _is_hurried(self) -> bool:
        """Has a second Ctrl-C come, which ends all at once?"""
        return len(self._received) > 1


def _check(options: Launch) -> None:
    if os.name != "posix":
        raise DistributedError("phlox launch needs Linux or macOS; elsewhere start the processes by the launcher there")
    if not 0 <= options.host_rank < max(len(options.hosts), 1):
        raise DistributedError(
            f"--host-rank {options.host_rank} is not the index of one of {len(options.hosts)} hosts, counted from 0"
        )
    if options.least > options.processes:
        raise DistributedError(f"--min {options.least} is more than the {options.processes} processes to begin with")
    for variable in (COORDINATOR, LISTENER):
        if os.environ.get(variable):
            raise DistributedError(
                f"phlox launch was called within a process of another launch ({variable} is set); unset it first"
            )


@contextlib.contextmanager
def _signals() -> Generator[list[int]]:
    """A scope that collects signals that ask this process to end."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]


def _line_of_input() -> str:
    """The first line of the input; reads no further byte."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n") and len(line) < 1 << 10:
        line += byte
    if not line:
        raise DistributedError("the connection of ssh has ended before it told the secret of the launch")
    return line.decode(errors="replace")


def _has_ended(descriptor: int) -> bool:
    """Has the input ended? Further input is discarded."""
    import select

    return bool(select.select([descriptor], [], [], 0)[0]) and not os.read(descriptor, 1 << 12)


def _show(label: str, name: str, line: str) -> None:
    stream = sys.stdout if name == "stdout" else sys.stderr
    try:
        stream.write(f"{label} {line}\n" if label else f"{line}\n")
        stream.flush()
    except UnicodeEncodeError:
        stream.write(f"{label} {line}\n".encode("ascii", "backslashreplace").decode())


def _say(text: str) -> None:
    _show("phlox launch:", "stderr", text)
