"""Records: saved models, independent of backend, precision and file format.

A `Record` maps paths to lazy tensors and plain values. A `Recorder` writes it in one format at one precision, and reads
it back. `match` checks whether a record fits the module that it is loaded into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.errors import RecordError, RecordWarning
from phlox.lazy import lazily, lend
from phlox.record.dtypes import Array
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.gather import Recordable, gather, restore
from phlox.record.header import Header
from phlox.record.packed import PackedArrays
from phlox.record.precision import BFLOAT16, DOUBLE, FULL, HALF, Precision, PrecisionLike, PrecisionSettings
from phlox.record.record import Record
from phlox.record.values import Value

if TYPE_CHECKING:
    from phlox.record.formats.binary import BinaryRecorder
    from phlox.record.formats.flax import FlaxReader
    from phlox.record.formats.gguf import GgufRecorder
    from phlox.record.formats.json import JsonRecorder
    from phlox.record.formats.message_pack import MessagePackRecorder
    from phlox.record.formats.npz import NpyReader, NpzRecorder
    from phlox.record.formats.parts import PartsReader
    from phlox.record.formats.pickle import PickleReader
    from phlox.record.formats.pytorch import PyTorchReader
    from phlox.record.formats.reader import Reader
    from phlox.record.formats.recorder import Recorder
    from phlox.record.formats.registry import load, save
    from phlox.record.formats.safetensors import SafetensorsRecorder
    from phlox.record.formats.sharded import ShardedReader
    from phlox.record.inspection.comparison import RecordDifference, difference
    from phlox.record.io.sink import Sink
    from phlox.record.io.source import Source
    from phlox.record.loading.matching import match
    from phlox.record.loading.renaming import renamed
    from phlox.record.loading.report import LoadReport

lend(["phlox.record.header"], Record=Record)
lend(["phlox.record.record"], Header=Header, Array=Array)

__all__ = [
    "BFLOAT16", "DOUBLE", "FULL", "HALF", "BinaryRecorder", "FlaxReader", "GgufRecorder", "Header", "JsonRecorder",
    "LazyTensor", "LoadReport", "MessagePackRecorder", "NpyReader", "NpzRecorder", "PackedArrays", "PartsReader",
    "PickleReader", "Precision", "PrecisionLike", "PrecisionSettings", "PyTorchReader", "Reader", "Record",
    "RecordDifference", "RecordError", "RecordWarning", "Recordable", "Recorder", "SafetensorsRecorder",
    "ShardedReader", "Sink", "Source", "TensorEntry", "Value", "difference", "gather", "load", "match", "renamed",
    "restore", "save",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "formats.binary": "BinaryRecorder",
        "formats.json": "JsonRecorder",
        "formats.message_pack": "MessagePackRecorder",
        "formats.reader": "Reader",
        "formats.recorder": "Recorder",
        "formats.registry": "load save",
        "formats.safetensors": "SafetensorsRecorder",
        "io.sink": "Sink",
        "io.source": "Source",
        "loading.matching": "match",
        "loading.renaming": "renamed",
        "loading.report": "LoadReport",
        "inspection.comparison": "RecordDifference difference",
        "formats.flax": "FlaxReader",
        "formats.gguf": "GgufRecorder",
        "formats.npz": "NpyReader NpzRecorder",
        "formats.parts": "PartsReader",
        "formats.pickle": "PickleReader",
        "formats.pytorch": "PyTorchReader",
        "formats.sharded": "ShardedReader",
    },
)
