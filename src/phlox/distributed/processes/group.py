"""The group of processes: joining it, ranks, barriers, leaving it."""

from __future__ import annotations

import atexit
import faulthandler
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from phlox import random
from phlox.backend import Backend, DeviceLike
from phlox.backend.contract.backend import engine_of
from phlox.backend.device import Device, backend_of
from phlox.backend.processes import Processes, agreement, leave, processes, report_progress, set_processes, store
from phlox.backend.registry import load
from phlox.backend.store import END, SharedStore
from phlox.backend.tracing.checks import checks_are_on
from phlox.distributed.processes.environment import read_environment
from phlox.distributed.processes.fingerprint import compare, fingerprint
from phlox.distributed.processes.gpus import narrow_gpus
from phlox.distributed.processes.objects import broadcast_object, gather_objects
from phlox.distributed.processes.store_server import StoreServer
from phlox.errors import DistributedError

SEED = "PHLOX_SEED"
"""The environment variable with the seed of a launch, for programs that give none."""
LISTENER = "PHLOX_LISTENER"
"""The environment variable with the number of the open socket on which process 0 keeps the store."""
_LINGERS = 5.0
"""The seconds for which process 0 keeps the store after a failure, so that the others can read the error."""
_LAST_WORDS = 2.0
"""The seconds after which an engine is ended in a failed process; it would wait for the other processes."""


@dataclass(slots=True)
class _Group:
    """What `initialize` was given, and what it opened."""

    given: tuple[int | None, str | None, float]
    server: StoreServer | None = None
    shared: SharedStore | None = None


_group: _Group | None = None
_has_failed = False


def initialize(seed: int | None = None, device: DeviceLike | None = None, timeout: float = 300.0) -> None:
    """Join the other processes of this program; a single process only seeds its random stream.

    Call it first, before a tensor or a device is made: JAX cannot join later. The other processes are found by the
    environment variables of `phlox launch`, torchrun, Open MPI, or a SLURM step; actors of Ray set those of
    `phlox launch`, as examples/ray_train.py shows. Afterwards the ambient random stream is the same in all processes.
    It checks that all run the same script with the same arguments, versions and number of devices.

    Args:
        seed: the seed of the ambient random stream, as for `px.random.seed`. None takes the seed of the launch, which
            is the same in all processes; in a single process the stream stays as it is.
        device: the device whose engine joins now; a name (`"jax"`, `"torch:gpu"`) opens no device yet. None takes the
            default device. NumPy joins when a mesh or a collective first needs it.
        timeout: the seconds for which a process waits for others: here, at a barrier, and in a collective of PyTorch.

    Raises `DistributedError` if variables are missing, if a process does not arrive, or if processes differ; it names
    the variables, or the ranks and both values. A second call with the same arguments does nothing, with others it is
    an error; a single process seeds again.

    >>> import phlox as px
    >>> px.distributed.initialize(seed=0)
    >>> px.distributed.rank(), px.distributed.size(), px.distributed.is_main()
    (0, 1, True)
    """
    global _group
    given = (seed, None if device is None else str(_name(device)), timeout)
    if _group is not None and processes().size > 1:
        if _group.given != given:
            was, now = (
                f"initialize(seed={one[0]!r}, device={one[1]!r}, timeout={one[2]!r})" for one in (_group.given, given)
            )
            raise DistributedError(f"{now}: this process was initialized before, by {was}; call it once")
        return
    found = replace(read_environment(), timeout=float(timeout))
    if found.size == 1:
        set_processes(found)
        _group = _Group(given)
        if seed is None and found.launcher and os.environ.get(SEED):  # all but one may have been lost
            seed = int(os.environ[SEED])
        if seed is not None:
            random.seed(seed)
        return
    narrow_gpus(found.local_rank, found.local_size, os.environ)
    group = _Group(given)
    try:
        _join(group, found, seed, _backend(device))
    except BaseException:
        _leave(group, in_peace=False)
        raise
    _group = group
    agreement.compare = _agree
    _watch()


def rank() -> int:
    """The rank of this process, from 0.

    >>> rank()
    0
    """
    return processes().rank


def size() -> int:
    """The number of processes; 1 in a single process.

    >>> size()
    1
    """
    return processes().size


def attempt() -> int:
    """How often the launcher has restarted this program after a failure; 0 the first time.

    >>> attempt()
    0
    """
    return processes().attempt


def is_main() -> bool:
    """Is this process 0, the one that prints and writes for all?

    >>> is_main()
    True
    """
    return processes().rank == 0


def barrier(name: str = "barrier", *, timeout: float | None = None) -> None:
    """Wait until all processes have arrived here; in a single process it does nothing.

    Args:
        name: the name of the barrier, for the error.
        timeout: the seconds to wait; None is the limit given to `initialize`.

    Within `px.debug.checks()` it also compares the positions of the random streams; see `check_agreement`. (Calls of
    compiled functions on a mesh then compare these and their scalars.)

    Raises `DistributedError`, which names the processes that did not arrive, or are gone.

    >>> barrier("data is ready")
    """
    if processes().size == 1:
        return
    report_progress()
    store().barrier(name, timeout)
    if checks_are_on():
        _agree({})


def shutdown() -> None:
    """Wait for all processes, then leave the group; it is called automatically when a program ends without an error.

    Afterwards this is a single process. Raises `DistributedError` if a process does not arrive, or is gone.

    >>> shutdown()
    """
    global _group
    group, _group = _group, None
    if group is None or group.shared is None:
        set_processes(Processes())
        return
    try:
        group.shared.barrier(END)
    except BaseException:
        _leave(group, in_peace=False)
        raise
    _leave(group, in_peace=True)


# --- joining


def _join(group: _Group, found: Processes, seed: int | None, backend: Backend | None) -> None:
    found = replace(found, run=f"{found.run}/{found.attempt}")
    timeout = found.timeout
    if found.rank == 0:
        listener, address = _listen(found)
        group.server = StoreServer(listener, found.run, found.size)
    else:
        address = found.address or _exchange(found, None)
    found = replace(found, address=address)
    host, port = _split(address)
    if group.server is not None:
        host, port = "localhost" if host == "" else _own(host), group.server.port
    group.shared = SharedStore(host, port, found.run, found.rank, found.size, timeout)
    set_processes(found, group.shared)
    group.shared.barrier("the start of the program")
    subject = f"the processes of {found.launcher} do not fit together"
    engine = None if backend is None else backend.name
    compare(gather_objects(fingerprint(engine, **{"the seed given to initialize": seed})), subject)
    if backend is not None:
        backend.join_processes()
        count = backend.local_device_count()
        compare(gather_objects({"the number of devices of a process": count}), subject)
    drawn = int(os.environ.get(SEED) or int.from_bytes(os.urandom(8)))
    random.seed(broadcast_object(drawn if seed is None else seed))


def _listen(found: Processes) -> tuple[socket.socket, str]:
    """A socket that listens for the other processes, and where that is."""
    if number := os.environ.get(LISTENER):
        listener = socket.socket(fileno=int(number))
        listener.set_inheritable(False)
        return listener, found.address
    host, port = _split(found.address) if found.address else ("", 0)
    # On every interface, unless all are here: the name of a host may stand for its loopback on that host alone.
    alone = found.local_size == found.size and found.address == ""
    own = "127.0.0.1" if alone or _is_loopback(host) else ""
    try:
        listener = socket.create_server((own, port), backlog=max(found.size, 128))
    except OSError as error:
        raise DistributedError(
            f"process 0 cannot listen on port {port} ({error.strerror}); set PHLOX_COORDINATOR=HOST:PORT, with a free "
            "port on its host, in all processes"
        ) from error
    if found.address:
        return listener, found.address
    name = "127.0.0.1" if alone else socket.getfqdn()
    address = f"{name}:{listener.getsockname()[1]}"
    _exchange(found, address)
    return listener, address


def _exchange(found: Processes, address: str | None) -> str:
    """The address of process 0, which it tells the others through the store of torchrun."""
    exchange = load("phlox.backend.torch.processes:exchange")
    heard = exchange(f"address/{found.attempt}", address, os.environ, found.timeout)
    if heard is None:
        raise DistributedError(
            f"{found.launcher} keeps no store that tells where process 0 is; set PHLOX_COORDINATOR=HOST:PORT"
        )
    return heard


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise DistributedError(f"the address of process 0 must be HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _own(host: str) -> str:
    return host if _is_loopback(host) else "127.0.0.1"


def _name(device: DeviceLike) -> Any:
    return device if isinstance(device, (str, Device)) else repr(device)


def _backend(device: DeviceLike | None) -> Backend | None:
    """The engine that joins now."""
    backend = engine_of(backend_of(device))
    return backend if backend.joins_at_start or device is not None else None


# --- leaving


def _agree(values: Mapping[str, Any]) -> None:
    from phlox.distributed.processes.agreement import check_agreement  # which few programs need

    check_agreement(**values)


def _leave(group: _Group, *, in_peace: bool) -> None:
    try:
        if in_peace:
            leave()
        if in_peace and group.shared is not None:
            group.shared.close()
            if group.server is not None:
                group.server.wait_for_goodbyes(range(processes().size), 30.0)
        elif group.shared is not None:
            group.shared.drop()
            if group.server is not None:
                group.server.linger(_LINGERS)
        if group.server is not None:
            group.server.close()
    finally:
        set_processes(Processes())
        agreement.compare = None


def _watch() -> None:
    """From now on an error that nobody catches ends this process soon, and a good end waits for the others."""
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _has_failed
        _has_failed = True
        before(kind, error, trace)

    sys.excepthook = note
    atexit.register(_at_exit)


def _at_exit() -> None:
    global _group
    group, _group = _group, None
    if group is None or group.shared is None:
        return
    if _has_failed:
        # The engine would wait for the others, and they wait for this process. From here on it has little time.
        sys.stdout.flush()
        sys.stderr.flush()
        faulthandler.dump_traceback_later(_LAST_WORDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        return
    try:
        group.shared.barrier(END)
    except DistributedError as error:
        # All is done here, but not there; and an engine would now wait for the others, or abort.
        sys.stdout.flush()
        sys.stderr.write(f"phlox: at the end of process {processes().rank}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    _leave(group, in_peace=True)
