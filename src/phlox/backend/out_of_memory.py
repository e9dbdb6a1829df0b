"""Out of memory: one error in place of those of the engines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from phlox.errors import OutOfMemoryError

if TYPE_CHECKING:
    from phlox.backend.contract import Backend

_AMOUNT = re.compile(r"(\d[\d.]*) ?(bytes|B|[KMGTP]iB)\b")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def out_of_memory(what: str, backend: Backend | None, error: Exception) -> OutOfMemoryError | None:
    """The error to raise if `error` says that there is no memory for `what`; None for any other error."""
    if isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(f"{what}: {error}")
    if not (isinstance(error, MemoryError) if backend is None else backend.is_out_of_memory(error)):
        return None
    amount = _asked(str(error))
    where = "" if backend is None else f" on {backend!r}"
    asked = "" if amount is None else f", {amount} were asked for"
    return OutOfMemoryError(f"{what}{where}: out of memory{asked}; take less at once, or a lower precision")


def _asked(text: str) -> str | None:
    """The first amount of memory that the text names, in a readable unit."""
    found = _AMOUNT.search(text)
    if found is None:
        return None
    number, unit = float(found[1]), "B" if found[2] == "bytes" else found[2]
    place = _UNITS.index(unit)
    while number >= 1024 and place + 1 < len(_UNITS):
        number, place = number / 1024, place + 1
    return f"{number:.4g} {_UNITS[place] if place else 'bytes'}"
