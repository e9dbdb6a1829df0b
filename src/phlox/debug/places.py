"""The line of a program that calls an operation."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_BELOW = tuple(
    f"{_PACKAGE}{name}{os.sep}"
    for name in ("autodiff", "backend", "batching", "debug", "module", "tensor", "transform")
)
"""The packages that contain no layers or models."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line itself; empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"


def place_of_call(within: CodeType) -> Place | None:
    """The innermost line outside of Phlox in the call stack up to the function `within`.

    If there is none, the innermost line of one of Phlox's layers or models.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    own: Place | None = None
    while frame is not None and frame.f_code is not within:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            return Place(file, frame.f_lineno, frame.f_code.co_name)
        if own is None and not file.startswith(_BELOW):
            own = Place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return own
