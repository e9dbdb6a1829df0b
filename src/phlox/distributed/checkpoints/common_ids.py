"""Ids of parameters that are the same in all processes, for records that several of them write together.

An id is drawn at random when a parameter is made, so it differs between processes; and the states of an optimizer are
saved under the ids of the parameters. In a record that processes save together, an id is derived from the name of the
launch and the first path of the parameter in the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from phlox.record import Record, TensorEntry


def with_common_ids(record: Record, run: str) -> Record:
    """The record with ids that are derived from paths, everywhere: in entries, in paths and in plain values.

    Args:
        record: the record of a module, or one with modules whose ids the other parts use.
        run: the seed or the name of the launch, so that parameters of two launches have different ids.

    >>> import numpy as np
    >>> from phlox.record import LazyTensor
    >>> found = []
    >>> for id in ("a1", "b2"):  # two processes
    ...     weight = TensorEntry(LazyTensor.from_array(np.ones(2)), id)
    ...     found.append(with_common_ids(Record({"model.w": weight, f"states.{id}.moment": np.ones(2)}), "run"))
    >>> found[0].paths() == found[1].paths(), found[0]["model.w"].id == found[1]["model.w"].id
    (True, True)
    """
    ids: dict[str, str] = {}
    for path, entry in record.tensors.items():
        if entry.id is not None and entry.id not in ids:
            ids[entry.id] = hashlib.sha256(f"{run}\0{path}".encode()).hexdigest()[:32]
    if not ids:
        return record

    def renamed(path: str) -> str:
        return ".".join([ids.get(part, part) for part in path.split(".")])

    entries: dict[str, Any] = {}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            id = None if entry.id is None else ids[entry.id]
            entries[renamed(path)] = TensorEntry(entry.tensor, id, entry.state)
        else:
            entries[renamed(path)] = _in_value(entry, ids)
    return Record(
        entries,
        {renamed(key): text for key, text in record.metadata.items()},
        aliases={renamed(alias): renamed(path) for alias, path in record.aliases.items()},
        positional=record.positional,
        header=record.header,
        unreadable=record.unreadable,
    )


def _in_value(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return ids.get(value, value)
    if isinstance(value, Mapping):
        return {ids.get(key, key): _in_value(item, ids) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_in_value(item, ids) for item in cast("list[Any]", value)]
    return value
