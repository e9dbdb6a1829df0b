"""The group of processes: joining it, ranks, barriers, leaving it."""

from __future__ import annotations

import atexit
import faulthandler
import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import FrameType, TracebackType
from typing import Any, NoReturn

from phlox import random
from phlox.backend import Backend, DeviceLike
from phlox.backend.addresses import LOOPBACK, address_towards, from_outside, join_address, listen, split_address
from phlox.backend.contract.backend import engine_of
from phlox.backend.device import Device, backend_of
from phlox.backend.greeting import LONGEST_WAIT
from phlox.backend.processes import Processes, agreement, leave, processes, report_progress, set_processes, store
from phlox.backend.registry import load
from phlox.backend.store import END, SharedStore
from phlox.backend.tracing.checks import checks_are_on
from phlox.distributed.processes.environment import LISTENER, read_environment, seed_of
from phlox.distributed.processes.failures import report_failure
from phlox.distributed.processes.fingerprint import compare, fingerprint
from phlox.distributed.processes.gpus import narrow_gpus
from phlox.distributed.processes.interfaces import narrow_interfaces
from phlox.distributed.processes.objects import broadcast_object, gather_objects
from phlox.distributed.processes.secret import SecretFile, derived, take_secret
from phlox.distributed.processes.store_server import StoreServer
from phlox.errors import DistributedError

_LINGERS = 5.0
"""The seconds for which process 0 keeps the store after a failure, so that the others can read the error."""
_NOTICES = 0.5
"""The seconds within which the store notices that a process is gone, after another's engine has noticed."""
_LAST_WORDS = 2.0
"""The seconds after which an engine is ended in a failed process; it would wait for the other processes."""


@dataclass(slots=True)
class _Group:
    """The arguments of `initialize`, and the store that it opened."""

    arguments: tuple[int | None, str | None, float]
    server: StoreServer | None = None
    shared: SharedStore | None = None


_group: _Group | None = None
_has_failed = False
_exit_status: tuple[int, FrameType | None, int] = (0, None, 0)
"""The last status passed to `sys.exit`, and the frame and instruction of the program then."""


def initialize(seed: int | None = None, device: DeviceLike | None = None, timeout: float = 300.0) -> None:
    """Join the other processes of this program; a single process only seeds its random stream.

    Call it first, before a tensor or a device is made: JAX cannot join later. The other processes are found by the
    environment variables of `phlox launch`, torchrun, Open MPI, or a SLURM step; actors of Ray set the same
    variables as `phlox launch`: see examples/ray_train.py. Afterwards the ambient random stream is the same in all
    processes. It checks that all run the same script with the same arguments, versions and number of devices.

    Args:
        seed: the seed of the ambient random stream, as for `px.random.seed`. None takes the seed of the launch, which
            is the same in all processes; in a single process the stream stays as it is.
        device: the device whose engine joins now; a name (`"jax"`, `"torch:gpu"`) opens no device yet. None takes the
            default device. NumPy joins when a mesh or a collective first needs it.
        timeout: the seconds for which a process waits for others: here, at a barrier, and in a collective of PyTorch.

    Processes of one host communicate over loopback. Those of several hosts need the same secret in `PHLOX_SECRET`
    (`phlox launch` sets it), and a network that you trust, or a tunnel (SECURITY.md).

    Raises `DistributedError` if variables are missing or wrong, if a process does not arrive, or if processes differ;
    it names the variables, or the ranks and both values. A second call with the same arguments does nothing, with
    others it is an error; a single process seeds again.

    >>> import phlox as px
    >>> px.distributed.initialize(seed=0)
    >>> px.distributed.rank(), px.distributed.size(), px.distributed.is_main()
    (0, 1, True)
    """
    global _group
    arguments = (seed, None if device is None else str(_name(device)), timeout)
    if _group is not None and processes().size > 1:
        if _group.arguments != arguments:
            calls = (_group.arguments, arguments)
            was, now = (f"initialize(seed={seed!r}, device={name!r}, timeout={limit!r})" for seed, name, limit in calls)
            raise DistributedError(f"{now}: this process was initialized before, by {was}; call it once")
        return
    if not 0 < timeout <= LONGEST_WAIT:
        raise DistributedError(f"timeout={timeout!r} must be a number of seconds above 0, at most {LONGEST_WAIT:,.0f}")
    member = replace(read_environment(), timeout=float(timeout))
    if member.size == 1:
        set_processes(member)
        _group = _Group(arguments)
        if seed is None and member.launcher:  # a restart may have only one process left
            seed = seed_of(os.environ)
        if seed is not None:
            random.seed(seed)
        return
    narrow_gpus(member.local_rank, member.local_size, os.environ)
    group = _Group(arguments)
    try:
        _join(group, member, seed, _backend(device))
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


def _join(group: _Group, member: Processes, seed: int | None, backend: Backend | None) -> None:
    member = replace(member, run=f"{member.run}/{member.attempt}")
    drawn = seed_of(os.environ)
    launch_secret = take_secret(os.environ)
    if member.rank == 0:
        listener, address = _listen(member)
        host, port = listener.getsockname()[:2]
    else:
        address = member.address or _exchange(member, None)
        host, port = split_address(address, "the address of process 0")
        host = from_outside(host) if member.spans_hosts else host
        listener = None
    file = SecretFile(split_address(address)[1], member.run)
    secret: Callable[[], str] = (lambda: derived(launch_secret, member.run)) if launch_secret else file.read
    try:
        if listener is not None:
            try:
                group.server = StoreServer(listener, secret() if launch_secret else file.write(), member.size)
            except BaseException:
                listener.close()
                raise
            if not member.address:
                _exchange(member, address)
        group.shared = SharedStore(host, port, secret, member.rank, member.size, member.timeout, member.named)
        member = replace(member, address=join_address(group.shared.host, port))
        set_processes(member, group.shared)
        group.shared.barrier("the start of the program")
    finally:
        if listener is not None and not launch_secret:
            file.remove()
    narrow_interfaces(member, os.environ)
    subject = f"the processes of {member.launcher} do not fit together"
    engine = None if backend is None else backend.name
    compare(gather_objects(fingerprint(engine, **{"the seed given to initialize": seed})), subject)
    if backend is not None:
        backend.join_processes()
        count = backend.local_device_count()
        compare(gather_objects({"the number of devices of a process": count}), subject)
    drawn = int.from_bytes(os.urandom(8)) if drawn is None else drawn
    agreed = broadcast_object(drawn if seed is None else seed)
    set_processes(replace(member, seed=agreed), group.shared)
    random.seed(agreed)


def _listen(member: Processes) -> tuple[socket.socket, str]:
    """A socket that listens for the other processes, and the address that they get."""
    if number := os.environ.pop(LISTENER, ""):
        return _inherited(number), member.address
    if member.address:
        host, port = split_address(member.address)
        host = from_outside(host) if member.spans_hosts else host
        return listen(host, port, max(member.size, 128), member.named), member.address
    # torchrun's store listens on the port that it names, perhaps on another host.
    named = from_outside(os.environ["MASTER_ADDR"].strip(" []")) if member.spans_hosts else LOOPBACK
    host = address_towards(named) or named
    listener = listen(host, 0, max(member.size, 128), f"{member.launcher}, MASTER_ADDR={named}")
    return listener, join_address(host, listener.getsockname()[1])


def _inherited(number: str) -> socket.socket:
    """The socket that the launcher has opened."""
    problem = f"{LISTENER}={number!r} is not the number of an open socket that listens on one address"
    try:
        listener = socket.socket(fileno=int(number))
    except (ValueError, OverflowError, OSError) as error:
        raise DistributedError(f"{problem} ({error}); unset it, or start the program by `phlox launch`") from error
    try:
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
            raise ValueError
        if ip_address(listener.getsockname()[0]).is_unspecified:
            raise ValueError
    except (ValueError, OSError):
        listener.detach()  # it belongs to other code
        raise DistributedError(f"{problem}; unset it, or start the program by `phlox launch`") from None
    listener.set_inheritable(False)
    return listener


def _exchange(member: Processes, address: str | None) -> str:
    """The address of process 0, which it sends to the others through the store of torchrun."""
    exchange = load("phlox.backend.torch.processes:exchange")
    answer = exchange(f"address/{member.attempt}", address, os.environ, member.timeout)
    if answer is None:
        raise DistributedError(
            f"{member.launcher} keeps no store that tells where process 0 is; set PHLOX_COORDINATOR=HOST:PORT"
        )
    return answer


def _name(device: DeviceLike) -> Any:
    return device if isinstance(device, (str, Device)) else repr(device)


def _backend(device: DeviceLike | None) -> Backend | None:
    """The engine that joins now."""
    backend = engine_of(backend_of(device))
    return backend if backend.joins_at_start or device is not None else None


# --- leaving


def _agree(values: Mapping[str, Any]) -> None:
    from phlox.distributed.processes.agreement import check_agreement  # few programs need it

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
    """From now on, an uncaught error ends this process soon, and a normal end waits for the other processes."""
    before, leave_program = sys.excepthook, sys.exit

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _has_failed
        _has_failed = True
        when = report_failure(rank(), None)
        before(kind, error, trace)
        follows = False
        if _group is not None and _group.shared is not None and not issubclass(kind, KeyboardInterrupt):
            # The engine's error may come a moment before the store knows who is gone.
            follows = _group.shared.lost(_NOTICES)
        report_failure(rank(), follows, when)

    def note_status(status: Any = None, /) -> NoReturn:
        global _exit_status
        if threading.current_thread() is threading.main_thread():
            _exit_status = (status if isinstance(status, int) else int(status is not None), *_position())
        leave_program(status)

    sys.excepthook, sys.exit = note, note_status
    atexit.register(_at_exit)


def _position() -> tuple[FrameType | None, int]:
    """The outermost frame of the program, and its current instruction."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame, -1 if frame is None else frame.f_lasti


def _at_exit() -> None:
    global _group
    group, _group = _group, None
    if group is None or group.shared is None:
        return
    status, frame, instruction = _exit_status
    # If the program has gone on since, it has caught the exception of `sys.exit`.
    has_left = status != 0 and frame is not None and frame.f_lasti == instruction
    if has_left and not _has_failed:
        report_failure(rank(), False, status=status)
    if _has_failed or has_left:
        # The engine would wait for the others, and they wait for this process. From here on its time is limited.
        sys.stdout.flush()
        sys.stderr.flush()
        faulthandler.dump_traceback_later(_LAST_WORDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        return
    try:
        group.shared.barrier(END)
    except DistributedError as error:
        # This process is done, but another is not; and an engine would now wait for the others, or abort.
        report_failure(rank(), True)
        sys.stdout.flush()
        sys.stderr.write(f"phlox: at the end of process {processes().rank}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    _leave(group, in_peace=True)
