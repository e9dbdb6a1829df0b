"""Counts the calls of Python functions of Phlox, and the files that they are in."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import phlox

_HERE = str(Path(phlox.__file__).parent)


def calls_of(action: Callable[[], object]) -> tuple[int, set[str]]:
    """How many functions of Phlox an action calls, and their files.

    Garbage of other tests is not collected meanwhile: its finalizers are functions, too.

    >>> calls, files = calls_of(lambda: phlox.ones((2,)).backend)
    >>> calls > 0, "phlox/tensor/base.py" in {file.replace("\\\\", "/") for file in files}
    (True, True)
    """
    calls = 0
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(_HERE):
            calls += 1
            files.add(frame.f_code.co_filename.removeprefix(str(Path(_HERE).parent)).strip("/\\"))

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls, files
