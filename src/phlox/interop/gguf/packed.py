"""Quantized weights of GGUF files as packed parameters, and back, without a change of any code or scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from phlox.errors import RecordError
from phlox.interop.adapter import Adapter
from phlox.module import Module
from phlox.module.packed import Packed
from phlox.module.reparameterization import Sites, merge
from phlox.record import Array, LazyTensor, PackedArrays, Record
from phlox.record.formats.gguf.blocks import form_of
from phlox.tensor import tensor


def packed_weights(record: Record, adapter: Adapter) -> Iterator[tuple[str, PackedArrays, int]]:
    """The quantized weights of a file, one at a time.

    For each: the path of our parameter, the packed matrix, and the axis of the parameter along which its rows lie.
    Fused matrices are split and rows put into our order.
    """
    for name, entry in record.tensors.items():
        whole = entry.tensor
        if whole.packing is None or len(whole.shape) != 2:
            continue
        # The adapter's rules, applied to the numbers of rows, say which rows go where; two columns show a transpose.
        parts = adapter.read(Record({name: _numbers(0, whole.shape[0])})).tensors
        packed = whole.packing.read()
        for path, part in parts.items():
            rows = part.tensor.read()
            axis = int(rows.shape[0] == 2 != rows.shape[1])
            yield path, packed.rows((rows.T if axis else rows)[:, 0] // 2), axis


def with_packed(model: Module, record: Record, adapter: Adapter) -> Module:
    """The model with the weights of a file, the quantized ones as they are stored."""
    params = dict(model.named_params())
    device = next(iter(params.values())).device

    def parameter(packed: PackedArrays) -> Packed:
        parts: list[Any] = [
            parameter(part) if isinstance(part, PackedArrays) else None if part is None else tensor(part, device=device)
            for part in (packed.scales, packed.offsets)
        ]
        codes: Any = tensor(packed.codes, device=device)
        return Packed(codes, packed.coding, packed.columns, scales=parts[0], offsets=parts[1])

    weights = {
        path: parameter(packed).as_weight(params[path].shape, axis)
        for path, packed, axis in packed_weights(record, adapter)
    }
    return Sites(model).replace(weights).load_record(adapter.read(record), exclude=list(weights))


def written(model: Module, adapter: Adapter) -> Record:
    """The tensors of a file; packed weights stay so, if all weights that a file has as one tensor are packed alike."""
    record = model.into_record()
    if not any(".codes." in path for path in record):
        return adapter.write(record)

    def arrays(part: Any) -> Any:
        if not isinstance(part, Packed):
            return None if part is None else part.val().numpy().astype(np.float32)
        codes = part.words.val().numpy().astype(np.int32)
        return PackedArrays(codes, part.coding, part.columns, arrays(part.scales), arrays(part.offsets))

    sites = Sites(model, computed=True).found.items()
    weights = {path: site.param for path, site in sites if isinstance(site.param, Packed)}
    within = tuple(f"{path}." for path in weights)
    entries: dict[str, Any] = {path: record[path] for path in record if not path.startswith(within)}
    stored: list[PackedArrays] = [arrays(weight) for weight in weights.values()]
    ends = np.cumsum([len(packed.codes) for packed in stored])
    for path, packed, end in zip(weights, stored, ends, strict=True):
        numbers = _numbers(int(end) - len(packed.codes), int(end))
        entries[path] = numbers.T if weights[path].axis else numbers
    try:
        rows = adapter.write(Record(entries))
        tensors = {path: entry.tensor for path, entry in rows.tensors.items() if entry.tensor.kind == "int"}
        return rows.with_entries(
            {path: _stacked(tensor.read()[:, 0] // 2, stored, ends) for path, tensor in tensors.items()}
        )
    except RecordError:
        return adapter.write(merge(model).into_record())


def _numbers(start: int, stop: int) -> Array:
    """A matrix that shows, in each of two columns, which row is which."""
    return np.arange(2 * start, 2 * stop).reshape(-1, 2)


def _stacked(rows: Array, stored: list[PackedArrays], ends: Array) -> LazyTensor:
    """The matrix with these rows, by their numbers among those of all packed matrices."""
    owners = np.searchsorted(ends, rows, side="right")
    cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(rows)]
    pieces: list[PackedArrays] = []
    for start, stop in pairwise(cuts):
        owner = int(owners[start])
        packed, end = stored[owner], int(ends[owner])
        pieces.append(packed.rows(rows[start:stop] - (end - len(packed.codes))))
        if form_of(packed) != form_of(pieces[0]):
            raise RecordError("they are packed in several ways")
    return LazyTensor.from_packed(PackedArrays.stacked(pieces))
