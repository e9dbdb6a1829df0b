"""One save, step by step: each process writes its files, and process 0 commits them as a checkpoint.

1. Process 0 claims the folder, removes the files of killed saves, and sends the others the name of this save.
2. Each process writes and syncs its files, and a list of their parts, and reports that to process 0.
3. Process 0 checks that all files exist, and that each element of each tensor is in one part. It writes the index,
   which makes the save a checkpoint, removes old steps, and reports the result to the others.

An error in one process is reported to all, so that none waits forever and all raise it. No step is a collective.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from phlox.distributed.checkpoints.owner import Claim
from phlox.distributed.checkpoints.part_files import Piece, files_of, header_of, write_file
from phlox.distributed.checkpoints.savers import Group
from phlox.distributed.checkpoints.storage import LocalFolder, Storage
from phlox.errors import DistributedError, PhloxError, RecordError
from phlox.record import Header, Record
from phlox.record.dtypes import SHORT_NAMES
from phlox.record.formats.assembled import Part, gap_in
from phlox.record.formats.parts import BLOCK, INDEX, encoded, is_own_file, is_unfinished, step_of

APPEARS = 20.0
"""Seconds after which a file of another host is visible on a network file system."""
_SHOWN = 8


class RecordMismatchError(DistributedError):
    """The processes save different records: a bug of the program, which the next save would repeat."""


class Job(NamedTuple):
    """The record to save, and where."""

    storage: Storage
    step: int | None
    keep: int | None
    record: Record
    """The record, at the precision of the files."""
    precision: str
    pieces: Callable[[], list[Piece]]
    """Returns the pieces that this process writes."""

    @property
    def target(self) -> str:
        """The folder of the checkpoint, in the storage."""
        return "" if self.step is None else f"step-{self.step:08d}"


class _Manifest(msgspec.Struct):
    """The files that a process has written."""

    record: int
    """The checksum of paths, dtypes and shapes, which must be the same in all processes."""
    files: dict[str, int]
    parts: list[tuple[str, str, int, list[int], list[int], list[int]]]
    """Path, file, offset, first and last index (plus one) on each axis, checksums."""


def run(job: Job, group: Group) -> str:
    """Save; returns the path or URL of the checkpoint. An error in one process is raised in all."""
    key = f"phlox/save/{group.saves}"
    group.saves += 1
    try:
        return _lead(job, group, key) if group.rank == 0 else _follow(job, group, key)
    except OSError as error:
        raise RecordError(f"cannot save {job.storage.location(job.target)}: {error.strerror or error}") from error


def _lead(job: Job, group: Group, key: str) -> str:
    """The part of process 0."""
    claim = name = None
    stage = "name"
    try:
        claim = Claim(job.storage, group.run)
        _remove_leftovers(job)
        working = job.storage.working(job.target)
        job.storage.prepare(working)
        name = os.urandom(4).hex()
        group.tell(f"{key}/name", {"name": name}, group.size - 1)
        stage = "outcome"
        manifests = [_write(job, group, working, name)]
        manifests += [_manifest_of(job, group, key, working, name, rank) for rank in range(1, group.size)]
        _commit(job, group, working, name, manifests)
        group.tell(f"{key}/outcome", {}, group.size - 1)
    except BaseException as error:
        with contextlib.suppress(Exception):
            message = {"error": _reason(error, 0), "is_mismatch": isinstance(error, RecordMismatchError)}
            group.tell(f"{key}/{stage}", message, group.size - 1)
        if name is not None:
            _remove_own(job, name, 0)
        raise
    finally:
        if claim is not None:
            claim.release()
    return job.storage.location(job.target)


def _follow(job: Job, group: Group, key: str) -> str:
    """The part of any other process."""
    message = group.ask(f"{key}/name", 0)
    if "error" in message:
        raise DistributedError(message["error"])
    name, working = message["name"], job.storage.working(job.target)
    try:
        if isinstance(job.storage, LocalFolder):
            _await_folder(job.storage, working, group)
        _write(job, group, working, name)
        group.tell(f"{key}/written/{group.rank}", {}, 1)
    except BaseException as error:
        with contextlib.suppress(Exception):
            group.tell(f"{key}/written/{group.rank}", {"error": _reason(error, group.rank)}, 1)
        _remove_own(job, name, group.rank)
        raise
    message = group.ask(f"{key}/outcome", 0)
    if "error" in message:
        _remove_own(job, name, group.rank)
        raise (RecordMismatchError if message["is_mismatch"] else DistributedError)(message["error"])
    return job.storage.location(job.target)


# --- writing


def _stem(name: str, rank: int) -> str:
    return f"part-{name}-{rank:05d}"


def _join_path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _write(job: Job, group: Group, working: str, name: str) -> _Manifest:
    """Write the files of this process, and a manifest of them for process 0."""
    stem, sizes = _stem(name, group.rank), dict[str, int]()
    parts: list[tuple[str, Part]] = []
    for file, pieces in files_of(job.pieces(), stem).items():
        size = len(header_of(pieces)) + sum([piece.tensor.nbytes for piece in pieces])
        with job.storage.writer(_join_path(working, file), size) as sink:
            parts += write_file(file, pieces, sink)
        sizes[file] = size
    manifest = _Manifest(
        _checksum_of(job.record),
        sizes,
        [
            (path, p.file, p.offset, [s.start for s in p.index], [s.stop for s in p.index], list(p.checksums))
            for path, p in parts
        ],
    )
    if group.rank != 0:
        job.storage.write(_join_path(working, f"{stem}.json"), msgspec.json.encode(manifest))
    return manifest


def _checksum_of(record: Record) -> int:
    lines = [(path, SHORT_NAMES[e.tensor.dtype], e.tensor.shape) for path, e in record.tensors.items()]
    return zlib.crc32(msgspec.json.encode([lines, list(record.values), dict(record.aliases)]))


# --- committing


def _manifest_of(job: Job, group: Group, key: str, working: str, name: str, rank: int) -> _Manifest:
    message = group.ask(f"{key}/written/{rank}", rank)
    if "error" in message:
        raise DistributedError(message["error"])
    path = _join_path(working, f"{_stem(name, rank)}.json")
    until = time.monotonic() + APPEARS
    while True:
        try:
            data = job.storage.read(path)
            break
        except FileNotFoundError:
            if time.monotonic() > until:
                raise _not_shared(job.storage, rank) from None
            time.sleep(0.2)
            job.storage.listing(working)  # network file systems look again when a folder is read
    manifest = msgspec.json.decode(data, type=_Manifest)
    job.storage.remove(path)
    return manifest


def _await_folder(storage: LocalFolder, working: str, group: Group) -> None:
    until = time.monotonic() + APPEARS
    while not (storage.root / working).is_dir():
        if time.monotonic() > until:
            raise _not_shared(storage, group.rank)
        time.sleep(0.2)
        storage.listing("")


def _not_shared(storage: Storage, rank: int) -> DistributedError:
    return DistributedError(
        f"{storage.name}: processes 0 and {rank} do not see each other's files there; give a folder on a file system "
        "that all hosts share, or the URL of an object store"
    )


def _commit(job: Job, group: Group, working: str, name: str, manifests: list[_Manifest]) -> None:
    parts: dict[str, list[Part]] = {}
    writers: dict[str, list[int]] = {}
    problems: list[str] = []
    listing = job.storage.listing(working)
    files: dict[str, int] = {}
    for rank, manifest in enumerate(manifests):
        if manifest.record != manifests[0].record:
            problems.append(f"process {rank} saves other paths, dtypes or shapes than process 0")
            continue
        for file, size in manifest.files.items():
            if listing.get(file) != size:
                problems.append(f"{file} of process {rank} has {listing.get(file, 'no')} bytes there, not {size}")
        files |= manifest.files
        for path, file, offset, starts, stops, sums in manifest.parts:
            index = tuple([slice(start, stop) for start, stop in zip(starts, stops, strict=True)])
            parts.setdefault(path, []).append(Part(index, file, offset, tuple(sums)))
            writers.setdefault(path, []).append(rank)
    if not problems:
        for path, entry in job.record.tensors.items():
            gap = gap_in([part.index for part in parts.get(path, [])], entry.tensor.shape)
            if gap is not None and entry.tensor.size:
                ranks = ", ".join([str(rank) for rank in dict.fromkeys(writers.get(path, []))]) or "none"
                problems.append(f"{path}: {gap}; processes that wrote parts of it: {ranks}")
    if problems:
        further = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        lines = "\n  ".join(["the processes do not save one record:", *problems[:_SHOWN], *further])
        raise RecordMismatchError(lines)
    header = Header.of(job.record, "parts", job.precision)
    job.storage.commit(working, job.target, encoded(job.record, header, parts, files, BLOCK, job.step))
    # From here on it is a checkpoint: files that cannot be removed are left to the next save.
    with contextlib.suppress(OSError, RecordError):
        for file in job.storage.listing(job.target):
            if is_own_file(file) and file not in files:
                job.storage.remove(_join_path(job.target, file))
        _remove_old(job)


def _remove_old(job: Job) -> None:
    if job.keep is None or job.step is None:
        return
    folders = complete_steps(job.storage)
    for step in list(folders)[: -job.keep]:
        if step != job.step:
            job.storage.remove_step(folders[step])


def complete_steps(storage: Storage) -> dict[int, str]:
    """The folders of complete steps, by step, the newest last."""
    folders = {step: name for name in storage.listing("") if (step := step_of(name)) is not None}
    return {step: name for step, name in sorted(folders.items()) if INDEX in storage.listing(name)}


def _remove_leftovers(job: Job) -> None:
    """Remove the files of killed saves. The folder is claimed, so no other save is running."""
    listing = job.storage.listing("")
    for name, size in listing.items():
        is_step = step_of(name) is not None and size is None
        if (is_unfinished(name) and size is None) or (is_step and INDEX not in job.storage.listing(name)):
            job.storage.remove_step(name)
    if INDEX not in listing:
        for name in listing:
            if is_own_file(name):
                job.storage.remove(name)


def _remove_own(job: Job, name: str, rank: int) -> None:
    """Remove the files of this process from a save that failed."""
    with contextlib.suppress(Exception):
        working = job.storage.working(job.target)
        for file in job.storage.listing(working):
            if file.startswith(_stem(name, rank)):
                job.storage.remove(_join_path(working, file))


def _reason(error: BaseException, rank: int) -> str:
    text = str(error) if isinstance(error, PhloxError) else f"{type(error).__name__}: {error}"
    return f"process {rank} could not save: {text}"
