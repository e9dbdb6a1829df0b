"""`save`, `load` and `latest`: records in shards, each process writing and reading its own parts."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from phlox.distributed.checkpoints.committing import Job, complete_steps, run
from phlox.distributed.checkpoints.common_ids import with_common_ids
from phlox.distributed.checkpoints.part_files import Piece, copied, pieces_of
from phlox.distributed.checkpoints.savers import Group, own_group
from phlox.distributed.checkpoints.storage import LocalFolder, storage_of
from phlox.errors import PhloxError, RecordError, RunWarning
from phlox.record import LazyTensor, PrecisionSettings, Record, TensorEntry
from phlox.record import load as load_any
from phlox.record.formats.parts import INDEX, is_own_file, record_of
from phlox.record.limits import check_entries
from phlox.record.precision import PrecisionLike, Underflow, checked_precision, precision_label, warn_of_underflow


class SaveHandle:
    """The handle of a save that may still be running; `wait` returns when all processes have finished."""

    def __init__(self, work: Callable[[], str], path: str, lost: Underflow, *, background: bool) -> None:
        self.path = path
        """The path or URL of the checkpoint."""
        self._lost = lost
        self._error: BaseException | None = None
        self._work = work
        self._thread: threading.Thread | None = None
        if background:
            # Not a daemon: a program that ends waits until its last state is written.
            self._thread = threading.Thread(target=self._run, name="phlox-save")
            self._thread.start()
        else:
            self._run()

    @property
    def is_done(self) -> bool:
        """Whether the save has ended, with or without an error."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> str:
        """Wait until the checkpoint is complete; returns its path or URL.

        Raises the error of the save, in this process or another; a second call does not raise it again.
        """
        if self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._lost:
            lost, self._lost = self._lost, []
            warn_of_underflow(lost, self.path)
        return self.path

    def __repr__(self) -> str:
        return f"SaveHandle({self.path!r}, {'done' if self.is_done else 'under way'})"

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            del self._work  # and the copies with it


_under_way: dict[Group, SaveHandle] = {}
"""The last asynchronous save of each group."""


@atexit.register
def _tell_at_exit() -> None:
    """Warn of errors that no `wait()` has raised."""
    for handle in _under_way.values():
        try:
            handle.wait()
        except BaseException as error:
            warnings.warn(f"{handle.path} was not saved: {error}", RunWarning, stacklevel=1)


def save(
    record: Record,
    folder: str | os.PathLike[str],
    *,
    step: int | None = None,
    keep: int | None = None,
    asynchronous: bool = False,
    precision: PrecisionLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    group: Group | None = None,
) -> SaveHandle:
    """Save a record in shards: each process writes its parts. Call it in all processes, in the same order.

    A checkpoint is complete or does not exist: if a save is killed, the previous checkpoint stays, and the next save
    removes the incomplete files. `phlox.record.load` reads a checkpoint with NumPy alone, on any number of processes;
    the files are safetensors.

    Args:
        record: `model.into_record()`, or `phlox.record.gather(...)` of several parts. Plain values come from
            process 0; parameters get ids that are the same in all processes.
        folder: a path that all hosts see, or a URL that fsspec knows (`s3://bucket/run`).
        step: the number of the training step: the checkpoint is then the folder `step-00000090` in `folder`. Without
            it, it is `folder` itself.
        keep: how many of the newest steps to keep; None keeps all.
        asynchronous: copy the values to host memory and return, while a thread writes them. The training may go on, and
            may donate the arrays.
        precision: the precision of the tensors in the files; None keeps their dtypes.
        storage_options: the options of fsspec for the URL, such as credentials.
        group: the processes that save together; by default the group of `phlox.distributed.initialize`.

    Returns a handle whose `wait()` returns when all processes have finished; without `asynchronous`, at once.

    Raises:
        RecordError: a value does not fit the precision, or the arguments are invalid.
        DistributedError: another run is writing to the folder, another process could not write its part, or the
            processes save different records.
        ExtraNotInstalledError: for a URL, fsspec is missing.

    An error of an asynchronous save is raised by its `wait()` or, without that, by the next `save`.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (10, 20, 30):
    ...         _ = save(Record({"weight": np.full(3, step)}), folder, step=step, keep=2)
    ...     latest(folder), load(folder, step=20)["weight"].tensor.read().tolist()
    (30, [20, 20, 20])
    """
    group = own_group() if group is None else group
    _check(record, step, keep)
    storage = storage_of(folder, storage_options)
    chosen = PrecisionSettings() if precision is None else checked_precision(precision)
    if (before := _under_way.pop(group, None)) is not None:  # saves of a group come one after the other
        before.wait()
    lost: Underflow = []
    if group.size > 1:
        record = with_common_ids(record, group.run if group.seed is None else f"the seed {group.seed}")
    record = record.with_precision(chosen, lost)
    pieces = _copies(record, group) if asynchronous else partial(pieces_of, record, group.rank, group.size)
    job = Job(storage, step, keep, _described(record) if asynchronous else record, precision_label(chosen), pieces)
    handle = SaveHandle(lambda: run(job, group), storage.location(job.target), lost, background=asynchronous)
    if asynchronous:
        _under_way[group] = handle
    else:
        handle.wait()
    return handle


def _copies(record: Record, group: Group) -> Callable[[], list[Piece]]:
    """The pieces of this process, copied now. An error is raised later, by the call, which reports it to the others."""
    try:
        pieces = copied(pieces_of(record, group.rank, group.size))
    except Exception as error:
        failed = error

        def fail() -> list[Piece]:
            raise failed

        return fail
    return lambda: pieces


def load(
    folder: str | os.PathLike[str],
    *,
    step: int | None = None,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Record:
    """Load a record that `save` wrote, lazily: a process reads only the parts that it uses, from any file.

    Args:
        folder: the path or URL passed to `save`, or a step's path or URL in it. A path may also be a file or a folder
            of any format that `phlox.record.load` reads.
        step: the step; None takes the newest, or the folder itself.
        verify: whether to verify checksums: each block of 4 MiB is verified when something in it is first read.
        storage_options: the options of fsspec for the URL.

    Raises RecordError, naming files and paths, if there is no such checkpoint, or if a file of it is missing or
    damaged.
    """
    storage = storage_of(folder, storage_options)
    target = "" if step is None else f"step-{step:08d}"
    if isinstance(storage, LocalFolder):
        if step is not None and INDEX not in storage.listing(target):
            raise _no_step(storage.name, step, complete_steps(storage))
        return load_any(storage.root / target, verify=verify)
    listing = storage.listing(target)
    if INDEX not in listing:
        steps = complete_steps(storage)
        if step is not None:
            raise _no_step(storage.name, step, steps)
        if not steps:
            content = "only what a save has left that did not end" if any(map(is_own_file, listing)) else "none in it"
            raise RecordError(f"{storage.name}: there is no complete checkpoint, {content}")
        target = steps[max(steps)]
    where = storage.location(target)
    try:
        data = storage.read(f"{target}/{INDEX}" if target else INDEX)
        return record_of(memoryview(data), storage.files(target), verify=verify)
    except Exception as error:
        reason = str(error) if isinstance(error, PhloxError) else f"{type(error).__name__}: {error}"
        raise RecordError(f"{where}: not a valid parts record: {reason}") from error


def latest(folder: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> int | None:
    """The newest completely saved step in a folder; None if there is none, or no such folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before = latest(folder)
    ...     _ = save(Record({"step": 7}), folder, step=7)
    ...     before, latest(folder)
    (None, 7)
    """
    return max(complete_steps(storage_of(folder, storage_options)), default=None)


def _no_step(name: str, step: int, steps: Iterable[int]) -> RecordError:
    has = f"it has {', '.join(map(str, [*steps][-5:]))}" if steps else "it has none"
    return RecordError(f"{name}: there is no complete checkpoint of step {step}; {has}")


def _described(record: Record) -> Record:
    """The record without the values of its tensors, which would keep donated arrays alive."""

    def gone() -> Any:
        raise RecordError("only its description was kept")

    def described(path: str, entry: TensorEntry) -> TensorEntry:
        tensor = LazyTensor.from_function(entry.tensor.shape, entry.tensor.dtype, gone, path)
        return TensorEntry(tensor, entry.id, entry.state)

    return record.with_entries({path: described(path, entry) for path, entry in record.tensors.items()})


def _check(record: object, step: object, keep: object) -> None:
    if not isinstance(record, Record):
        raise RecordError(
            f"save: expected a Record, got {type(record).__name__}; a module gives one by model.into_record(), several "
            "parts by phlox.record.gather(model=..., optimizer=...)"
        )
    if record.unreadable:
        path, why = next(iter(record.unreadable.items()))
        raise RecordError(f"save: {path}: {why}")
    check_entries(len(record))
    for name, number, least in (("step", step, 0), ("keep", keep, 1)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
            raise RecordError(f"save: {name}={number!r}; give a whole number of at least {least}, or None")
    if keep is not None and step is None:
        raise RecordError("save: keep= counts steps; give step= too")
