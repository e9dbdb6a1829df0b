"""Formats that Phlox does not read: how to recognise them by content or name, and the remedy for each."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from phlox.record.io.zip import first_name

_IsOne: TypeAlias = "Callable[[bytes], bool]"


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format: its description and remedy, and how its files are recognised."""

    what: str
    remedy: str
    is_one: _IsOne | None = None
    """Whether the first bytes of a file are of this format."""
    names: str | None = None
    """A regular expression for the end of a file or folder name that identifies the format by itself."""
    holds: tuple[str, ...] = ()
    """Names of files and folders; a folder of this format has at least one of them."""

    def __str__(self) -> str:
        return f"it is {self.what}; {self.remedy}"


def foreign_file(head: bytes, name: str) -> str | None:
    """The message for a file of a known other format, by its first bytes and name; None if it is unknown.

    >>> foreign_file(b"GGUF\\3\\0\\0\\0", "model.gguf")
    'it is a GGUF file of llama.cpp; load the original weights, ...'
    """
    for one in FOREIGN:
        if one.is_one is not None and one.is_one(head):
            return str(one)
    return None if (one := format_of_suffix(name)) is None else str(one)


def foreign_folder(names: set[str], folder: str) -> str | None:
    """The message for a folder of a known other format, by the names in it; None if it is unknown."""
    for one in FOREIGN:
        if not names.isdisjoint(one.holds):
            return str(one)
    return None if (one := format_of_suffix(folder)) is None else str(one)


def format_of_suffix(name: str) -> ForeignFormat | None:
    """The format that the end of a name indicates."""
    return next((one for one in FOREIGN if one.names and re.search(one.names, name, re.IGNORECASE)), None)


def _begins(*starts: bytes, at: int = 0) -> _IsOne:
    return lambda head: head[at:].startswith(starts)


def _zip_of(pattern: str) -> _IsOne:
    return lambda head: (name := first_name(head)) is not None and re.search(pattern, name) is not None


def _is_page(head: bytes) -> bool:
    return head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html"))


def _is_onnx(head: bytes) -> bool:
    # ModelProto: the first field is ir_version, a small integer; then comes the producer's name or the graph.
    return len(head) > 3 and head[0] == 8 and 0 < head[1] < 32 and head[2] in b"\x12\x1a\x22\x3a\x42" and _is_name(head)


def _is_name(head: bytes) -> bool:
    """Whether the second field is text, such as a producer's name: a SavedModel of TensorFlow has none."""
    return head[2] != 0x12 or (head[3] < 64 and head[4 : 4 + head[3]].isascii() and head[4 : 4 + head[3]].isalnum())


def _is_llama2(head: bytes) -> bool:
    """Whether a file begins with the seven sizes of llama2.c."""
    if len(head) < 28:
        return False
    width, hidden, layers, heads, shared, vocabulary, context = struct.unpack("<7i", head[:28])
    sizes = (0 < width <= 1 << 16, 0 < hidden <= 1 << 18, 0 < layers <= 512, 0 < heads <= 512, 0 < shared <= heads)
    return all(sizes) and width % heads == 0 and 1 < abs(vocabulary) <= 1 << 20 and 1 < context <= 1 << 24


_TO_NPZ = "load it with {library}, and save its arrays by name with numpy.savez, which Phlox reads"
_WITH_TENSORFLOW = (
    "in TensorFlow, save numpy.savez('weights.npz', **{name: tf.train.load_variable(path, name) for name, _ in "
    "tf.train.list_variables(path)}), which Phlox reads"
)
_WITH_KERAS = (
    "in Keras, save numpy.savez('weights.npz', **{w.path: w.numpy() for w in model.weights}), which Phlox reads"
)
OF_EXPORT = "save the state_dict() of torch.export.load(path).module() with safetensors"
_WITH_ORBAX = "phlox.interop.orbax.load(folder) reads it, where Orbax is installed"
_WITH_H5PY = (
    "with h5py, save numpy.savez('weights.npz', **arrays) of the datasets that file.visititems() finds, which Phlox "
    "reads"
)
_OF_COREML = "load the original weights, of which it was made, or save numpy.savez of what coremltools finds in it"

FOREIGN: tuple[ForeignFormat, ...] = (
    ForeignFormat(
        "a GGUF file of llama.cpp",
        "load the original weights, of which it was made (safetensors, by the folder of Hugging Face), or write its "
        "tensors with gguf.GGUFReader and numpy.savez",
        _begins(b"GGUF"),
        r"\.gguf$",
    ),
    ForeignFormat(
        "a GGML file, of llama.cpp or whisper.cpp",
        "load the original weights, of which it was made",
        _begins(b"lmgg", b"fmgg", b"tjgg", b"algg"),
        r"\.ggml$",
    ),
    ForeignFormat(
        "a MATLAB file",
        "with scipy.io (before version 7.3) or h5py, save numpy.savez('weights.npz', **arrays), which Phlox reads",
        _begins(b"MATLAB"),
        r"\.mat$",
    ),
    ForeignFormat("an HDF5 file, such as Keras wrote", _WITH_H5PY, _begins(b"\x89HDF\r\n\x1a\n"), r"\.(h5|hdf5|he5)$"),
    ForeignFormat(
        "a Keras archive",
        _WITH_KERAS,
        _zip_of(r"^(metadata\.json|config\.json|model\.weights\.h5|_layer_checkpoint_dependencies/.*)$"),
        r"\.keras$",
    ),
    ForeignFormat(
        "a program of torch.export", OF_EXPORT, _zip_of(r"(^|/)serialized_exported_program\.json$"), r"\.pt2$"
    ),
    ForeignFormat(
        "a SavedModel of TensorFlow",
        _WITH_TENSORFLOW,
        None,
        r"(^|[/\\])saved_model\.pb(txt)?$",
        ("saved_model.pb", "saved_model.pbtxt"),
    ),
    ForeignFormat(
        "a frozen graph of TensorFlow", "save numpy.savez of its constants, which Phlox reads", None, r"\.pb(txt)?$"
    ),
    ForeignFormat(
        "a checkpoint of TensorFlow",
        _WITH_TENSORFLOW,
        _begins(b"model_checkpoint_path:"),
        r"\.data-\d+-of-\d+$|\.ckpt[^/\\]*\.(index|meta)$|(^|[/\\])(ckpt|variables|model)[^/\\]*\.index$",
        ("checkpoint",),
    ),
    ForeignFormat(
        "a model of TensorFlow Lite",
        _TO_NPZ.format(library="tf.lite.Interpreter"),
        _begins(b"TFL3", at=4),
        r"\.tflite$",
    ),
    ForeignFormat(
        "a program of ExecuTorch",
        "save the state_dict() of the model that it was made of",
        _begins(b"ET12", at=4),
        r"\.pte$",
    ),
    ForeignFormat(
        "a model of Core ML",
        _OF_COREML,
        None,
        r"\.(mlmodel|mlpackage|mlmodelc)$",
        ("Manifest.json",),
    ),
    ForeignFormat(
        "a checkpoint of Orbax",
        _WITH_ORBAX,
        holds=("manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA", "ocdbt.process_0"),
    ),
    ForeignFormat(
        "a distributed checkpoint of PyTorch",
        "torch.distributed.checkpoint.format_utils.dcp_to_torch_save(folder, 'model.pt') makes one file of it, which "
        "Phlox reads",
        None,
        r"\.distcp$",
        (".metadata", "__0_0.distcp"),
    ),
    ForeignFormat(
        "a Zarr store",
        "save its arrays by name with numpy.savez, which Phlox reads",
        None,
        r"\.zarr$",
        (".zarray", ".zgroup", "zarr.json"),
    ),
    ForeignFormat(
        "an ONNX model",
        "phlox.interop.onnx.load(path) makes a module of it",
        _is_onnx,
        r"\.onnx$",
    ),
    ForeignFormat("a model of Caffe", _TO_NPZ.format(library="caffe"), None, r"\.caffemodel$"),
    ForeignFormat(
        "weights of Darknet",
        "they have no names; load a conversion of them, such as that of the network's port to PyTorch",
        _begins(*(struct.pack("<3i", 0, minor, revision) for minor, revision in ((1, 0), (2, 0), (2, 5)))),
    ),
    ForeignFormat(
        "a file of MXNet",
        _TO_NPZ.format(library="mxnet.nd.load"),
        _begins((0x112).to_bytes(8, "little")),
    ),
    ForeignFormat(
        "an engine of TensorRT",
        "it holds compiled code, not weights: load what it was made of",
        _begins(b"ptrt", b"ftrt"),
        r"\.(engine|trt)$",
    ),
    ForeignFormat(
        "a model of llama2.c",
        "load the weights that it was exported from (safetensors, or the .pt beside it)",
        lambda head: head.startswith(b"24ka") or _is_llama2(head),
    ),
    ForeignFormat(
        "a dump of joblib",
        "load it with joblib where you trust it, and save its arrays with numpy.savez, which Phlox reads",
        _begins(b"ZF"),
        r"\.joblib$",
    ),
    ForeignFormat(
        "a pointer of Git LFS in the place of a file",
        "fetch the file itself with `git lfs pull`",
        _begins(b"version https://git-lfs"),
    ),
    ForeignFormat("a web page, perhaps an error of the server", "download the file itself again", _is_page),
    ForeignFormat(
        "an Arrow or Parquet table",
        _TO_NPZ.format(library="pyarrow"),
        _begins(b"PAR1", b"ARROW1"),
        r"\.(parquet|arrow)$",
    ),
    ForeignFormat(
        "an archive",
        "unpack it, and load what is in it",
        lambda head: head.startswith((b"PK\3\4", b"7z\xbc\xaf\x27\x1c", b"Rar!", b"BZh")) or head[257:262] == b"ustar",
        r"\.(zip|7z|rar|tar|tgz|tar\.(gz|zst|bz2|xz))$",
    ),
    ForeignFormat("an image", "weights are in another file", _begins(b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8")),
)
"""The known formats, in the order in which they are tried."""
