"""Writes the small files of this release that every later one must read: `python -m tests.record.golden.make FOLDER`.

Run it once for each schema version, when that is new, and never again for an old one. `test_golden.py` reads them all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from phlox.record import (
    BinaryRecorder,
    GgufRecorder,
    JsonRecorder,
    LazyTensor,
    MessagePackRecorder,
    Record,
    Recorder,
    SafetensorsRecorder,
)
from phlox.record import PrecisionSettings as Settings
from phlox.record import TensorEntry as Entry


def golden() -> Record:
    """One of everything that a record holds."""
    numbers = np.array([0.0, -0.0, 1.5, -2.25, 65504.0, 2.0**-14, np.inf, -np.inf, np.nan])
    entries: dict[str, object] = {
        "encoder.weight": Entry(
            LazyTensor.from_array(np.arange(6, dtype=np.float32).reshape(2, 3) / 4), "id-of-weight"
        ),
        "step": 7,
        **{f"floats.{t.__name__}": numbers.astype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)},
        **{
            f"ints.i{8 * n}": np.array([-(2 ** (8 * n - 1)), -1, 0, 2 ** (8 * n - 1) - 1], f"i{n}")
            for n in (1, 2, 4, 8)
        },
        **{f"ints.u{8 * n}": np.array([0, 1, 2 ** (8 * n) - 1], f"u{n}") for n in (1, 2, 4, 8)},
        "flags": np.array([[True], [False]]),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "grüße.名": np.ones(1, np.float32),
        "settings": {"lr": 0.1, "names": ["a", None, True], "big": 2**63, "not a number": float("nan"), "$float": "1"},
    }
    return Record(entries, {"module": "Golden", "note": "one of everything"}, aliases={"tied.weight": "encoder.weight"})  # pyright: ignore[reportArgumentType]


def files() -> dict[str, Recorder]:
    """The recorders by the stem of their file."""
    as_is = Settings()
    return {
        "safetensors": SafetensorsRecorder(as_is),
        "msgpack": MessagePackRecorder(as_is),
        "binary": BinaryRecorder(as_is),
        "positional": BinaryRecorder(as_is, names=False),
        "json": JsonRecorder(as_is),
        "decimal": JsonRecorder(as_is, numbers="decimal", indent=2),
        "gzip": SafetensorsRecorder(as_is, "gzip"),
        "zstd": MessagePackRecorder(as_is, "zstd"),
        "gguf": GgufRecorder(as_is),
        "half": SafetensorsRecorder(Settings(float="f16")),
    }


def save_parts(folder: Path) -> None:
    """The record in shards, as two processes save it; the first tensor is cut."""
    from phlox.distributed import save
    from tests.distributed.saving_support import groups, sharded, together

    whole = golden()
    weight = whole["encoder.weight"]
    cuts = {0: [(slice(0, 2), slice(0, 2))], 1: [(slice(0, 2), slice(2, 3))]}

    def record(rank: int) -> Record:
        part = Entry(sharded(weight.tensor.read(), rank, cuts, "encoder.weight").tensor, weight.id)
        entries = {path: part if path == "encoder.weight" else whole[path] for path in whole}
        return Record(entries, whole.metadata, aliases=whole.aliases)

    together(groups(2), lambda group: save(record(group.rank), folder, group=group))


if __name__ == "__main__":
    for stem, recorder in files().items():
        record = golden() if stem != "half" else Record({"weight": np.array([0.1, 0.2], np.float32)})
        print(recorder.save(record, Path(sys.argv[1]) / stem))
    save_parts(Path(sys.argv[1]) / "parts")
