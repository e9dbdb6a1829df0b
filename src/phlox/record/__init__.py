"""Records: saved models, independent of backend, precision and file format.

A `Record` maps paths to lazy tensors and plain values. A `Recorder` writes it in one format at one precision, and reads
it back. `match` checks whether a record fits the module that it is loaded into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.errors import RecordError as RecordError
from phlox.errors import RecordWarning as RecordWarning
from phlox.lazy import lazily as _lazily
from phlox.lazy import lend as _lend
from phlox.record.dtypes import Array as _Array
from phlox.record.entry import LazyTensor as LazyTensor
from phlox.record.entry import TensorEntry as TensorEntry
from phlox.record.gather import Recordable as Recordable
from phlox.record.gather import gather as gather
from phlox.record.gather import restore as restore
from phlox.record.header import Header as Header
from phlox.record.precision import BFLOAT16 as BFLOAT16
from phlox.record.precision import DOUBLE as DOUBLE
from phlox.record.precision import FULL as FULL
from phlox.record.precision import HALF as HALF
from phlox.record.precision import Precision as Precision
from phlox.record.precision import PrecisionSettings as PrecisionSettings
from phlox.record.record import Record as Record
from phlox.record.values import Value as Value

if TYPE_CHECKING:
    from phlox.record.formats.binary import BinaryRecorder as BinaryRecorder
    from phlox.record.formats.flax import FlaxReader as FlaxReader
    from phlox.record.formats.json import JsonRecorder as JsonRecorder
    from phlox.record.formats.message_pack import MessagePackRecorder as MessagePackRecorder
    from phlox.record.formats.npz import NpyReader as NpyReader
    from phlox.record.formats.npz import NpzRecorder as NpzRecorder
    from phlox.record.formats.parts import PartsReader as PartsReader
    from phlox.record.formats.pickle import PickleReader as PickleReader
    from phlox.record.formats.pytorch import PyTorchReader as PyTorchReader
    from phlox.record.formats.reader import Reader as Reader
    from phlox.record.formats.recorder import Recorder as Recorder
    from phlox.record.formats.registry import load as load
    from phlox.record.formats.registry import save as save
    from phlox.record.formats.safetensors import SafetensorsRecorder as SafetensorsRecorder
    from phlox.record.formats.sharded import ShardedReader as ShardedReader
    from phlox.record.inspection.comparison import RecordDifference as RecordDifference
    from phlox.record.inspection.comparison import difference as difference
    from phlox.record.io.sink import Sink as Sink
    from phlox.record.io.source import Source as Source
    from phlox.record.loading.matching import match as match
    from phlox.record.loading.renaming import renamed as renamed
    from phlox.record.loading.report import LoadReport as LoadReport

_lend(["phlox.record.header"], Record=Record)
_lend(["phlox.record.record"], Header=Header, Array=_Array)

__getattr__, __dir__ = _lazily(
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
        "formats.npz": "NpyReader NpzRecorder",
        "formats.parts": "PartsReader",
        "formats.pickle": "PickleReader",
        "formats.pytorch": "PyTorchReader",
        "formats.sharded": "ShardedReader",
    },
    here="BFLOAT16 DOUBLE FULL HALF Header LazyTensor Precision PrecisionSettings Record RecordError RecordWarning "
    "Recordable TensorEntry Value gather restore",
)
