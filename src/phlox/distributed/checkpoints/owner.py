"""The owner of a folder: one save at a time, and the files of a killed save are recognised."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

from phlox.distributed.checkpoints.storage import Storage
from phlox.errors import DistributedError
from phlox.record.formats.parts import OWNER

BEAT = 4.0
"""Seconds after which a living owner changes the file."""
PATIENCE = 3.5
"""The number of beats without a change after which an owner on another host counts as dead."""


class Claim:
    """A claim on a folder for one save. Until `release` no other run can claim it, as long as this process lives.

    An owner on this host is alive if its process is. Processes of other hosts cannot be seen: such an owner shows that
    it is alive by changing the file every few seconds, independent of clocks.

    Args:
        storage: the folder.
        run: the name of the launch and its attempt, as `launch/1`; earlier attempts of the same launch have ended.

    Raises DistributedError, which names the owner, if another run is writing to the folder.
    """

    def __init__(self, storage: Storage, run: str) -> None:
        self._storage = storage
        self._owner: dict[str, Any] = {**_this_process(), "run": run, "token": os.urandom(8).hex(), "beat": 0}
        while not storage.create(OWNER, self._encoded()):
            owner = _owner_in(storage)
            if owner is not None and _is_alive(storage, owner, run):
                raise DistributedError(
                    f"{storage.name}: another run is writing there: process {owner.get('pid')} on host "
                    f"{owner.get('host')} (run {owner.get('run') or 'without a name'}); wait until its save is done, "
                    "or give each run a folder of its own"
                )
            if owner is not None and _owner_in(storage) == owner:  # not replaced by another owner meanwhile
                storage.remove(OWNER)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="phlox-owner", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let others write; a further call does nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            with contextlib.suppress(Exception):  # the save is done anyway, and others will find the owner dead
                self._storage.remove(OWNER)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            self._owner["beat"] += 1
            with contextlib.suppress(Exception):  # a network that fails for a moment
                self._storage.write(OWNER, self._encoded())

    def _encoded(self) -> bytes:
        return json.dumps(self._owner).encode() + b"\n"


def _owner_in(storage: Storage) -> dict[str, Any] | None:
    """The owner in the file; an empty dict if the file is damaged or incomplete, None if it does not exist."""
    try:
        content = json.loads(storage.read(OWNER))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _is_alive(storage: Storage, owner: dict[str, Any], run: str) -> bool:
    this = _this_process()
    if _is_earlier(str(owner.get("run", "")), run):
        return False
    if owner.get("machine") == this["machine"] and isinstance(owner.get("pid"), int):
        # A process with the same number but another start time is another process. This process itself has no other
        # save running: saves run one after the other.
        return owner["pid"] != this["pid"] and owner.get("started") == _start_of(owner["pid"])
    until = time.monotonic() + BEAT * PATIENCE
    while time.monotonic() < until:
        time.sleep(BEAT / 8)
        now = _owner_in(storage)
        if now != owner:
            return now is not None
    return False


def _is_earlier(run: str, than: str) -> bool:
    """Is `run` an earlier attempt of the launch of `than`? Of launches without a name that is unknown."""
    (launch, _, attempt), (name, _, current) = run.rpartition("/"), than.rpartition("/")
    return bool(name) and launch == name and attempt.isdecimal() and current.isdecimal() and int(attempt) < int(current)


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _machine() -> str:
    """A text that is equal for processes that see each other's numbers: the host, and the container on it."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str | None:
    """The start time of a process of this machine, as a text; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if os.name == "nt" or Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"
