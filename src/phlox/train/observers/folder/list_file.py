"""`ListFile`: a JSON file that lists other files, and the changes since it was last written, in a file beside it.

A short list is written with each change. Of a long one, changes are appended to `NAME-added.jsonl`, and the whole list
is written only when it has doubled, so that the cost of a change does not grow with the list. The first line of the
file beside it, `{"of": "5a0c7f1e"}`, has the CRC-32 of the list that the changes belong to.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, cast

from phlox.record.io.crc32 import crc32
from phlox.record.io.files import atomic_write
from phlox.record.values import from_json, to_json

_SHORT = 64
"""The number of entries up to which a list is written with each change."""


class ListFile:
    """The list at a path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = ListFile(Path(folder, "list.json"))
    ...     file.write({"files": ["a"]}, entries=1000)
    ...     file.append({"file": "b"}), read_list_file(file.path)
    (True, ({'files': ['a']}, [{'file': 'b'}]))
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._added = added_file(path)
        self._crc = 0
        self._room = 0  # for changes; none before the first write, since a file from before may end in a torn line
        self._is_begun = False

    def write(self, content: dict[str, Any], entries: int) -> None:
        """Write the whole list, which has so many entries."""
        data = json.dumps(to_json(content), indent=1, allow_nan=False).encode() + b"\n"
        with atomic_write(self.path, follow_links=False) as file:
            file.write(data)
        self._crc, self._is_begun = crc32(data), False
        self._room = entries if entries > _SHORT else 0
        with contextlib.suppress(OSError):  # its changes are of another list by now
            self._added.unlink(missing_ok=True)

    def append(self, change: dict[str, Any]) -> bool:
        """Append a change; False, and the list stays as it is, if it is time to write the whole list."""
        if not self._room:
            return False
        line = json.dumps(to_json(change), allow_nan=False).encode() + b"\n"
        room, self._room = self._room - 1, 0  # none if this fails
        try:
            if not self._is_begun:
                with atomic_write(self._added, follow_links=False) as file:
                    file.write(b'{"of": "%08x"}\n' % self._crc + line)
            else:
                with open(self._added, "ab", opener=_existing) as file:
                    if os.fstat(file.fileno()).st_nlink != 1:  # a second name: writing would change another file
                        return False
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            return False
        self._room, self._is_begun = room, True
        return True

    @property
    def is_behind(self) -> bool:
        """Are there changes that are not in the list itself?"""
        return self._is_begun


def added_file(path: Path) -> Path:
    """The file with the changes of the list at a path."""
    return path.with_name(f"{path.stem}-added.jsonl")


def read_list_file(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The list at a path, and the changes since it was written. Raises OSError and ValueError."""
    data = path.read_bytes()
    changes: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):  # damaged, or torn at its end: what is before it
        first, *lines = added_file(path).read_bytes().splitlines(keepends=True)
        for line in lines if json.loads(first) == {"of": f"{crc32(data):08x}"} else ():
            change = from_json(json.loads(line))
            if not line.endswith(b"\n") or not isinstance(change, dict):
                break
            changes.append(cast("dict[str, Any]", change))
    return from_json(json.loads(data)), changes


def names_added(path: Path) -> set[str]:
    """The names of files that were added to the list at a path since it was written."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return {str(change["file"]) for change in read_list_file(path)[1] if "file" in change}
    return set()


def _existing(path: str, flags: int) -> int:
    """Opens a file that exists; OSError for a link."""
    return os.open(path, flags & ~os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))
