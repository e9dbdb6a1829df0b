"""The values that must be the same in all processes of a group: versions, script, command line, seed, devices."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phlox.errors import DistributedError
from phlox.version import __version__

_HOSTS = {"default_worker.py"}
"""Scripts that run functions of other programs, such as Ray's actors; their command lines are not compared."""


def fingerprint(engine: str | None, **others: Any) -> dict[str, Any]:
    """The values of this process, by their names in an error.

    Args:
        engine: the module of the engine, whose version is included.
        others: further values.
    """
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    values: dict[str, Any] = {
        "version of Python": platform.python_version(),
        "version of phlox": __version__,
        "version of NumPy": np.__version__,
    }
    if engine not in (None, "numpy"):
        values[f"version of {engine}"] = getattr(sys.modules.get(engine), "__version__", None)
    if script is None or script.name not in _HOSTS:
        if script is not None and script.is_file():
            values[f"content of {script.name}"] = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
        values["command line"] = sys.argv[1:]
    return values | others


def compare(values: Sequence[Mapping[str, Any]], subject: str) -> None:
    """Raise `DistributedError` if the values of the processes, in the order of their ranks, differ.

    >>> compare([{"seed": 0}, {"seed": 1}, {"seed": 0}], "the processes do not fit together")
    Traceback (most recent call last):
    phlox.errors.DistributedError: the processes do not fit together: seed is 0 in processes 0, 2; 1 in process 1
    """
    if problems := differences(values):
        raise DistributedError(f"{subject}: {'. '.join(problems)}")


def differences(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each name whose value differs between processes."""
    problems: list[str] = []
    for name in dict.fromkeys(name for process_values in values for name in process_values):
        ranks: dict[str, list[int]] = {}
        for rank, process_values in enumerate(values):
            text = repr(process_values[name]) if name in process_values else "absent"
            ranks.setdefault(text if len(text) <= 200 else text[:200] + "...", []).append(rank)
        if len({repr(process_values.get(name)) if name in process_values else None for process_values in values}) > 1:
            parts = [f"{text} in {ranks_text(some)}" for text, some in ranks.items()]
            problems.append(f"{name} is {'; '.join(parts)}")
    return problems


def ranks_text(ranks: Sequence[int]) -> str:
    """A text that names some processes.

    >>> ranks_text([2]), ranks_text(range(12))
    ('process 2', 'processes 0, 1, 2, 3, 4, 5, 6, 7, ... (12 in all)')
    """
    shown = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")
    return f"process{'es' if len(ranks) > 1 else ''} {shown}"
