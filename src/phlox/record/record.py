"""`Record`: named lazy tensors and plain values, the content of a file of any format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from phlox.errors import RecordError
from phlox.host.text import html_by
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.names import fingerprint_of as fingerprint_of
from phlox.record.names import nearest
from phlox.record.precision import PrecisionLike, Underflow, checked_precision, stored_type
from phlox.record.values import Value, checked_text, checked_value

if TYPE_CHECKING:
    from phlox.record.dtypes import Array
    from phlox.record.header import Header

Entry: TypeAlias = TensorEntry | Value


class UnreadableEntryError(RecordError):
    """A record cannot hold an entry of a file; the message is the reason in `Record.unreadable`."""


_SHOWN = 40
_NONE: Mapping[str, str] = MappingProxyType({})


class MissingEntryError(RecordError):
    """A record has no entry at a path."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.path = path


class Record:
    """An ordered, immutable mapping of dotted paths to tensors (`TensorEntry`) and plain values.

    Args:
        entries: path -> `TensorEntry`, `LazyTensor`, NumPy array, or a plain value (None, bool, 64-bit int, float, str,
            and lists and string-keyed dicts of them; these are copied). Tensors are not copied and not read.
        metadata: free text about the whole, by name.
        aliases: alias -> path in `entries`: a tensor with several names is stored once. `record[alias]` and `alias in
            record` work; iteration, `paths` and `len` cover stored entries only.
        positional: the paths are "0", "1", ...: positions, not names.
        header: the header of the file that the record was read from.
        unreadable: path -> reason, for entries of a file that a record cannot hold (an object of a class, a complex
            tensor). `record[path]` raises RecordError with the reason, and a record with such an entry cannot be
            written. Iteration, `paths`, `len` and `in` skip it, and `renamed` can drop it.

    Raises RecordError for a path that is empty or has an empty part, an alias without target, or a value that is not
    plain.

    >>> import numpy as np
    >>> record = Record({"weight": np.zeros((2, 3), np.float32), "step": 7})
    >>> record
    Record: 2 entries, 24 B of tensors
      path    type     shape or value  bytes
      weight  float32  (2, 3)           24 B
      step    value    7
    >>> record["step"], record["weight"].tensor.read().sum()
    (7, np.float32(0.0))
    """

    __slots__ = ("_entries", "_tensors", "_values", "aliases", "header", "metadata", "positional", "unreadable")

    metadata: Mapping[str, str]
    aliases: Mapping[str, str]
    positional: bool
    header: Header | None
    unreadable: Mapping[str, str]

    def __init__(
        self,
        entries: Mapping[str, Entry | LazyTensor | Array] | None = None,
        metadata: Mapping[str, str] | None = None,
        *,
        aliases: Mapping[str, str] | None = None,
        positional: bool = False,
        header: Header | None = None,
        unreadable: Mapping[str, str] | None = None,
    ) -> None:
        self._entries: dict[str, Entry] = {}
        for path, entry in (entries or {}).items():
            if not isinstance(entry, TensorEntry) or (entry.id is not None and not entry.id.isascii()):
                entry = _entry(entry, path)
            self._entries[_checked_path(path)] = entry
        self._tensors = {p: e for p, e in self._entries.items() if isinstance(e, TensorEntry)}
        self._values = {p: e for p, e in self._entries.items() if not isinstance(e, TensorEntry)}
        self.metadata = MappingProxyType(_checked_metadata(metadata or {}))
        self.aliases = MappingProxyType(self._checked_aliases(aliases or {}))
        self.positional = positional
        self.header = header
        self.unreadable = MappingProxyType(self._checked_unreadable(unreadable)) if unreadable else _NONE
        if positional and list(self._entries) != [str(i) for i in range(len(self._entries))]:
            raise RecordError('the paths of a positional record are "0", "1", ... in order')

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The tensors by path, in order."""
        return MappingProxyType(self._tensors)

    @property
    def values(self) -> Mapping[str, Value]:
        """The plain values by path, in order."""
        return MappingProxyType(self._values)

    @property
    def fingerprint(self) -> str | None:
        """`fingerprint_of` the omitted names of a positional file; None for all other records."""
        return None if self.header is None else self.header.fingerprint

    @property
    def nbytes(self) -> int:
        """The size of all tensors together, in bytes."""
        return sum([entry.tensor.nbytes for entry in self._tensors.values()])

    def paths(self) -> list[str]:
        """The paths of tensors and values, in order."""
        return list(self._entries)

    def __getitem__(self, path: str) -> Any:
        """The `TensorEntry` or the plain value at `path`, which may be an alias.

        Raises RecordError if there is none, and, with the reason, for an entry that is `unreadable`.
        """
        try:
            return self._entries[self.aliases.get(path, path)]
        except KeyError:
            if path in self.unreadable:
                raise RecordError(f"{path}: {self.unreadable[path]}") from None
            near = nearest(path, self._entries)
            hint = f"; did you mean {near!r}?" if near else ""
            raise MissingEntryError(f"the record has no entry {path!r}{hint}", path) from None

    def __contains__(self, path: object) -> bool:
        return path in self._entries or path in self.aliases

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def select(self, prefix: str) -> Record:
        """The entries, metadata and aliases below `prefix.`, without the prefix.

        An alias below the prefix to a tensor outside it becomes an entry, so the selection is self-contained.

        >>> import numpy as np
        >>> Record({"model.weight": np.zeros(2), "step": 3}).select("model").paths()
        ['weight']
        """
        if self.positional:
            raise RecordError(f"cannot select {prefix!r} from a positional record: it has no names")
        start = prefix + "."
        entries = {p.removeprefix(start): e for p, e in self._entries.items() if p.startswith(start)}
        aliases: dict[str, str] = {}
        for alias, path in self.aliases.items():
            if not alias.startswith(start):
                continue
            if path.startswith(start):
                aliases[alias.removeprefix(start)] = path.removeprefix(start)
            else:
                entries[alias.removeprefix(start)] = self._entries[path]
        metadata = {k.removeprefix(start): v for k, v in self.metadata.items() if k.startswith(start)}
        unreadable = {p.removeprefix(start): why for p, why in self.unreadable.items() if p.startswith(start)}
        return Record(entries, metadata, aliases=aliases, header=self.header, unreadable=unreadable)

    @staticmethod
    def merge(records: Mapping[str, Record]) -> Record:
        """Combine several records, each below its prefix; `select` is the inverse.

        >>> import numpy as np
        >>> Record.merge({"model": Record({"weight": np.zeros(2)}), "clock": Record({"step": 3})}).paths()
        ['model.weight', 'clock.step']
        """
        entries: dict[str, Entry] = {}
        metadata: dict[str, str] = {}
        aliases: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        for prefix, record in records.items():
            if record.positional:
                raise RecordError(f"cannot merge {prefix!r}: a positional record has no names")
            for path, entry in record._entries.items():
                if f"{prefix}.{path}" in entries:
                    raise RecordError(f"cannot merge {prefix!r}: two records give {f'{prefix}.{path}'!r}")
                entries[f"{prefix}.{path}"] = entry
            metadata |= {f"{prefix}.{key}": text for key, text in record.metadata.items()}
            aliases |= {f"{prefix}.{alias}": f"{prefix}.{path}" for alias, path in record.aliases.items()}
            unreadable |= {f"{prefix}.{path}": why for path, why in record.unreadable.items()}
        return Record(entries, metadata, aliases=aliases, unreadable=unreadable)

    def with_precision(self, precision: PrecisionLike, underflow: Underflow | None = None) -> Record:
        """This record with every tensor at a precision, cast when read.

        Raises RecordError, naming the path, if the precision gives an invalid dtype or one of another kind, and, when a
        tensor is read, for a value that does not fit. Nonzero values that become zero give a `RecordWarning` when read,
        or are added to `underflow`.

        >>> import numpy as np
        >>> from phlox.record.precision import PrecisionSettings
        >>> record = Record({"weight": np.ones(2, np.float32), "steps": np.arange(2)})
        >>> record.with_precision(PrecisionSettings(float="bf16", int="u8"))["steps"].tensor.read()
        array([0, 1], dtype=uint8)
        """
        precision = checked_precision(precision)
        cast: dict[str, Entry] = {}
        for path, entry in self._tensors.items():
            tensor = entry.tensor
            dtype = stored_type(precision, path, tensor.dtype, entry.state)
            if dtype is not tensor.dtype or path != tensor.path:
                cast[path] = TensorEntry(tensor.astype(dtype, path, underflow), entry.id, entry.state)
        return self.with_entries(cast) if cast else self

    def with_entries(self, entries: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> Record:
        """This record with these entries at their paths and, unless it is None, with this metadata.

        >>> Record({"step": 3, "epoch": 1}).with_entries({"step": 4}).values
        mappingproxy({'step': 4, 'epoch': 1})
        """
        return Record(
            {**self._entries, **entries},
            self.metadata if metadata is None else metadata,
            aliases=self.aliases,
            positional=self.positional,
            header=self.header,
            unreadable=self.unreadable,
        )

    def __repr__(self) -> str:
        from phlox.record.pages import page_of_record

        return page_of_record(self, _SHOWN).text()

    _repr_html_ = html_by("phlox.record.pages", "page_of_record")

    def _checked_unreadable(self, unreadable: Mapping[str, str]) -> dict[str, str]:
        for path, why in unreadable.items():
            checked_text(path, path)
            checked_text(why, path)
            if path in self:
                raise RecordError(f"{path!r} is both an entry and unreadable")
        return dict(unreadable)

    def _checked_aliases(self, aliases: Mapping[str, str]) -> dict[str, str]:
        for alias, path in aliases.items():
            _checked_path(alias)
            if path not in self._entries:
                raise RecordError(f"{alias!r} is an alias of {path!r}, which is not in the record")
            if alias in self._entries:
                raise RecordError(f"{alias!r} is both an entry and an alias of {path!r}")
        return dict(aliases)


def check_name(name: str) -> None:
    """Raise UnreadableEntryError if the name of an entry in a file is not a valid path."""
    try:
        _checked_path(name)
    except RecordError as error:
        raise UnreadableEntryError(str(error)) from None


def _checked_path(path: object) -> str:
    if not isinstance(path, str):
        raise RecordError(f"a path must be a str, not {type(path).__name__}")
    if "" in path.split("."):
        raise RecordError(f"{path[:200]!r} is not a path: a path is names joined by dots, none of them empty")
    return path if type(path) is str and path.isascii() else checked_text(path, path)


def _checked_metadata(metadata: Mapping[Any, Any]) -> dict[str, str]:
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise RecordError(f"metadata must be str -> str; {key!r} holds {type(text).__name__}")
        if not (key.isascii() and text.isascii()):
            checked_text(key, "metadata")
            checked_text(text, f"metadata {key}")
    return dict(metadata)


def _entry(entry: object, path: str) -> Entry:
    if isinstance(entry, TensorEntry):
        if entry.id is not None and not entry.id.isascii():
            checked_text(entry.id, path)
        return entry
    if isinstance(entry, LazyTensor):
        return TensorEntry(entry)
    if isinstance(entry, np.ndarray):
        return TensorEntry(LazyTensor.from_array(entry, path))
    return checked_value(entry, path)
