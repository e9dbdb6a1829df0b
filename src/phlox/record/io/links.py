"""Links in the folders that Phlox writes: Phlox deletes or creates the entry itself, never its target."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_HAS_HANDLES = hasattr(os, "O_NOFOLLOW") and os.unlink in os.supports_dir_fd and os.scandir in os.supports_fd


def remove_link(path: Path) -> None:
    """Remove a path if it is a link, whatever its target is; files and folders stay."""
    if path.is_symlink():
        path.unlink(missing_ok=True)


def is_own_folder(path: Path) -> bool:
    """Is it a folder, and not a link to one?"""
    return path.is_dir() and not path.is_symlink()


def remove_files(folder: Path, chosen: Callable[[str], bool], first: str = "") -> None:
    """Remove the files of a folder with `chosen` names, `first` before the others, and the folder if nothing is left.

    Of a link to a folder only the link is removed. Where the system allows it, the folder is held open, so that one
    that is exchanged for a link in between is not entered either.
    """
    remove_link(folder)
    if not _HAS_HANDLES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted([entry.name for entry in os.scandir(folder)], key=lambda name: name != first):
                if chosen(name):
                    (folder / name).unlink(missing_ok=True)
    else:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            with os.scandir(handle) as entries:
                names = sorted([entry.name for entry in entries], key=lambda name: name != first)
            for name in names:
                if chosen(name):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=handle)
        finally:
            os.close(handle)
    with contextlib.suppress(OSError):  # something of the user's is in it
        folder.rmdir()
