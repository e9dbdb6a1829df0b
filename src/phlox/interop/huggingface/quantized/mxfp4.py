"""The experts of gpt-oss in mxfp4: floats of 4 bits, and a power of two for each group of 32 inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phlox.errors import RecordError
from phlox.interop.adapter import Adapter
from phlox.interop.huggingface.quantized.matrix import Matrix, byte_words
from phlox.module.reparameterization import Sites
from phlox.record import LazyTensor, Record, TensorEntry

_BLOCKS, _SCALES = "_blocks", "_scales"


class Stack(NamedTuple):
    """The matrices of all experts in a file."""

    blocks: LazyTensor
    """[n, outputs, groups, 16]: bytes of two codes, the first in the low bits."""
    scales: LazyTensor
    """[n, outputs, groups]."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape in floats: [n, inputs, outputs]."""
        n, outputs, groups, size = self.blocks.shape
        return n, groups * size * 2, outputs

    def read(self) -> Matrix:
        """A packed matrix with a row for each output, which has the inputs of all experts."""
        n, inputs, outputs = self.shape
        codes, scales = (
            np.ascontiguousarray(part.read().swapaxes(0, 1)).reshape(outputs, -1) for part in (self.blocks, self.scales)
        )
        return Matrix(byte_words(codes), "e2m1", n * inputs, Matrix(byte_words(scales), "e8m0", scales.shape[1], None))


def stacks_in(record: Record) -> tuple[Record, dict[str, Stack]]:
    """A record in which entries of their shapes, which cannot be read, stand for such weights; and the weights."""
    stacks: dict[str, Stack] = {}
    entries: dict[str, Any] = {path: record[path] for path in record}
    for path in list(entries):
        name = path.removesuffix(_BLOCKS)
        if name == path or (scales := record.tensors.get(f"{name}{_SCALES}")) is None:
            continue
        stack = stacks[name] = Stack(record.tensors[path].tensor, scales.tensor)
        if len(stack.blocks.shape) != 4 or stack.blocks.shape[:3] != stack.scales.shape:
            raise RecordError(f"{path}: shape {stack.blocks.shape} does not fit scales of {stack.scales.shape}")
        del entries[path], entries[f"{name}{_SCALES}"]
        entries[name] = TensorEntry(LazyTensor.from_function(stack.shape, "float32", _never, name))
    return (Record(entries, record.metadata, unreadable=record.unreadable) if stacks else record), stacks


def with_stacks(model: Any, adapter: Adapter, stacks: dict[str, Stack]) -> Any:
    """The model with packed weights in the places of parameters; one weight at a time is read."""
    sites, new = Sites(model), dict[str, Any]()
    for name, stack in stacks.items():
        n, inputs, outputs = stack.shape
        # The numbers of the outputs tell which of them each of our weights has.
        numbers = LazyTensor.from_array(np.arange(outputs).reshape(1, 1, outputs), name)
        matrix = stack.read()
        for path, entry in adapter.read(Record({name: numbers}), strict=False).tensors.items():
            rows = entry.tensor.read().reshape(-1)
            packed = matrix.rows(rows).packed(sites.found[path].param.device)
            new[path] = packed.as_weight((n, inputs, len(rows)), 2)
    return sites.replace(new)


def _never() -> Any:
    raise RecordError("a quantized weight cannot be tied to another entry of the file")
