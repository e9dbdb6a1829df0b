"""Processes that are started together and end together, with their output line by line."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

_GUARD = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
mark, groups = sys.argv[1], set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
for number in os.listdir("/proc") if mark and os.path.isdir("/proc") else ():
    try:
        with open(f"/proc/{number}/environ", "rb") as file:
            if number.isdecimal() and mark.encode() in file.read().split(bytes(1)):
                os.kill(int(number), signal.SIGKILL)
    except OSError:
        pass
"""
"""The program of the guard process. When its input ends, with the launcher or after a launch, it ends all processes:

the process groups, and on Linux also processes that have left their group, all with the mark in their environment.
"""

_LOOK = 0.05
"""The seconds between two checks of the processes, if no event comes earlier."""
_LONGEST = 1 << 16
"""The bytes after which an incomplete line is shown."""


@dataclass(slots=True)
class Child:
    """A process of the launch."""

    label: str
    """The prefix of each line of its output."""
    process: subprocess.Popen[bytes]
    code: int | None = None
    """Its exit code, negative for a signal, once it has ended."""
    pending: dict[int, bytes] = field(default_factory=dict[int, bytes])


class Children:
    """Processes that start together; each heads a process group, so that its own child processes end with it.

    They end when this process ends, however that happens: a guard process kills them, and so does Linux.

    Args:
        show: a function that is called with the label, "stdout" or "stderr", and a line of output.
        input_too: whether each gets a pipe as its input, which closes when this process ends.
        mark: a variable NAME=value that only these processes and their children have in their environment.
    """

    def __init__(self, show: Callable[[str, str, str], object], *, input_too: bool = False, mark: str = "") -> None:
        self.children: list[Child] = []
        self.over: list[Child] = []
        """The processes that have ended, in that order."""
        self.heard = time.monotonic()
        """The time of the last output."""
        self._show, self._input = show, subprocess.PIPE if input_too else subprocess.DEVNULL
        self._selector = selectors.DefaultSelector()
        self._ended: list[Child] = []
        self._is_over = False
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, mark]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def start(
        self, label: str, command: Sequence[str], environment: Mapping[str, str], keep: Sequence[int] = ()
    ) -> None:
        """Start a further process, which inherits the open files `keep`."""
        with warnings.catch_warnings():
            # Python warns of threads that may hold a lock: the launcher has none, those of NumPy's library are idle.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = subprocess.Popen(
                command, env=environment, stdin=self._input, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=keep, start_new_session=True, preexec_fn=_last_steps(),
            )  # fmt: skip
        child = Child(label, process)
        self._tell_guard(f"+{process.pid}\n")
        self.children.append(child)
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (child, name))
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, (child, ""))

    @property
    def running(self) -> list[Child]:
        """The processes that have not ended."""
        return [child for child in self.children if child.code is None]

    def step(self, seconds: float = _LOOK) -> list[Child]:
        """Show new output, and return the processes that have ended, in the order in which they ended."""
        for key, _ in self._selector.select(seconds):
            child, name = key.data
            if name:
                self._read(key.fileobj, child, name)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)
                self._reap(child)
        for child in self.running:
            self._reap(child)
        ended, self._ended = self._ended, []
        return ended

    def send(self, number: int, *, groups: bool = True) -> None:
        """Send a signal to all processes that run, or whose child processes still run."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if groups:
                    os.killpg(child.process.pid, number)
                elif child.code is None:
                    child.process.send_signal(number)

    def end(self, first: int = signal.SIGTERM, grace: float = 5.0, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all by a signal, then by SIGKILL after the grace or if `hurry()`. A further call does nothing."""
        if self._is_over:
            return
        self._is_over = True
        over = time.monotonic() + grace
        if self.running:
            self.send(first)
        while self.running and time.monotonic() < over and not hurry():
            self.step()
        if not self.running:  # their child processes get little time
            self.send(signal.SIGTERM)
            over = min(over, time.monotonic() + 1.0)
            while self._has_survivors() and time.monotonic() < over and not hurry():
                self.step()
        self.send(signal.SIGKILL)
        while self.running:  # a process in an uninterruptible system call ends after the call
            self.step()
        last = time.monotonic() + 1.0
        while self._pipes() and time.monotonic() < last:
            self.step()
        self._close()

    def _has_survivors(self) -> bool:
        """Does any process of the groups still run?"""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, 0)
                return True
        return False

    def _pipes(self) -> list[IO[bytes]]:
        return [key.fileobj for key in self._selector.get_map().values() if key.data[1]]  # pyright: ignore[reportReturnType]

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            if key.data[1]:
                self._show_pending(*key.data)
                key.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            else:
                os.close(key.fd)
        self._selector.close()
        for child in self.children:
            self._tell_guard(f"-{child.process.pid}\n")
            if child.process.stdin is not None:
                child.process.stdin.close()
        with contextlib.suppress(OSError):
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        self._guard.wait()

    def _tell_guard(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the guard was killed; the other means must suffice
            assert self._guard.stdin is not None
            self._guard.stdin.write(line)
            self._guard.stdin.flush()

    def _reap(self, child: Child) -> None:
        if child.code is None and (code := child.process.poll()) is not None:
            child.code = code
            self._ended.append(child)
            self.over.append(child)

    def _read(self, pipe: Any, child: Child, name: str) -> None:
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            self._show_pending(child, name)
            pipe.close()
            return
        self.heard = time.monotonic()
        stream = ("stdout", "stderr").index(name)
        *lines, pending = (child.pending.get(stream, b"") + data).split(b"\n")
        if len(pending) > _LONGEST:
            lines, pending = [*lines, pending], b""
        child.pending[stream] = pending
        for line in lines:
            self._show(child.label, name, line.decode(errors="replace"))

    def _show_pending(self, child: Child, name: str) -> None:
        pending = child.pending.pop(("stdout", "stderr").index(name), b"")
        if pending:
            self._show(child.label, name, pending.decode(errors="replace"))


def _last_steps() -> Callable[[], None] | None:
    """The steps of a new process before its program: on Linux, the system then kills it when its parent ends.

    No lock is taken between fork and exec, so threads of the launcher do no harm.
    """
    import resource

    parent, kill = os.getpid(), int(signal.SIGKILL)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    control: Any = None
    if sys.platform == "linux":
        import ctypes

        control = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # hung processes are aborted only to show their stacks
        if control is not None:
            control(1, kill, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def code_text(code: int) -> str:
    """A text that says how a process has ended.

    >>> code_text(3), code_text(-9)
    ('ended with exit status 3', 'was ended by SIGKILL')
    """
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def exit_status(code: int) -> int:
    """The exit status for an exit code, as in a shell.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code
