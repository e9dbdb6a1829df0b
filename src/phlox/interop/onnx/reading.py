"""Reading ONNX files: the protocol buffer, and the values of tensors, also those in files beside it.

Files are not trusted: their sizes and locations are checked before they are used.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from phlox.errors import ExtraNotInstalledError, RecordError
from phlox.interop.onnx.elements import NAMES, STRING

MAX_ELEMENTS = 1 << 36


def onnx() -> ModuleType:
    """The `onnx` package; `ExtraNotInstalledError` without it."""
    try:
        import onnx
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"ONNX files need the onnx package: install Phlox with the extra 'onnx' ({error})"
        ) from None
    return onnx


def read_model(source: Any) -> tuple[Any, Path | None, str]:
    """The model in a file, in bytes or as given; the folder of its external data; and its name in error messages.

    Raises `RecordError` if it is not an ONNX model, and `FileNotFoundError` if there is no file.
    """
    package = onnx()
    if isinstance(source, package.ModelProto):
        return source, None, "the model"
    folder: Path | None = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(cast("str", source))
        folder, name = path.parent, str(path)
        if path.is_dir():
            raise RecordError(f"{name}: is a folder; give the .onnx file in it")
        content = path.read_bytes()
    else:
        name = "the file" if hasattr(source, "read") else "the bytes"
        content = source.read() if hasattr(source, "read") else bytes(cast("bytes", source))
    model = package.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:
        raise RecordError(f"{name}: is no ONNX model, or damaged ({error})") from None
    if not model.HasField("graph") or not (model.opset_import or model.functions):
        raise RecordError(f"{name}: is no ONNX model: it has no graph, or names no operator set")
    return model, folder, name


class Tensors:
    """The values of the tensors of a model."""

    @staticmethod
    def bits_of(element: int) -> int:
        """How many bits an element of a type takes; 0 for text, and for types that are not known."""
        return 0 if element == STRING or element not in NAMES else _bits_of(element)

    def __init__(self, folder: Path | None, model: str) -> None:
        self._folder = folder
        self._model = model
        self._maps: dict[Path, np.ndarray[Any, Any]] = {}

    def array(self, proto: Any) -> np.ndarray[Any, Any]:
        """The values of a `TensorProto`; `RecordError` if they do not fit its shape and type."""
        helper = onnx().numpy_helper
        name = f"{self._model}: the tensor `{proto.name}`"
        dims = tuple(int(size) for size in proto.dims)
        if min(dims, default=0) < 0 or math.prod(dims) > MAX_ELEMENTS:
            raise RecordError(f"{name} has the shape {dims}, which no tensor has")
        if proto.data_type not in NAMES:
            raise RecordError(f"{name} has elements of the type {proto.data_type}, which this version does not know")
        try:
            if proto.data_location == 1:
                return self._external(proto, dims, name)
            self._check_size(proto, dims, name)
            return helper.to_array(proto)
        except RecordError:
            raise
        except Exception as error:
            raise RecordError(f"{name} is damaged: {error}") from None

    @staticmethod
    def _check_size(proto: Any, dims: tuple[int, ...], name: str) -> None:
        """Check that the number of values fits the shape, before memory of that size is allocated."""
        if proto.data_type == STRING or not proto.HasField("raw_data"):
            stored = max(
                len(getattr(proto, name))
                for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
            )
            if stored > 2 * math.prod(dims) or (math.prod(dims) > 8 * stored):
                raise RecordError(f"{name} has the shape {dims}, but {stored} values")
            return
        needed = _bytes_of(proto.data_type, math.prod(dims))
        if len(proto.raw_data) != needed:
            raise RecordError(f"{name} has the shape {dims}, which takes {needed} bytes, but {len(proto.raw_data)}")

    def _external(self, proto: Any, dims: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
        entries = {entry.key: entry.value for entry in proto.external_data}
        file = entries.get("location", "")
        if self._folder is None:
            raise RecordError(f"{name} lies in the file {file!r}; give the path of the model, so that it is found")
        root = self._folder.resolve()
        path = (root / file).resolve()
        if not file or not path.is_relative_to(root):
            raise RecordError(f"{name} lies in {file!r}, outside of the folder of the model; this is not read")
        if not path.is_file():
            raise RecordError(f"{name} lies in {file!r}, which is not beside the model; copy that file there too")
        if path not in self._maps:
            empty = path.stat().st_size == 0
            self._maps[path] = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
        content = self._maps[path]
        needed = _bytes_of(proto.data_type, math.prod(dims))
        try:
            start = int(entries.get("offset", "0"))
            length = int(entries.get("length", str(needed)))
        except ValueError:
            raise RecordError(f"{name}: its place in {file!r} is not given in numbers") from None
        if length != needed:
            raise RecordError(f"{name} has the shape {dims}, which takes {needed} bytes, but {length} in {file!r}")
        if start < 0 or start + needed > len(content):
            raise RecordError(f"{name} lies beyond the end of {file!r}, which has {len(content)} bytes")
        package = onnx()
        part = content[start : start + needed]
        if _bits_of(proto.data_type) >= 8:
            return part.view(package.helper.tensor_dtype_to_np_dtype(proto.data_type)).reshape(dims)
        whole = package.TensorProto(dims=dims, data_type=proto.data_type, raw_data=part.tobytes())
        return package.numpy_helper.to_array(whole)


def _bits_of(element: int) -> int:
    name = NAMES[element]
    if name in ("uint4", "int4", "float4e2m1"):
        return 4
    return 2 if name in ("uint2", "int2") else 8 * onnx().helper.tensor_dtype_to_np_dtype(element).itemsize


def _bytes_of(element: int, count: int) -> int:
    return -(-count * _bits_of(element) // 8)
