"""Out of memory: one error class in place of the engines' own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from phlox.errors import OutOfMemoryError

if TYPE_CHECKING:
    from phlox.backend.contract import Backend

_AMOUNT = re.compile(r"(\d[\d.]*) ?(bytes|B|[KMGTP]iB)\b")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def out_of_memory(subject: str, backend: Backend | None, error: Exception) -> OutOfMemoryError | None:
    """The error to raise if `error` says that there is no memory for `subject`; None for any other error."""
    if isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(f"{subject}: {error}")
    if not (isinstance(error, MemoryError) if backend is None else backend.is_out_of_memory(error)):
        return None
    amount = _requested_amount(str(error))
    where = "" if backend is None else f" on {backend!r}"
    asked = "" if amount is None else f", {amount} were asked for"
    return OutOfMemoryError(f"{subject}{where}: out of memory{asked}; take less at once, or a lower precision")


def _requested_amount(text: str) -> str | None:
    """The first amount of memory that the text names, in a readable unit."""
    match = _AMOUNT.search(text)
    if match is None:
        return None
    number, unit = float(match[1]), "B" if match[2] == "bytes" else match[2]
    index = _UNITS.index(unit)
    while number >= 1024 and index + 1 < len(_UNITS):
        number, index = number / 1024, index + 1
    return f"{number:.4g} {_UNITS[index] if index else 'bytes'}"
