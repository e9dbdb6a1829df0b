"""The text of a GGUF file: its keys with typed values, and as metadata of a record, which is text by name.

In a record, text stays as it is, and every other value is JSON. The key "gguf.types" has the types of those, as JSON:
{"llama.block_count": "u32", "tokenizer.ggml.scores": "[f32]"}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.errors import RecordError
from phlox.host.text import short
from phlox.record import limits
from phlox.record.dtypes import DTYPES, Array

KeyValue: TypeAlias = "str | bool | int | float | np.generic | Array | list[str] | list[int] | list[float]"
"""The value of a key. In a file numbers have types: they are scalars and arrays of NumPy."""

TYPES_KEY = "gguf.types"

_NUMBERS = {
    0: "u8",
    1: "i8",
    2: "u16",
    3: "i16",
    4: "u32",
    5: "i32",
    6: "f32",
    7: "bool",
    10: "u64",
    11: "i64",
    12: "f64",
}
_TEXT, _ARRAY = 8, 9
_CODES = {**{name: code for code, name in _NUMBERS.items()}, "str": _TEXT}


class Cursor:
    """Reads the text of a file in order. What is claimed must be there; errors say where, and for what."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0
        self.subject = "its header"
        self._items = 0

    def error(self, reason: str, at: int | None = None) -> RecordError:
        """An error at a position, by default the current one."""
        return RecordError(f"{self.subject}: at byte {self.at if at is None else at}, {reason}")

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        start, end = self.at, self.at + size
        if end > len(self._data):
            raise self.error(f"{size} bytes are claimed, of which the file has {len(self._data) - start}; truncated?")
        if end > limits.MAX_TEXT:
            limits.check_size(end)
        self.at = end
        return self._data[start:end]

    def number(self, size: int) -> int:
        """An unsigned number of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def count(self, what: str, size: int) -> int:
        """A number of items, each of `size` bytes at least, which must be there."""
        start, count = self.at, self.number(8)
        if count > (len(self._data) - self.at) // size:
            raise self.error(f"{count} {what} are claimed, more than fit in the file", start)
        self._items += count
        if self._items > limits.MAX_ITEMS:
            raise self.error(f"there are more than {limits.MAX_ITEMS} items", start)
        return count

    def text(self) -> str:
        """Text, after its length."""
        start = self.at
        data = self.take(self.number(8))
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"the text is not UTF-8 ({error.reason} in its byte {error.start})", start) from None

    def value(self) -> KeyValue:
        """The value of a key, after its type."""
        start, code = self.at, self.number(4)
        if code == _TEXT:
            return self.text()
        if code in _NUMBERS:
            return self._numbers(_NUMBERS[code], 1)[0]
        if code != _ARRAY:
            raise self.error(f"{code} is not a type of values", start)
        start, code = self.at, self.number(4)
        if code == _TEXT:
            return [self.text() for _ in range(self.count("texts", 8))]
        if code not in _NUMBERS:
            raise self.error("an array of arrays is not read" if code == _ARRAY else f"{code} is not a type", start)
        return self._numbers(_NUMBERS[code], self.count("numbers", DTYPES[_NUMBERS[code]].itemsize))

    def _numbers(self, name: str, count: int) -> Array:
        dtype, start = DTYPES[name], self.at
        numbers = np.frombuffer(self.take(count * dtype.itemsize), dtype.newbyteorder("<")).astype(dtype)
        if name == "bool" and numbers.view(np.uint8).max(initial=0) > 1:
            raise self.error("a truth value is neither 0 nor 1", start)
        return numbers


def encoded_text(text: str) -> bytes:
    """Text after its length."""
    data = text.encode()
    return len(data).to_bytes(8, "little") + data


def encoded_value(key: str, value: KeyValue) -> bytes:
    """A value after its type; plain numbers have the types that other programs expect."""
    if isinstance(value, str):
        return _code(_TEXT) + encoded_text(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        texts = b"".join(map(encoded_text, cast("list[str]", value)))
        return _code(_ARRAY) + _code(_TEXT) + len(value).to_bytes(8, "little") + texts
    numbers = _typed(value)
    name = "" if numbers.ndim > 1 else _name(numbers)
    if name not in _CODES:
        raise RecordError(
            f"the key {key}: GGUF has no type for {short(value)}: numbers, text, or a list of one of them"
        )
    data = _code(_CODES[name]) + (len(numbers).to_bytes(8, "little") if numbers.ndim else b"")
    data += np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()
    return _code(_ARRAY) + data if numbers.ndim else data


def as_metadata(values: Mapping[str, KeyValue]) -> dict[str, str]:
    """Values as the metadata of a record."""
    texts: dict[str, str] = {}
    types: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, str):
            texts[key] = value
        elif isinstance(value, list):
            texts[key], types[key] = json.dumps(value, ensure_ascii=False), "[str]"
        else:
            numbers = _typed(value)
            name = _name(numbers)
            # The fewest digits that give the same number in its own type.
            plain = [float(str(each)) for each in numbers.flat] if name == "f32" else numbers.reshape(-1).tolist()
            texts[key], types[key] = (json.dumps(plain), f"[{name}]") if numbers.ndim else (json.dumps(plain[0]), name)
    return {**texts, TYPES_KEY: json.dumps(types)} if types else texts


def from_metadata(texts: Mapping[str, str]) -> dict[str, KeyValue]:
    """The inverse of `as_metadata`; RecordError for text that does not have the type that it should have."""
    types = _json(TYPES_KEY, texts.get(TYPES_KEY, "{}"))
    if not isinstance(types, dict):
        raise RecordError(f"the metadata {TYPES_KEY!r} is reserved for the types of the other keys")
    values: dict[str, KeyValue] = {}
    for key, text in texts.items():
        if key != TYPES_KEY:
            name = cast("dict[str, Any]", types).get(key, "str")
            values[key] = text if name == "str" else _value(key, text, str(name))
    return values


def _value(key: str, text: str, name: str) -> KeyValue:
    value: Any = _json(key, text)
    element = name.strip("[]")
    is_list = isinstance(value, list)
    if is_list == name.startswith("["):
        if element == "str" and is_list and all(isinstance(item, str) for item in cast("list[Any]", value)):
            return cast("list[str]", value)
        try:
            numbers = np.array(value, DTYPES[element])
            if numbers.ndim == is_list:
                return numbers if is_list else numbers[()]
        except (KeyError, TypeError, ValueError, OverflowError):
            pass
    raise RecordError(f"the metadata {key}: {short(text)} is not of the type {short(name)}")


def _json(key: str, text: str) -> Any:
    limits.check_json(text.encode())
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(f"the metadata {key}: {short(text)} is not JSON") from None


def _typed(value: object) -> Array:
    """A number or list of numbers with a type; those of Python have the type that programs expect for such a key."""
    numbers = np.asarray(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return numbers
    if numbers.dtype.kind == "f" or not numbers.size:
        return numbers.astype(np.float32)
    if numbers.dtype.kind == "i":
        for name in ("i32", "i64") if numbers.ndim else ("u32", "i32", "i64"):
            limit = np.iinfo(DTYPES[name])
            if limit.min <= numbers.min() and numbers.max() <= limit.max:
                return numbers.astype(DTYPES[name])
    return numbers


def _name(numbers: Array) -> str:
    return next((name for name in _CODES if DTYPES.get(name) == numbers.dtype), "")


def _code(code: int) -> bytes:
    return code.to_bytes(4, "little")
