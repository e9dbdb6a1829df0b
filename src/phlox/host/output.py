"""`Output`: a text stream that may not be there, or be gone: what cannot be written is dropped."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO, cast


class Output:
    """A text stream that a program does not depend on: there may be none (`None`, as without a terminal), or its reader
    may go (a closed pipe). What cannot be written is dropped, and the program goes on.

    >>> Output(None).write("nobody reads this")
    0
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text if somebody reads it; the number of characters."""
        try:
            return 0 if self.stream is None else self.stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: a file that is closed
            self._lose(error)
            return 0

    def flush(self) -> None:
        """Write what is still held."""
        try:
            if self.stream is not None:
                self.stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def isatty(self) -> bool:
        """Is it a terminal?"""
        try:
            return self.stream is not None and self.stream.isatty()
        except ValueError:
            return False

    def _lose(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError) and self.stream is sys.stdout:
            # Python flushes it once more at its end, and would end with an error.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.stream = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def output(stream: TextIO | None = None) -> TextIO:
    """The stream, or standard output, as an `Output`."""
    if isinstance(stream, Output):
        return stream
    return cast("TextIO", Output(sys.stdout if stream is None else stream))
