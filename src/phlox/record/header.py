"""The header of every file, and what several formats have in common, besides the elements of tensors.

The header is schema version, format, precision, and the version of Phlox that wrote the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from phlox.errors import RecordError
from phlox.record.dtypes import DTYPES, SHORT_NAMES, DType, checked_shape
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.values import Value
from phlox.version import __version__

if TYPE_CHECKING:
    from phlox.record.record import Record

SCHEMA = 2
"""The schema version of all formats together. A reader supports every version up to this one."""


class NewerSchemaError(RecordError):
    """A file is intact, but has a newer schema than this Phlox knows."""


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


# --- JSON, MessagePack and the index of records in parts: a map for each entry

_NOTHING = msgspec.Raw(b"")


class Item(msgspec.Struct):
    """The description of an entry: a plain value or a tensor. For a tensor, a format adds where its elements are."""

    path: str
    value: msgspec.Raw = _NOTHING
    id: str | None = None
    dtype: str = ""
    shape: list[int] = []

    def form(self) -> tuple[DType, tuple[int, ...]]:
        """The dtype and the shape of a tensor; RecordError if a tensor cannot have them."""
        if self.dtype not in DTYPES:
            raise RecordError(f"{self.path}: {self.dtype[:40]!r} is not an element type ({', '.join(DTYPES)})")
        dtype = DTYPES[self.dtype]
        return dtype, checked_shape(self.shape, dtype, self.path)


def fields_of(path: str, entry: TensorEntry) -> dict[str, Any]:
    """The description of a tensor as a format writes it."""
    fields: dict[str, Any] = {"path": path, "dtype": SHORT_NAMES[entry.tensor.dtype], "shape": list(entry.tensor.shape)}
    return fields if entry.id is None else {**fields, "id": entry.id}


class Document(msgspec.Struct):
    """The parts of a record in one map; a format adds the checksums."""

    phlox: Header
    metadata: msgspec.Raw
    aliases: msgspec.Raw
    entries: msgspec.Raw


T = TypeVar("T", bound=Item)


def entries_of(
    items: Iterable[T], value: Callable[[msgspec.Raw], Value], tensor: Callable[[T], LazyTensor]
) -> dict[str, TensorEntry | Value]:
    """The described entries; the two functions decode a plain value and a tensor."""
    entries: dict[str, TensorEntry | Value] = {}
    for item in items:
        if item.path in entries:
            raise RecordError(f"it has {item.path[:200]!r} twice")
        is_tensor = item.value is _NOTHING
        entries[item.path] = TensorEntry(tensor(item), item.id) if is_tensor else value(item.value)
    return entries
