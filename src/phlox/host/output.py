"""`Output`: a text stream that may be missing or closed; text that cannot be written is dropped."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO, cast


class Output:
    """A text stream that a program does not need: there may be none (`None`, as without a terminal), or its reader may
    close it (a pipe). Text that cannot be written is dropped, and the program continues.

    >>> Output(None).write("nobody reads this")
    0
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text if there is a reader, and return the number of characters."""
        try:
            return 0 if self.stream is None else self.stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: a file that is closed
            self._lose(error)
            return 0

    def flush(self) -> None:
        """Write buffered text."""
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
            # Python flushes it again at its exit, and would exit with an error.
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
