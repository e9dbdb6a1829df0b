"""Sharded records: a Hugging Face index and its shards, read as one record.

An index is a JSON object: "weight_map" maps tensor names to files, and the optional "metadata" describes the whole.
Files have no folder in their name: they are in the folder of the index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import final

import msgspec

from phlox.errors import RecordError
from phlox.record.formats.reader import Reader
from phlox.record.io.files import is_file
from phlox.record.io.source import Source, open_source
from phlox.record.names import listed
from phlox.record.record import Entry, Record

WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Names of the single file, or the index, in a Hugging Face folder."""

_BEGINNING = re.compile(rb'\s*\{\s*(?:"metadata"\s*:\s*\{[^{}]*\}\s*,\s*)?"weight_map"\s*:')
_NO_NAME = re.compile(r"[/\\:\0]|\A\.{0,2}\Z")
_MAP = re.compile(rb'"weight_map"\s*:\s*\{')
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:')
_ESCAPE = re.compile(rb"\\.")
_MAX_INDEX = 100_000_000  # bytes, the limit of a safetensors header
_SHOWN = 5


class _Index(msgspec.Struct):
    weight_map: msgspec.Raw
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


@final
class ShardedReader(Reader):
    """Reads an index and its shards, of any format that Phlox reads, as one record; all files are memory-mapped.

    The index lists the required tensors. A tensor that only a shard has is also in the record, so that loading reports
    it as unexpected. The metadata of the index and the shards is merged.

    Raises RecordError if a shard is missing or lacks a listed tensor, if its name leads out of the folder, or if two
    tensors have one name.

    >>> import tempfile, numpy as np
    >>> from phlox.record.formats.safetensors import SafetensorsRecorder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = SafetensorsRecorder().save(Record({"weight": np.ones(3)}), Path(folder) / "model-1.safetensors")
    ...     _ = (Path(folder) / "model.index.json").write_text('{"weight_map": {"weight": "model-1.safetensors"}}')
    ...     ShardedReader().load(Path(folder) / "model.index.json").paths()
    ['weight']
    """

    format = "sharded"
    suffix = ".index.json"

    def read(self, source: Source) -> Record:
        """See `Reader.read`."""
        weights, metadata = _index(source.data)
        if source.folder is None:
            raise RecordError("its shards are in the same folder, but it was given as bytes; load it from its file")
        shards: dict[str, list[str]] = {}
        for path, name in weights.items():
            shards.setdefault(name, []).append(path)
        _check_files(source.folder, shards)
        entries: dict[str, Entry] = {}
        aliases: dict[str, str] = {}
        shard_of: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        for name, paths in shards.items():
            record = self._shard(source.folder / name, source.verify)
            if missing := [path for path in paths if path not in record and path not in record.unreadable]:
                raise RecordError(
                    f"the shard {name} lacks {listed(missing)}, which the index says {_are(missing)} in it"
                )
            for path in (*record, *record.aliases, *record.unreadable):
                if path in shard_of:
                    raise RecordError(f"{path!r} is in two shards, {shard_of[path]} and {name}")
                shard_of[path] = name
            entries |= {path: record[path] for path in record}
            aliases |= record.aliases
            unreadable |= record.unreadable
            metadata = {**record.metadata, **metadata}
        ordered = {path: entries[path] for path in weights if path in entries} | entries
        return Record(ordered, metadata, aliases=aliases, unreadable=unreadable)

    @classmethod
    def recognises(cls, head: bytes) -> bool:
        """See `Reader.recognises`."""
        return _BEGINNING.match(head) is not None

    def _shard(self, path: Path, verify: bool) -> Record:
        from phlox.record.formats.registry import reader_of  # a circular import: the registry imports this module

        source = open_source(path, self.max_bytes, verify)
        reader = reader_of(source, self.max_bytes)
        if isinstance(reader, ShardedReader):
            raise RecordError(f"the shard {path.name} is an index itself; a shard holds tensors")
        record = reader.decode(source)
        if record.positional:
            raise RecordError(f"the shard {path.name} is a positional record: it has no names")
        return record


def find_in_folder(folder: Path) -> Path:
    """The file or index of the one model in a Hugging Face folder.

    Raises RecordError if there is none, or more than one.
    """
    files = [folder / name for name in WHOLE if is_file(folder / name)]
    if not files:
        from phlox.record.formats.foreign import foreign_folder  # imported only after an error

        if sentence := foreign_folder({entry.name for entry in folder.iterdir()}, str(folder)):
            raise RecordError(f"{folder}: Phlox cannot read it: {sentence}")
        if (folder / "checkpoints" / "checkpoints.json").is_file():
            raise RecordError(
                f"{folder}: the folder of a run; its records are in {folder / 'checkpoints'}: give the name of one"
            )
        raise RecordError(f"{folder}: a folder that has none of {', '.join(WHOLE)}; give the name of the file")
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise RecordError(f"{folder}: which of {names} is meant? Give the name of the file")
    return files[0]


def _index(data: memoryview) -> tuple[dict[str, str], dict[str, str]]:
    if len(data) > _MAX_INDEX:
        raise RecordError(f"it has {len(data)} bytes; an index of more than {_MAX_INDEX} is not read")
    index = msgspec.json.decode(data, type=_Index)
    weights = msgspec.json.decode(index.weight_map, type=dict[str, str])
    _check_unique(data, index.weight_map, len(weights))
    for path, name in weights.items():
        if _NO_NAME.search(name) or len(name) > 255:
            raise RecordError(
                f"{path[:200]!r} is to be in {name[:200]!r}; a shard lies beside the index, and its name has no folder"
            )
    empty = bytes(memoryview(index.metadata)) == b"null"
    texts = {} if empty else msgspec.json.decode(index.metadata, type=dict[str, msgspec.Raw])
    return weights, {key: _text(bytes(memoryview(value))) for key, value in texts.items()}


def _text(value: bytes) -> str:
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def _check_unique(data: memoryview, weights: msgspec.Raw, count: int) -> None:
    """RecordError unless the map has `count` names: decoding keeps only one of two equal names."""
    if sum(1 for _ in _MAP.finditer(data)) > 1:
        raise RecordError('it has "weight_map" twice')
    text = bytes(memoryview(weights))
    plain = text if b"\\" not in text else _ESCAPE.sub(b"", text)
    if plain.count(b'"') == 4 * count:
        return
    seen: set[str] = set()
    for match in _KEY.finditer(text):
        name = msgspec.json.decode(match[1], type=str)
        if name in seen:
            raise RecordError(f"it names {name[:200]!r} twice")
        seen.add(name)


def _check_files(folder: Path, shards: Mapping[str, list[str]]) -> None:
    names = {path.name for path in folder.iterdir()}  # fast even for an index of a million files
    missing = [name for name in shards if name not in names or not is_file(folder / name)]
    if missing:
        texts = [f"{name} with {listed(shards[name])}" for name in missing[:_SHOWN]]
        others = f", and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        count = "a shard is" if len(missing) == 1 else f"{len(missing)} of {len(shards)} shards are"
        raise RecordError(f"{count} missing from {folder}: {', '.join(texts)}{others}")


def _are(paths: list[str]) -> str:
    return "is" if len(paths) == 1 else "are"
