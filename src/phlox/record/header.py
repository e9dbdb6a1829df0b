"""The header of every file: schema version, format, precision, and the version of Phlox that wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from phlox.errors import RecordError
from phlox.version import __version__

if TYPE_CHECKING:
    from phlox.record.record import Record

SCHEMA = 2
"""The schema version of all formats together. A reader supports every version up to this one."""


class NewerSchemaError(RecordError):
    """A file is whole, but of a schema that this Phlox does not know yet."""


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a record file: its format, versions and precision."""

    schema: int
    """The version of the schema."""
    format: str
    """The name of the format."""
    precision: str
    """The precision with which the tensors were written."""
    phlox: str
    """The version of Phlox that wrote the file."""
    positional: bool = False
    """Whether entries have no names, only positions."""
    fingerprint: str | None = None
    """The fingerprint of the omitted names of a positional file (`names.fingerprint_of`), if known."""

    @staticmethod
    def of(record: Record, format: str, precision: str) -> Header:
        """The header for a file of `record`."""
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
            raise NewerSchemaError(
                f"it has schema version {self.schema}, written by Phlox {self.phlox}; "
                f"this Phlox ({__version__}) reads versions up to {SCHEMA}: install a newer one"
            )
        if self.schema < 1:
            raise RecordError(f"it claims schema version {self.schema}; the first is 1")
        if self.format != format:
            raise RecordError(f"it claims the format {self.format!r}, where {format!r} was expected")
