"""Formats that Phlox does not read: how to recognise them by content or name, and the remedy for each.

They are in `foreign.json`, in the order in which they are tried. It is read after an error.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec

from phlox.record.io.zip import first_name


class ForeignFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A format: its description and remedy, and how its files are recognised."""

    what: str
    remedy: str
    begins: tuple[str, ...] = ()
    """The bytes with which a file begins, as Latin-1: one of these."""
    at: int = 0
    """The offset at which they are."""
    zip: str | None = None
    """A regular expression for the name of the first member, if a file is a ZIP archive."""
    like: str | None = None
    """The name of a function in `_LOOKS` that recognises the first bytes of a file."""
    names: str | None = None
    """A regular expression for the end of a file or folder name that identifies the format by itself."""
    holds: tuple[str, ...] = ()
    """Names of files and folders; a folder of this format has at least one of them."""

    def recognises(self, head: bytes) -> bool:
        """Whether the first bytes of a file are of this format."""
        if head[self.at :].startswith(tuple([start.encode("latin-1") for start in self.begins])):
            return True
        if self.zip is not None and (name := first_name(head)) is not None and re.search(self.zip, name):
            return True
        return self.like is not None and _LOOKS[self.like](head)

    def __str__(self) -> str:
        return f"it is {self.what}; {self.remedy}"


@cache
def foreign_formats() -> tuple[ForeignFormat, ...]:
    """The known formats, in the order in which they are tried."""
    try:
        data = Path(__file__).with_suffix(".json").read_bytes()
    except OSError:  # in a program that was bundled without data files
        return ()
    return msgspec.json.decode(data, type=tuple[ForeignFormat, ...])


def foreign_file(head: bytes, name: str) -> str | None:
    """The message for a file of a known other format, by its first bytes and name; None if it is unknown.

    >>> foreign_file(b"lmgg\\3\\0\\0\\0", "model.bin")
    'it is a GGML file, of llama.cpp or whisper.cpp; load the original weights, ...'
    """
    match = next((f for f in foreign_formats() if f.recognises(head)), None) or format_of_suffix(name)
    return None if match is None else str(match)


def foreign_folder(names: set[str], folder: str) -> str | None:
    """The message for a folder of a known other format, by the names in it; None if it is unknown."""
    match = next((f for f in foreign_formats() if not names.isdisjoint(f.holds)), None)
    match = match or format_of_suffix(folder)
    return None if match is None else str(match)


def format_of_suffix(name: str) -> ForeignFormat | None:
    """The format that the end of a name indicates."""
    return next((f for f in foreign_formats() if f.names and re.search(f.names, name, re.IGNORECASE)), None)


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


_LOOKS: dict[str, Callable[[bytes], bool]] = {"page": _is_page, "onnx": _is_onnx, "llama2": _is_llama2}
