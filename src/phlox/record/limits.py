"""Limits of the text of one file: names, shapes, values and metadata, but not the elements of tensors.

A few bytes of a file can become objects of a hundred bytes, so without limits a small hostile file could fill the
memory. Writers keep the same limits, so every written file can be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from phlox.errors import RecordError

MAX_TEXT = 100_000_000
"""Maximum bytes of text: the limit of safetensors, here for every format."""

MAX_ITEMS = 4_000_000
"""Maximum number of items (numbers, strings, lists, dicts); in JSON, of commas and opening brackets."""

MAX_ENTRIES = 500_000
"""Maximum number of entries of one record."""

_STRING = re.compile(
    rb'"(?:[^"\\]|\\.?)*+"?', re.DOTALL
)  # an unterminated one extends to the end, so nothing is searched twice
_SIGNS = (b",", b"[", b"{")

# MessagePack by first byte: the number of bytes that follow, of bytes of a length, and of bytes of an item count.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_EXTENSIONS = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_FOLLOW = {**_FIXED, **_EXTENSIONS, **{0xA0 + length: length for length in range(32)}}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTED = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def check_entries(count: int) -> None:
    """Raise RecordError if a record has too many entries for a file."""
    if count > MAX_ENTRIES:
        raise RecordError(f"it has {count} entries; the most that a file holds is {MAX_ENTRIES}")


def check_size(size: int) -> None:
    """Raise RecordError if the text of a file has too many bytes."""
    if size > MAX_TEXT:
        raise RecordError(f"its names and values take {size} bytes; the most is {MAX_TEXT}: hold data as tensors")


def check_json(*texts: bytes | memoryview) -> None:
    """Raise RecordError if pieces of JSON together have too many bytes or items."""
    _check(texts, _json_items)


def check_message_pack(*texts: bytes | memoryview) -> None:
    """Raise RecordError if pieces of MessagePack together have too many bytes or items."""
    _check(texts, _message_pack_items)


def check_message_pack_items(data: memoryview) -> None:
    """Raise RecordError if MessagePack has too many items; the content of a `bin` or `ext` does not count."""
    if len(data) > MAX_ITEMS and _message_pack_items(data) > MAX_ITEMS:
        raise RecordError(f"it has more than {MAX_ITEMS} items: hold numbers as arrays")


def length_of(data: memoryview) -> int:
    """The claimed number of items (or pairs) of the MessagePack array (or map) at the start of `data`; else 0."""
    first = data[0] if len(data) else 0
    if 0x80 <= first < 0xA0:
        return first & 15
    return int.from_bytes(data[1 : 1 + _COUNTED.get(first, 0)], "big")


def _check(texts: Sequence[bytes | memoryview], items: Callable[[bytes], int]) -> None:
    size = sum(map(len, texts))
    check_size(size)
    # An item takes at least one byte, so most texts need no count.
    if size > MAX_ITEMS and sum(items(bytes(text)) for text in texts) > MAX_ITEMS:
        raise RecordError(f"its names and values are more than {MAX_ITEMS} items: hold numbers as tensors")


def _json_items(text: bytes) -> int:
    count = sum(map(text.count, _SIGNS))
    if count > MAX_ITEMS:  # some may be within strings
        count -= sum(sum(map(match.group().count, _SIGNS)) for match in _STRING.finditer(text))
    return count


def _message_pack_items(data: bytes | memoryview) -> int:
    count = at = 0
    while at < len(data) and count <= MAX_ITEMS:
        first = data[at]
        at += 1 + _FOLLOW.get(first, 0) + _COUNTED.get(first, 0)
        if width := _SIZED.get(first):
            at += width + int.from_bytes(data[at : at + width], "big") + (0xC7 <= first <= 0xC9)
        count += 1
    return count
