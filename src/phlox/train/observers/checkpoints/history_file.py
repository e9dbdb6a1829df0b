"""`HistoryFile`: a file beside the checkpoints, to which the entries of lists that only grow are appended.

A line is a JSON object with the name of a list, its next entry and a checksum:

    {"history": {"epoch": 1, "step": 23, ...}, "crc32": "5a0c7f1e"}

The checksum is the CRC-32 of the text before it in this line and in all lines above, without their checksums. So the
lines before the first damage are known to be intact. A checkpoint records the number of bytes that belong to it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phlox.record.io.crc32 import crc32
from phlox.record.io.files import atomic_write
from phlox.train.events import Growing
from phlox.train.state import COUNTS, LINES

_NAME = re.compile(r"history-(\d+)\.jsonl")
_LINE = re.compile(rb'(\{("(?:[^"\\]|\\.)*"): (.*)), "crc32": "([0-9a-f]{8})"\}\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a file belongs to a checkpoint."""

    file: HistoryFile
    lines: int
    value: Mapping[str, Any]
    """The entry in the record of a checkpoint: the file, its size, and the number of entries of each list."""


class HistoryFile:
    """A new file in a folder of checkpoints; the first write creates it.

    A training begins a new file, with all entries, each time that it starts. So it never cuts off lines that an older
    checkpoint may need, and it does not depend on a damaged file.
    """

    def __init__(self, folder: Path) -> None:
        numbers = [int(match[1]) for entry in folder.iterdir() if (match := _NAME.fullmatch(entry.name))]
        self.path = folder / f"history-{max(numbers, default=0) + 1}.jsonl"
        self._lines: list[bytes] = []
        self._encoded: dict[str, tuple[list[str], int]] = {}
        self._size = self._crc = 0  # of all lines
        self._written = self._written_size = 0

    def extend(self, grown: Mapping[str, Growing[Any]], counts: Mapping[str, int]) -> Position | None:
        """Encode new entries, without writing, and return the position after `counts` entries of each list.

        Returns None if a list does not continue its former entries.
        """
        lists = {name: (grown[name].lines(count), count) for name, count in counts.items()}
        for name, (lines, start) in self._encoded.items():
            if name not in lists or lists[name][0] is not lines or lists[name][1] < start:
                return None
        for name, (lines, count) in lists.items():
            _, start = self._encoded.get(name, (lines, 0))
            for line in lines[start:count]:
                content = f"{{{json.dumps(name)}: {line[:-1]}".encode()
                self._crc = crc32(content, self._crc)
                self._lines.append(content + b', "crc32": "%08x"}\n' % self._crc)
                self._size += len(self._lines[-1])
        self._encoded = lists
        value = {COUNTS: dict(counts), "file": self.path.name, "bytes": self._size}
        return Position(self, len(self._lines), value)

    def write(self, position: Position) -> None:
        """Write the missing lines up to a position; OSError if that fails, and the next call tries again."""
        count, size = position.lines, position.value["bytes"]
        if not count or (count <= self._written and self._is_intact()):
            return
        if self._written and self._is_intact():
            with self.path.open("r+b") as file:
                file.truncate(self._written_size)  # remove the remains of an earlier call that failed
                file.seek(self._written_size)
                file.write(b"".join(self._lines[self._written : count]))
                file.flush()
                os.fsync(file.fileno())
        else:
            count = max(count, self._written)
            size = max(size, self._written_size)
            with atomic_write(self.path, follow_links=False) as file:
                file.write(b"".join(self._lines[:count]))
        self._written, self._written_size = count, size

    def _is_intact(self) -> bool:
        """Does the file exist as written? Not as a link, nor under a second name: writing would change another file."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_nlink < 2 and status.st_size >= self._written_size


def read(folder: Path, value: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The entry about its history in a checkpoint's record, with all intact lines; and a text about the damage.

    The text is empty if there is no damage.
    """
    name, size = str(value.get("file")), value.get("bytes")
    if not _NAME.fullmatch(name) or not isinstance(size, int):
        return {**value, LINES: {}}, f"{name!r} is no name of a history, or its size is no number"
    try:
        data = b""
        if size:
            with (folder / name).open("rb") as file:
                data = file.read(size)
    except FileNotFoundError:
        return {**value, LINES: {}}, f"{name}, which belongs beside it, is missing"
    except OSError as error:
        return {**value, LINES: {}}, f"{name} cannot be read ({error.strerror or error})"
    lines: dict[str, list[str]] = {}
    total = end = 0
    problem = ""
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        match = _LINE.fullmatch(line)
        total = 0 if match is None else crc32(match[1], total)
        if match is None or total != int(match[4], 16):
            problem = f"{name} is damaged from line {number} on"
            break
        lines.setdefault(json.loads(match[2]), []).append(f"{match[3].decode()}\n")
        end += len(line)
    if not problem and end < size:
        problem = f"{name} ends after {end:,} of {size:,} bytes"
    return {**value, LINES: {name: "".join(each) for name, each in lines.items()}}, problem
