"""Optimizer states as plain values, which a record can hold: their skeletons, constants and NumPy arrays.

Nothing that a file names is imported, and no method of a class that it names is run: a dataclass, named tuple or enum
is looked up in modules that are already imported.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

import numpy as np

from phlox.errors import OptimizerError, RecordError
from phlox.record import LazyTensor
from phlox.record.dtypes import DTYPES

ARRAY = "array"
RAW_KEYS = frozenset({str, int, float, bool, type(None)})
"""The types of dict keys that a record can hold unchanged."""
_classes: weakref.WeakValueDictionary[str, type[Any]] = weakref.WeakValueDictionary()
"""Classes that were saved, by name; classes that are defined in functions cannot be found in any other way."""


# --- constants: ("constant", kind, content), where the content is text or tuples of text


def constant(value: Any) -> tuple[Any, ...]:
    """A value that is not a leaf: it is part of the skeleton, so a compiled function is compiled for it."""
    cls = cast("type[Any]", type(value))
    if isinstance(value, Enum):
        return ("constant", "enum", cls, value.name)
    if isinstance(value, np.generic):
        scalar = cast("np.generic[Any]", value)
        if scalar.dtype.kind in "OVMm":
            raise OptimizerError(f"optimizer state may not hold a NumPy scalar of {scalar.dtype}")
        return ("constant", "numpy", scalar.dtype.str, _text(scalar.tobytes()))
    if value is None or cls in (bool, str):
        return ("plain", value)
    if isinstance(value, int):
        return ("constant", "int", str(int(value)))
    if isinstance(value, float):
        return ("constant", "float", float(value).hex())
    if isinstance(value, complex):
        return ("constant", "complex", value.real.hex(), value.imag.hex())
    if isinstance(value, (bytes, bytearray)):
        return ("constant", "bytearray" if isinstance(value, bytearray) else "bytes", _text(bytes(value)))
    if isinstance(value, str):
        return ("plain", str(value))
    if isinstance(value, (set, frozenset)):
        parts = [constant(part) for part in cast("set[Any]", value)]
        return ("constant", "set" if isinstance(value, set) else "frozenset", tuple(sorted(parts, key=repr)))
    if cls is tuple:
        return ("constant", "tuple", tuple([constant(part) for part in value]))
    raise OptimizerError(
        "a set, or the keys of a dict, in optimizer state may be of numbers, strings, bytes, enums and tuples of "
        f"these, got {cls.__name__}"
    )


def from_constant(skeleton: Any) -> Any:
    """The inverse of `constant`."""
    if skeleton[0] == "plain":
        return skeleton[1]
    _, kind, *content = skeleton
    match kind:
        case "enum":
            return content[0][content[1]]
        case "numpy":
            return np.frombuffer(_bytes(content[1]), np.dtype(content[0]))[0]
        case "int":
            return int(content[0])
        case "float":
            return float.fromhex(content[0])
        case "complex":
            return complex(float.fromhex(content[0]), float.fromhex(content[1]))
        case "bytes":
            return _bytes(content[0])
        case "bytearray":
            return bytearray(_bytes(content[0]))
        case "set":
            return {from_constant(part) for part in content[0]}
        case "frozenset":
            return frozenset(from_constant(part) for part in content[0])
        case "tuple":
            return tuple([from_constant(part) for part in content[0]])
        case _:
            raise ValueError(f"unknown constant {kind!r}")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode(), validate=True)


def key_of(key: Any) -> Any:
    """The key of a dict as a skeleton has it: unchanged, or as a constant."""
    return key if type(key) in RAW_KEYS else constant(key)


def from_key(key: Any) -> Any:
    """The inverse of `key_of`."""
    return from_constant(key) if isinstance(key, tuple) and cast("Any", key)[:1] == ("constant",) else cast("Any", key)


# --- skeletons as values of a record


def to_plain(skeleton: Any) -> Any:
    """The skeleton as a value that a record can hold: lists for tuples, and classes by name."""
    if isinstance(skeleton, tuple):
        return [to_plain(part) for part in cast("tuple[Any, ...]", skeleton)]
    if isinstance(skeleton, type):
        skeleton = cast("type[Any]", skeleton)
        name = f"{skeleton.__module__}:{skeleton.__qualname__}"
        _classes[name] = skeleton
        return name
    return skeleton


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`; raises `RecordError` for a class that is not imported or defined."""
    if not isinstance(value, list):
        return value
    parts: list[Any] = [from_plain(part) for part in cast("list[Any]", value)]
    match parts:
        case ["dataclass" | "named" as kind, str(name), *_]:
            parts[1] = _class(name, "named tuple" if kind == "named" else kind)
        case ["constant", "enum", str(name), str(member)]:
            parts[2] = enum = _class(name, "enum")
            if member not in enum.__members__:
                raise RecordError(f"the enum {name} has no member {member!r}")
        case _:
            pass
    return tuple(parts)


_IS_OF_KIND: dict[str, Callable[[type[Any]], bool]] = {
    "dataclass": dataclasses.is_dataclass,
    "named tuple": lambda cls: issubclass(cls, tuple) and hasattr(cast("Any", cls), "_fields"),
    "enum": lambda cls: issubclass(cls, Enum),
}


def _class(name: str, kind: str) -> Any:
    module, _, path = name.partition(":")
    cls: Any = _classes.get(name)
    if cls is None:
        cls = sys.modules.get(module)
        for part in path.split("."):
            cls = getattr(cls, "__dict__", {}).get(part)
    if not isinstance(cls, type) or not _IS_OF_KIND[kind](cls):
        raise RecordError(f"there is no {kind} {name!r} here; import or define it before its state is loaded")
    return cast("Any", cls)


# --- NumPy arrays


def as_tensor(array: Any, name: str) -> LazyTensor:
    """A NumPy array as a tensor of a record: unchanged if records have its element type, else as numbers or bytes.

    It is copied, because the optimizer may write to the array later.
    """
    dtype = array.dtype
    if dtype.hasobject or dtype.names is not None:
        raise OptimizerError(f"{name}: optimizer state may not hold a NumPy array of {dtype}; make it one of numbers")
    copy = np.array(array, order="C")
    if dtype.newbyteorder("=") in DTYPES.values():
        return LazyTensor.from_array(copy, name)
    if dtype.kind == "c" and dtype.itemsize in (8, 16):
        return LazyTensor.from_array(copy.reshape(-1).view(f"f{dtype.itemsize // 2}"), name)
    return LazyTensor.from_array(np.frombuffer(copy.tobytes(), np.uint8), name)


def from_tensor(tensor: LazyTensor, text: str, shape: tuple[int, ...]) -> Any:
    """The inverse of `as_tensor`; raises `RecordError` if the shape or type does not fit."""
    dtype, array = np.dtype(text), tensor.read()
    if dtype.hasobject or dtype.names is not None:
        raise RecordError(f"{tensor.path}: no array of {dtype} is read from a record")
    if dtype.newbyteorder("=") in DTYPES.values():
        values = array.astype(dtype)
    elif dtype.kind == "c" and dtype.itemsize in (8, 16):
        values = array.reshape(-1).astype(f"f{dtype.itemsize // 2}").view(dtype).reshape(shape)
    else:
        values = np.frombuffer(array.astype(np.uint8).tobytes(), dtype).reshape(shape).copy()
    if values.shape != tuple(shape):
        raise RecordError(f"{tensor.path}: expected an array of shape {tuple(shape)}, found {values.shape}")
    return values
