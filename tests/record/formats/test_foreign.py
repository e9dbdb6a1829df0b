"""Files and folders of other formats: each is named, with what to do."""

from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from phlox.record import Record, RecordError, load, save
from phlox.record.formats.foreign import foreign_formats


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, "{}")
    return buffer.getvalue()


RAW = np.random.default_rng(0).normal(size=30).astype(np.float32).tobytes()
FILES: dict[str, tuple[bytes, str]] = {
    "ggml-base.bin": (b"lmgg" + bytes(20), "GGML"),
    "stories.bin": (struct.pack("<7i", 288, 768, 6, 6, 6, 32000, 256) + RAW, "llama2.c"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5.*h5py"),
    "model.keras": (archive("metadata.json", "config.json", "model.weights.h5"), "Keras archive"),
    "model.onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0", "ONNX model.*onnx.load"),
    "unnamed": (b"\x08\x0a\x12\x07pytorch\x1a\x052.1.0", "ONNX model"),
    "saved_model.pb": (b"\x08\x01\x12\xff\x02\n\x01", "SavedModel of TensorFlow"),
    "frozen.pb": (b"\n\x10abc", "frozen graph"),
    "variables.index": (b"\0\0", "checkpoint of TensorFlow"),
    "model.ckpt-7.data-00000-of-00001": (b"\0\1", "checkpoint of TensorFlow"),
    "checkpoint": (b'model_checkpoint_path: "x"\n', "checkpoint of TensorFlow"),
    "model.tflite": (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
    "model.mlmodel": (b"\x08\x05\x12\x10", "Core ML"),
    "model.pte": (b"\x1c\0\0\0ET12", "ExecuTorch"),
    "old.mat": (b"MATLAB 5.0 MAT-file, ...", "MATLAB.*scipy"),
    "model.joblib": (b"ZF0x5", "joblib"),
    "yolo.weights": (struct.pack("<3i", 0, 2, 5) + RAW, "Darknet"),
    "model.params": ((0x112).to_bytes(8, "little") + bytes(8), "MXNet"),
    "model.engine": (b"ptrt" + bytes(8), "TensorRT"),
    "model.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS.*git lfs pull"),
    "model.pt": (b"\n<!DOCTYPE html><html>", "web page.*download"),
    "table.parquet": (b"PAR1", "Parquet"),
    "model.tar": (b"model".ljust(257, b"\0") + b"ustar\0", "archive; unpack it"),
    "model.zip": (archive("model.txt"), "archive; unpack it"),
    "image.bin": (b"\x89PNG\r\n\x1a\n", "image"),
}
FOLDERS = {
    "orbax": ("manifest.ocdbt", "checkpoint of Orbax"),
    "older": ("_METADATA", "checkpoint of Orbax"),
    "saved": ("saved_model.pb", "SavedModel of TensorFlow"),
    "run": ("checkpoint", "checkpoint of TensorFlow"),
    "model.mlpackage": ("Manifest.json", "Core ML"),
    "dcp": (".metadata", "distributed checkpoint of PyTorch"),
    "store.zarr": (".zgroup", "Zarr"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    data, message = FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecordError, match=rf"{re.escape(name)}: Phlox cannot read it: it is .*{message}") as info:
        load(tmp_path / name)
    assert len(str(info.value)) < 600 and "\n" not in str(info.value)
    if name != "model.safetensors":  # a name that tells nothing does no harm to what is known by its beginning
        assert "Phlox cannot read it" in str(info.value)


@pytest.mark.parametrize("layers", [6, 0])
def test_seven_sizes_alone_are_a_model_of_llama2(layers: int, tmp_path: Path) -> None:
    """Not what is shorter by a byte, nor what has no layers."""
    head = struct.pack("<7i", 288, 768, layers, 6, 6, -32000, 256)
    for size in (27, 28, 29):
        (tmp_path / "stories.bin").write_bytes((head + b"\0")[:size])
        with pytest.raises(RecordError) as info:
            load(tmp_path / "stories.bin")
        assert ("llama2.c" in str(info.value)) == (size >= 28 and layers > 0)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name: str, tmp_path: Path) -> None:
    inner, message = FOLDERS[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / inner).write_bytes(b"")
    with pytest.raises(RecordError, match=f"Phlox cannot read it: it is .*{message}"):
        load(tmp_path / name)


def test_raw_numbers_and_nothing(tmp_path: Path) -> None:
    for name in ("model.bin", "model.ckpt", "model", "model.xyz"):
        (tmp_path / name).write_bytes(RAW)
        with pytest.raises(RecordError, match=r"its content has no format.*numpy\.fromfile"):
            load(tmp_path / name)
    for name in ("model.pt", "model.bin", "x"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(RecordError, match="it is empty"):
            load(tmp_path / name)


def test_our_own_files_are_ours_whatever_they_are_called(tmp_path: Path) -> None:
    record = Record({"w": np.arange(3, dtype=np.float32)})
    for ours in ("a.safetensors", "a.npz", "a.msgpack", "a.phlox", "a.json", "a.gguf"):
        data = save(record, tmp_path / ours).read_bytes()
        for name in ("x.h5", "x.onnx", "x.gguf", "x.bin", "x.keras", "x.pt"):
            (tmp_path / name).write_bytes(data)
            assert load(tmp_path / name)["w"].tensor.read().tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["x.pt", "x.pth", "x.bin", "x.ckpt.gz", "x.npy", "x.pkl", "x.eqx", "x.h5", "x.keras",
                                  "x.onnx", "x.ggml", "x.tflite"])  # fmt: skip
def test_what_is_not_written_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=rf"cannot save .*{re.escape(name)}: Phlox writes no such file.*\.safetensors"
    ):
        save(Record({"x": 1}), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x", "x.v2", "run.2026-01-01", "x.weights", "x.best", "x.PT"])
def test_what_is_saved_is_found_under_the_same_name(name: str, tmp_path: Path) -> None:
    save(Record({"x": 1}), tmp_path / name)
    assert load(tmp_path / name)["x"] == 1


def test_every_row_says_what_to_do() -> None:
    for one in foreign_formats():
        assert one.begins or one.zip or one.like or one.names or one.holds
        assert re.fullmatch(r"it is [^\n]{5,}; [^\n]{10,}[^.]", str(one))
