"""Records: what a model is saved as, whatever backend it runs on, and at whatever precision, in whatever format.

A `Record` maps paths to lazy tensors and plain values. A `Recorder` writes it in its format at its precision, and reads
it back. `match` tells whether a record fits what is to be loaded from it.
"""

from __future__ import annotations

from phlox.errors import RecordError as RecordError
from phlox.record.binary import BinaryRecorder as BinaryRecorder
from phlox.record.entry import LazyTensor as LazyTensor
from phlox.record.entry import TensorEntry as TensorEntry
from phlox.record.formats import load as load
from phlox.record.formats import save as save
from phlox.record.header import Header as Header
from phlox.record.json import JsonRecorder as JsonRecorder
from phlox.record.message_pack import MessagePackRecorder as MessagePackRecorder
from phlox.record.precision import BFLOAT16 as BFLOAT16
from phlox.record.precision import DOUBLE as DOUBLE
from phlox.record.precision import FULL as FULL
from phlox.record.precision import HALF as HALF
from phlox.record.precision import Precision as Precision
from phlox.record.precision import PrecisionSettings as PrecisionSettings
from phlox.record.reader import Reader as Reader
from phlox.record.record import Record as Record
from phlox.record.recorder import Recorder as Recorder
from phlox.record.report import LoadReport as LoadReport
from phlox.record.report import match as match
from phlox.record.safetensors import SafetensorsRecorder as SafetensorsRecorder
from phlox.record.sink import Sink as Sink
from phlox.record.source import Source as Source
from phlox.record.values import Value as Value
