"""What a fit begins with: the folder of the run, where it is resumed, and the callbacks that every run has."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phlox.record import Record, load

if TYPE_CHECKING:
    from phlox.train.loop import Fit


def prepare(
    fit: Fit, folder: Path | None, resume: Any, *, overwrite: bool, progress: bool, stack: ExitStack
) -> Record | None:
    """Open the folder, add the callbacks of every run, and give the record to go on from, if there is one."""
    if resume:
        return load(resume)
    return None
