"""The binary format: aligned, and strict about structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phlox.record import BinaryRecorder, Record, RecordError
from tests.record.support import AS_IS, DTYPES


def test_files_are_mapped_and_aligned(tmp_path: Path) -> None:
    arrays = {f"{'n' * i}{d.name}": np.ones(i, d) for i, d in enumerate(DTYPES, 1) if d.kind != "b"}
    recorder = BinaryRecorder(AS_IS)
    record = recorder.load(recorder.save(Record(arrays), tmp_path / "m"))
    for path, array in arrays.items():
        first, second = record[path].tensor.read(), record[path].tensor.read()
        assert np.shares_memory(first, second) and first.flags.aligned and not first.flags.writeable
        np.testing.assert_array_equal(first, array)


def test_names_of_any_length_in_binary() -> None:
    paths = ["x" * length + tail for length in (1, 127, 128, 255, 256, 300, 20000) for tail in ("", "é", "ê", ".a")]
    record = Record(dict.fromkeys(paths, 1))
    assert BinaryRecorder().from_bytes(BinaryRecorder().to_bytes(record)).paths() == paths


def binary(data: bytes = b"", **fields: Any) -> bytes:
    layout: dict[str, Any] = {
        "schema": 1, "phlox": "1", "precision": "", "metadata": {}, "aliases": {}, "codes": bytes([12]),
        "shapes": [[1]], "values": [], "names": b"\0\1a", "ids": None,
    } | fields  # fmt: skip
    text = msgspec.msgpack.encode(list(layout.values()))
    return b"\x89PHX" + len(text).to_bytes(4, "little") + text + bytes(-len(text) % 8) + data


DAMAGED_BINARY = {
    "empty": b"",
    "magic only": b"\x89PHX",
    "another magic": b"\x89PNG" + bytes(20),
    "header beyond the file": b"\x89PHX\xff\xff\xff\xff" + bytes(20),
    "no data": binary(),
    "trailing data": binary(b"xy"),
    "unknown code": binary(b"x", codes=b"\xff"),
    "no such code": binary(b"x", codes=b"\x20"),
    "shapes missing": binary(b"x", shapes=[]),
    "values missing": binary(codes=b"\0", shapes=[]),
    "values too many": binary(b"x", values=[1]),
    "ids too many": binary(b"x", ids=["a", "b"]),
    "huge shape": binary(b"x", shapes=[[2**40]]),
    "overflow": binary(b"x", shapes=[[2**63 - 1, 2**63 - 1, 0]]),
    "negative shape": binary(b"x", shapes=[[-1]]),
    "name that climbs": binary(b"x", names=b"\0\4../a"),
    "name of dots": binary(b"x", names=b"\0\2.."),
    "name of nothing": binary(b"x", names=b"\0\0"),
    "fingerprint no bytes": binary(b"x", ids=["a"]).replace(b"\x9a", b"\x9b", 1),
    "shape of floats": binary(b"x", shapes=[[1.0]]),
    "same name twice": binary(b"xy", codes=bytes([12, 12]), shapes=[[1], [1]], names=b"\0\1a\1\0"),
    "names too few": binary(b"x", names=b""),
    "names too many": binary(b"x", names=b"\0\1a\0\1b"),
    "name truncated": binary(b"x", names=b"\0\2a"),
    "name shares too much": binary(b"x", names=b"\1\1a"),
    "length without end": binary(b"x", names=b"\0" + b"\xff" * 20),
    "name of bad UTF-8": binary(b"x", names=b"\0\1\xff"),
    "bytes as value": binary(codes=b"\0", shapes=[], values=[b"x"]),
    "newer schema": binary(b"x", schema=3),
    "not a layout": b"\x89PHX\x01\0\0\0\xc0" + bytes(7),
    "padding not zero": b"\x89PHX\x01\0\0\0\x90" + b"x" * 7,
    "fields missing": b"\x89PHX\x01\0\0\0\x90" + bytes(7),
}


@pytest.mark.parametrize("name", DAMAGED_BINARY)
def test_damaged_binary(name: str) -> None:
    with pytest.raises(RecordError, match="binary bytes: not a valid binary record: ."):
        BinaryRecorder().from_bytes(DAMAGED_BINARY[name])


def test_the_undamaged_ones_are_read() -> None:
    assert BinaryRecorder().from_bytes(binary(b"x"))["a"].tensor.read().tolist() == [ord("x")]
