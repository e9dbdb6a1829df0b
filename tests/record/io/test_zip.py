"""Zip archives: members as views of the file, whatever the standard library writes; and everything that is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record.io.zip import Archive, first_name, is_safe_name

CONTENT = {"a": b"hello", "folder/b": bytes(range(256)) * 9, "é": b"", "c.txt": b"x" * 1000}


def zipped(content: dict[str, bytes] = CONTENT, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return buffer.getvalue()


def opened(data: bytes, **options: Any) -> Archive:
    return Archive(memoryview(data), **options)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_members(method: int) -> None:
    data = zipped(method=method)
    archive = opened(data)
    assert archive.names() == list(CONTENT) and "a" in archive and "b" not in archive
    for name, content in CONTENT.items():
        assert archive.size(name) == len(content) and bytes(archive.read(name)) == content
        assert bytes(archive.head(name, 100)) == content[:100] and archive.is_deflated(name) == (method != 0)
    shares = np.shares_memory(np.frombuffer(archive.read("c.txt"), np.uint8), np.frombuffer(data, np.uint8))
    assert shares == (method == zipfile.ZIP_STORED)


def test_unseekable_writers_zip64_folders_comments_and_extra_fields() -> None:
    class Stream(io.RawIOBase):
        data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            self.data += bytes(data)
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w") as file:
        file.comment = b"a comment"
        file.writestr("folder/", b"")
        with file.open("large", "w", force_zip64=True) as member:
            member.write(b"12345")
        info = zipfile.ZipInfo("padded")
        info.extra = struct.pack("<HH", 0xD935, 9) + bytes(9)
        file.writestr(info, b"678")
    archive = opened(stream.data)
    assert archive.names() == ["large", "padded"]
    assert bytes(archive.read("large")) == b"12345" and bytes(archive.read("padded")) == b"678"


@pytest.mark.full
def test_more_members_than_the_old_format_can_count() -> None:
    archive = opened(zipped({str(i): b"%d" % i for i in range(70_000)}))
    assert len(archive.names()) == 70_000 and bytes(archive.read("69999")) == b"69999"


def test_first_name() -> None:
    assert first_name(zipped()[:512]) == "a" and first_name(b"PK\x05\x06" + bytes(60)) is None
    assert first_name(b"PK\x03\x04") is None


@pytest.mark.parametrize("name", ["a", "a/b", "a..b", "..a", "a./b", ".a", "a b"])
def test_safe_names(name: str) -> None:
    assert is_safe_name(name)


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/..", "a/../b", "\\a", "a\\..\\b", "a\0b"])
def test_unsafe_names(name: str) -> None:
    assert not is_safe_name(name)
    if name and "\0" not in name:
        with pytest.raises(RecordError, match="has a name that points outside of it"):
            opened(zipped({name: b""}))


def patched(
    change: Callable[[bytearray, int, int], None], content: dict[str, bytes] = CONTENT, **options: Any
) -> bytes:
    """An archive after `change(data, place of the first entry of the directory, place of the end)`."""
    data = bytearray(zipped(content, **options))
    change(data, data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06"))
    return bytes(data)


def put(place: str, offset: int, format: str, value: int) -> Callable[[bytearray, int, int], None]:
    def change(data: bytearray, entry: int, end: int) -> None:
        struct.pack_into(format, data, {"local": 0, "entry": entry, "end": end}[place] + offset, value)

    return change


BAD: dict[str, tuple[Callable[[bytearray, int, int], None], str]] = {
    "encrypted": (put("entry", 8, "<H", 1), "'a' is encrypted"),
    "other disk": (put("entry", 34, "<H", 1), "another disk"),
    "method": (put("entry", 10, "<H", 14), "compressed by method 14"),
    "sizes differ": (put("entry", 24, "<I", 6), "stored in 5 bytes and claims to have 6"),
    "too large": (put("entry", 20, "<I", 10**6), "overlaps|stored in"),
    "outside": (put("entry", 42, "<I", 2**31), "overlaps another, or leaves"),
    "local header elsewhere": (put("entry", 42, "<I", 1), "header of the member .* differ|overlaps"),
    "directory elsewhere": (put("end", 16, "<I", 3), "overlaps another, or leaves"),
    "local name": (put("local", 30, "<B", 98), "header of the member .* differ"),
    "local method": (put("local", 8, "<H", 8), "header of the member .* differ"),
    "local size": (put("local", 18, "<I", 7), "header of the member .* differ"),
    "local extra": (put("local", 28, "<H", 60_000), "overlaps the data after"),
    "data": (put("local", 31, "<B", 0), "'a' is damaged: the checksum"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_archives(name: str) -> None:
    change, message = BAD[name]
    with pytest.raises(RecordError, match=message):
        opened(patched(change)).read("a")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicates_and_overlaps() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a", b"1")
        file.writestr("a", b"2")
    with pytest.raises(RecordError, match="two members 'a'"):
        opened(buffer.getvalue())
    data = bytearray(zipped({"a": b"12", "b": b"12"}))
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 42 : second + 46] = bytes(4)
    with pytest.raises(RecordError, match="overlaps another"):
        opened(bytes(data))


def test_what_is_not_there() -> None:
    with pytest.raises(RecordError, match="no member 'nothing'"):
        opened(zipped()).read("nothing")
    for data in (b"", b"PK", b"PK\x03\x04" + bytes(100), bytes(1000)):
        with pytest.raises(RecordError, match="it is not a zip archive"):
            opened(data)


def test_verify() -> None:
    change, _ = BAD["data"]
    assert bytes(opened(patched(change), verify=False).read("a"))[1:] == b"ello"


def test_bombs() -> None:
    bomb = zipped({str(i): bytes(1 << 20) for i in range(3)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 5000 and bytes(opened(bomb).read("0")) == bytes(1 << 20)
    with pytest.raises(
        RecordError, match=r"unpack to 3145728, as those of a zip bomb do; .*larger max_bytes than 2097152"
    ):
        opened(bomb, max_bytes=2 << 20)
    for claimed in (0, 100, (1 << 20) - 1, (1 << 20) + 1, 2**31):  # unpacks to more or less than it claims
        lie = patched(put("entry", 24, "<I", claimed), {"a": bytes(1 << 20)}, method=zipfile.ZIP_DEFLATED)
        with pytest.raises(RecordError, match=r"does not unpack to|zip bomb"):
            opened(lie).read("a")


def read_all(data: bytes) -> None:
    archive = opened(data)
    for name in archive.names():
        archive.read(name)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_truncated_at_every_byte(method: int) -> None:
    data = zipped({"a": b"hello" * 9, "b/c": b"x"}, method)
    for size in range(len(data)):
        with pytest.raises(RecordError):
            read_all(data[:size])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_every_byte_changed(method: int) -> None:
    content = {"a": b"hello" * 9, "b/c": b"x"}
    data = zipped(content, method)
    for place in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= flip
            try:
                archive = opened(bytes(changed))
                found = {name: bytes(archive.read(name)) for name in archive.names()}
            except RecordError:
                continue
            assert [*found.values()] == [*content.values()] or len(found) < 2


@given(st.binary(max_size=300), st.integers(0, 200), st.integers(0, 200))
def test_anything(junk: bytes, start: int, cut: int) -> None:
    data = zipped({"a": b"hello" * 9, "b/c": b"x"})
    try:
        read_all(data[:start] + junk + data[start + cut :])
    except RecordError:
        pass
