"""Records in parts: a folder that several processes have written, each its own parts of the tensors.

The folder has files of safetensors, which any reader of safetensors opens, and the index `phlox.parts.json`. In the
files a part of the tensor `path` is called `path@0:4,8:16`, by its rows and columns in the whole. The index is a JSON
object; its data about a part are sufficient to read the part:

- "parts": the header, as in the other formats (schema version, precision, ...), "block", the number of bytes that share
  a checksum, and "step" if it was given.
- "files": an array of [name, size in bytes].
- "metadata" and "aliases": text by name.
- "entries": an array of objects in the order of the record. A plain value is `{"path", "value"}` (see
  `values.to_json`). A tensor is `{"path", "dtype", "shape", "id"?, "parts"}`, each part being `[file, offset, start,
  stop, checksums]`: the number of the file, the position of its first byte, the first and the last index (plus one) on
  every axis, and the CRC-32 of each block of its bytes, as hexadecimal digits.
- "crc32": the checksum of the bytes of the index before it, as hexadecimal digits; it is the last item.

The index is written last. A folder without one was never completed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

from phlox.errors import RecordError
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.assembled import Assembled, Part, gap_in
from phlox.record.formats.reader import Reader
from phlox.record.header import Header, Item, entries_of, fields_of
from phlox.record.io.byte_ranges import Files, MappedFiles
from phlox.record.io.crc32 import crc32
from phlox.record.io.files import is_file
from phlox.record.io.source import Source
from phlox.record.limits import check_entries, check_json
from phlox.record.names import listed
from phlox.record.record import Record
from phlox.record.values import from_json, to_json

INDEX = "phlox.parts.json"
"""The name of the index."""
BLOCK = 1 << 22
"""Bytes that share a checksum, in new files."""
STEP = re.compile(r"step-(\d{1,18})")
"""The names of folders of steps."""

_BEGINNING = re.compile(rb'\s*\{\s*"parts"\s*:\s*\{')
_END = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\s*\Z')
_NO_NAME = re.compile(r"[/\\:\0]|\A\.{0,2}\Z")
_REMEDY = "the index is damaged or was changed by another program; verify=False reads it all the same"


class _Header(Header, frozen=True, kw_only=True, omit_defaults=True):
    block: int
    step: int | None = None


class _Part(msgspec.Struct, array_like=True, gc=False):
    file: int
    offset: int
    start: list[int]
    stop: list[int]
    checksums: str


class _Entry(Item):
    parts: list[_Part] = msgspec.field(default_factory=list[_Part])


class _Index(msgspec.Struct):
    parts: _Header
    files: list[tuple[str, int]]
    metadata: dict[str, str]
    aliases: dict[str, str]
    entries: list[_Entry]


@final
class PartsReader(Reader):
    """Reads a folder that `phlox.distributed.save` has written, by its index; all files are memory-mapped.

    A tensor is assembled from its parts. If one part has all of it, it is a view of the mapped file. A block of 4 MiB
    is verified when something in it is first read.

    Raises RecordError, with the paths of all missing files, if a file is missing or has another size, and if the parts
    of a tensor are incomplete.
    """

    format = "parts"
    suffix = ".parts.json"

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        if source.folder is None:
            raise RecordError("its files are in the same folder, but it was given as bytes; load it from its folder")
        return record_of(source.data, MappedFiles(source.folder), verify=source.verify)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        return _BEGINNING.match(head) is not None


def record_of(data: memoryview, files: Files, *, verify: bool = True) -> Record:
    """The record of an index, with the files beside it."""
    check_json(data)
    text = bytes(data)
    if verify:
        end = _END.search(text)
        if end is None or int(end[1], 16) != crc32(text[: end.start()]):
            raise RecordError(f"the checksum of the index does not match: {_REMEDY}")
    index = msgspec.json.decode(text, type=_Index)
    index.parts.check(PartsReader.format)
    if index.parts.block < 1:
        raise RecordError(f"its blocks have {index.parts.block} bytes")
    check_entries(len(index.entries))
    _check_files(index, files)
    entries = entries_of(
        index.entries,
        lambda value: from_json(msgspec.json.decode(value)),
        lambda entry: _tensor(entry, index, files, verify),
    )
    header = index.parts
    return Record(entries, index.metadata, aliases=index.aliases, positional=header.positional, header=header)


def _tensor(entry: _Entry, file_index: _Index, files: Files, verify: bool) -> LazyTensor:
    path, names, block = entry.path, file_index.files, file_index.parts.block
    dtype, shape = entry.form()
    parts: list[Part] = []
    for p in entry.parts:
        if not len(p.start) == len(p.stop) == len(shape) or not 0 <= p.file < len(names):
            raise RecordError(f"{path}: a part of {len(p.start)} axes, or in file {p.file}, which does not exist")
        index = tuple([slice(start, stop) for start, stop in zip(p.start, p.stop, strict=True)])
        digits = bytes.fromhex(p.checksums)
        sums = tuple([int.from_bytes(digits[at : at + 4], "big") for at in range(0, len(digits), 4)])
        parts.append(Part(index, names[p.file][0], p.offset, sums))
    if math.prod(shape) or parts:
        gap = gap_in([part.index for part in parts], shape)
        if gap is not None:
            raise RecordError(f"{path}: {gap}")
    for part, p in zip(parts, entry.parts, strict=True):
        size = math.prod(part.shape) * dtype.itemsize
        if p.offset < 0 or p.offset + size > names[p.file][1] or len(part.checksums) != -(-size // block):
            raise RecordError(f"{path}: its part in {part.file} does not fit there, or has no checksums")
    source = Assembled(files, path, dtype, shape, tuple(parts), block, set() if verify else None)
    return LazyTensor(shape, dtype, dtype, source, path, part=source.part)


def _check_files(index: _Index, files: Files) -> None:
    """RecordError, with all problems and the paths that they concern, unless all files are there."""
    for name, _ in index.files:
        if _NO_NAME.search(name) or len(name) > 255:
            raise RecordError(f"it has a file {name[:200]!r}; files lie beside the index, and their name has no folder")
    sizes = files.sizes()
    problems = {
        number: f"{name} is missing" if name not in sizes else f"{name} has {sizes[name]} bytes, not {size}"
        for number, (name, size) in enumerate(index.files)
        if sizes.get(name) != size
    }
    if not problems:
        return
    paths: dict[int, list[str]] = {number: [] for number in problems}
    for entry in index.entries:
        for number in dict.fromkeys([part.file for part in entry.parts]):
            if number in problems:
                paths[number].append(entry.path)
    lines = [f"{problem}: {listed(paths[number])}" for number, problem in problems.items()]
    count = "a file is" if len(problems) == 1 else f"{len(problems)} of {len(index.files)} files are"
    raise RecordError(f"{count} not as the index says:\n  " + "\n  ".join(lines))


def encoded(
    record: Record,
    header: Header,
    parts: Mapping[str, Sequence[Part]],
    files: Mapping[str, int],
    block: int = BLOCK,
    step: int | None = None,
) -> bytes:
    """The index of a record whose tensors lie in these parts of these files (name -> size)."""
    number_of = {name: number for number, name in enumerate(files)}
    entries: list[dict[str, Any]] = []
    for path in record:
        entry = record[path]
        if not isinstance(entry, TensorEntry):
            entries.append({"path": path, "value": to_json(entry)})
            continue
        item = fields_of(path, entry)
        item["parts"] = [
            [
                number_of[part.file],
                part.offset,
                [s.start for s in part.index],
                [s.stop for s in part.index],
                "".join([f"{checksum:08x}" for checksum in part.checksums]),
            ]
            for part in parts.get(path, ())
        ]
        entries.append(item)
    head = {"block": block, **msgspec.to_builtins(header), **({} if step is None else {"step": step})}
    document = {
        "parts": head,
        "files": [[name, size] for name, size in files.items()],
        "metadata": dict(record.metadata),
        "aliases": dict(record.aliases),
        "entries": entries,
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()[:-1]
    text += f',"crc32":"{crc32(text):08x}"}}\n'.encode()
    check_json(text)
    return text


# --- folders


def step_of(name: str) -> int | None:
    """The step of a folder with this name; None if it is not a folder of a step.

    >>> step_of("step-00000090"), step_of("step-9.tmp")
    (90, None)
    """
    match = STEP.fullmatch(name)
    return int(match[1]) if match else None


def steps_in(folder: Path) -> dict[int, Path]:
    """The complete steps in a folder, the newest last."""
    steps = {step: entry for entry in folder.iterdir() if (step := step_of(entry.name)) is not None}
    return {step: steps[step] for step in sorted(steps) if is_file(steps[step] / INDEX)}


def find_index(folder: Path) -> Path | None:
    """The index of a folder, or of its newest complete step; None if it has neither.

    Raises RecordError for a folder that has only the files of an incomplete save.
    """
    if is_file(folder / INDEX):
        return folder / INDEX
    steps = steps_in(folder)
    if steps:
        return steps[max(steps)] / INDEX
    if any(step_of(entry.name) is not None or is_unfinished(entry.name) for entry in folder.iterdir()):
        raise RecordError(f"{folder}: it has no complete checkpoint, only files of a save that did not end")
    if any(is_own_file(entry.name) for entry in folder.iterdir()):
        raise RecordError(
            f"{folder}: it has no {INDEX}, which is written last: this save did not end; load the step before it"
        )
    return None


OWNER = ".phlox-owner.json"
"""The file that names the process that is writing to a folder; it exists during a save."""


def is_unfinished(name: str) -> bool:
    """Is this the name of the folder of a running or killed save?"""
    return name.startswith(".phlox-") and name.endswith(".unfinished")


_OWN = re.compile(r"part-[0-9a-f]{8}-\d{5}(-\d+)?\.(safetensors|json)")


def is_own_file(name: str) -> bool:
    """Is this the name of a file of parts, or of a process's list of its parts?"""
    return _OWN.fullmatch(name) is not None
