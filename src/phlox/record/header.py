"""What every file says of itself: schema version, format, precision, and the Phlox that wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from phlox.errors import RecordError
from phlox.version import __version__

if TYPE_CHECKING:
    from phlox.record.record import Record

SCHEMA = 2
"""The version of the layout of all formats together. A reader takes every version up to this one."""


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of a file. `positional`: its names are the positions of its entries, and mean nothing more.

    `fingerprint`: of the names that a positional file was written without (`names.fingerprint_of`), where it is known.
    """

    schema: int
    format: str
    precision: str
    phlox: str
    positional: bool = False
    fingerprint: str | None = None

    @staticmethod
    def of(record: Record, format: str, precision: str) -> Header:
        """The header of a file that is to hold `record`."""
        return Header(
            schema=SCHEMA,
            format=format,
            precision=precision,
            phlox=__version__,
            positional=record.positional,
            fingerprint=record.fingerprint if record.positional else None,
        )

    def check(self, format: str) -> None:
        """Raises RecordError unless this Phlox can read the file as `format`."""
        if self.schema > SCHEMA:
            raise RecordError(
                f"it has schema version {self.schema}, written by Phlox {self.phlox}; "
                f"this Phlox ({__version__}) reads versions up to {SCHEMA}: install a newer one"
            )
        if self.schema < 1:
            raise RecordError(f"it claims schema version {self.schema}; the first is 1")
        if self.format != format:
            raise RecordError(f"it claims the format {self.format!r}, where {format!r} was expected")
