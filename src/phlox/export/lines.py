"""Lines of code for messages: in a layer, in a model or in the user's code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SOURCE = Path(__file__).parents[1]
_PARTS = ("autodiff", "backend", "batching", "export", "host", "module", "random", "tensor", "transform")
_MACHINERY = tuple([f"{_SOURCE / name}" for name in _PARTS])
"""Files whose lines in a call stack are not shown, since they are the same for every layer."""
_ENGINES = tuple([f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("jax", "torch")])


def line_of_caller() -> str:
    """The innermost line that is not part of the machinery: of a layer, of a model, or of the user's code."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not _is_machinery(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of_error(error: BaseException) -> str:
    """The line where an error was raised."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if not _is_machinery(trace.tb_frame.f_code.co_filename):
            line = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _is_machinery(file: str) -> bool:
    return file.startswith((*_MACHINERY, "<")) or "contextlib" in file or any(folder in file for folder in _ENGINES)
