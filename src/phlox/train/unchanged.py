"""What a training leaves as it was: frozen parameters, which checkpoints may leave out and take from the base again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from phlox.errors import RecordError
from phlox.module import Param
from phlox.record import Record
from phlox.record.io.crc32 import crc32
from phlox.train.state import ALONE, ONLY, TrainState

_LEFT_OUT = "left out"
"""The name, in a record's metadata, of the paths that it leaves out, each with the checksum of its values."""
_SHOWN = 5


def remember_base(state: TrainState, record: Record) -> None:
    """Note the checksums of what is not trained, when a training begins; a resumed one keeps those that it had."""
    if not state.base:
        state.base = {path: _checksum(record, path) for path, _ in _frozen(state) if path in record}


def without_unchanged(state: TrainState, record: Record) -> Record:
    """The record of a state without parameters that are as they were when the training began.

    A parameter that was frozen then and still is counts as unchanged; others that are not trained, such as running
    statistics, are compared.
    """
    left_out = {
        path: state.base[path]
        for path, param in _frozen(state)
        if path in state.base and (param.trainable or _checksum(record, path) == state.base[path])
    }
    return _without(record, left_out)


def weights_without_unchanged(state: TrainState, weights: Record) -> Record:
    """The same for the weights of the model for inference: those of the model, or averages of them."""
    left_out: dict[str, int] = {}
    for path, _ in _frozen(state):
        group, _, rest = path.partition(".")
        short = rest.partition(".")[2] if state.is_single else rest
        if group == "models" and short in weights and _checksum(weights, short) == state.base.get(path):
            left_out[short] = state.base[path]
    return _without(weights, left_out)


def completed(record: Record, own: Record) -> Record:
    """A record with what it leaves out, from the record of a state or a model that has the same base.

    Raises `RecordError`, with the paths, if the base is another one.
    """
    left_out = left_out_of(record)
    wrong = [path for path, checksum in left_out.items() if path not in own or _checksum(own, path) != checksum]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise RecordError(
            "the record has only what a training has changed, and the rest of this model is not the one that it began "
            f"with: {', '.join(wrong[:_SHOWN])}{more} {'differs' if len(wrong) == 1 else 'differ'}; make the model of "
            "the same weights as then"
        )
    entries = {**{path: record[path] for path in record}, **{path: own[path] for path in left_out}}
    aliases = {**record.aliases, **{alias: path for alias, path in own.aliases.items() if path in left_out}}
    metadata = {key: text for key, text in record.metadata.items() if key != _LEFT_OUT}
    return Record(entries, metadata, aliases=aliases, header=record.header)


def left_out_of(record: Record) -> dict[str, int]:
    """The paths that a record leaves out, each with a checksum; `RecordError` if the list is damaged."""
    if _LEFT_OUT not in record.metadata:
        return {}
    try:
        listed: Any = json.loads(record.metadata[_LEFT_OUT])
        return {str(path): int(checksum) for path, checksum in listed.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"the list of what the record leaves out is damaged: {error}") from error


def _frozen(state: TrainState) -> Iterator[tuple[str, Param]]:
    """The parameters that are not trained, by their paths in the record of the state; also their averages."""
    averages: Mapping[str, Any] = state.auxiliary.get("ema", {})
    for name, model in state.models.items():
        recorded = ALONE if name == ONLY else name
        for path, param in model.named_params():
            if not param.trained:
                yield f"models.{recorded}.{path}", param
                if name in averages:
                    yield f"aids.ema.{recorded}.average.{path}", param


def _without(record: Record, left_out: Mapping[str, int]) -> Record:
    entries = {path: record[path] for path in record if path not in left_out}
    aliases = {alias: path for alias, path in record.aliases.items() if path not in left_out}
    return Record(entries, {**record.metadata, _LEFT_OUT: json.dumps(left_out)}, aliases=aliases)


def _checksum(record: Record, path: str) -> int:
    array = np.ascontiguousarray(record[path].tensor.read())
    return crc32(f"{array.dtype} {array.shape}".encode(), crc32(array.reshape(-1).view(np.uint8).data))
