"""Zip archives, as PyTorch and NumPy write them: the members of a mapped file, without a copy if uncompressed.

The standard library reads the directory at the end of the file (PKWARE, "APPNOTE.TXT", 6.3.10; 3 us per member). The
bytes of a member are located here, because the library can only copy them. A member is read only on request.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.record.io.compression import unpack_limit

_LOCAL = struct.Struct("<4sHHHHHIIIHH")  # signature, version, flags, method, time, date, crc, sizes, name, extra
_ENCRYPTED = 0x1 | 0x40
_SIZES_FOLLOW = 0x8
_UTF8 = 0x800
_IN_EXTRA = 0xFFFFFFFF
_SLACK = 1 << 12  # bytes that deflate may add to incompressible data


@dataclass(slots=True)
class _Member:
    info: zipfile.ZipInfo
    end: int
    """The start of the next member or of the directory."""
    checked: bool = False


class Archive:
    """The members of the zip archive in `data`, by name, in the order of its directory; folders are left out.

    A stored member is read as a view of `data`; a deflated one is unpacked on each read. The directory is checked at
    once. RecordError for duplicate or absolute names and names with a part "..", for members that overlap, leave the
    file, are encrypted or use another compression, and if the deflated members together unpack to more than
    `max_bytes`.

    Args:
        data: the whole file.
        max_bytes, verify: see `Reader`.

    >>> buffer = io.BytesIO()
    >>> with zipfile.ZipFile(buffer, "w") as file:
    ...     file.writestr("greeting", "hello")
    >>> archive = Archive(memoryview(buffer.getvalue()))
    >>> archive.names(), bytes(archive.read("greeting"))
    (['greeting'], b'hello')
    """

    def __init__(self, data: memoryview, max_bytes: int | None = None, *, verify: bool = True) -> None:
        self._data = data
        self._verify = verify
        try:
            with zipfile.ZipFile(_File(data)) as file:
                infos, directory = file.infolist(), file.start_dir
        except Exception as error:
            raise RecordError(f"it is not a zip archive, or is truncated or damaged: {error}") from error
        self._members = _members(infos, directory)
        limit = unpack_limit(len(data), max_bytes)
        if (total := sum(m.info.file_size for m in self._members.values() if _is_deflated(m.info))) > limit:
            raise RecordError(
                f"its {len(data)} bytes unpack to {total}, as those of a zip bomb do; "
                f"if it is to be trusted, give the reader or `load` a larger max_bytes than {limit}"
            )

    def names(self) -> list[str]:
        """The names of the members."""
        return list(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """The unpacked size of a member in bytes; RecordError if it does not exist."""
        return self._member(name).info.file_size

    def is_deflated(self, name: str) -> bool:
        """Whether each read of the member unpacks it."""
        return _is_deflated(self._member(name).info)

    def read(self, name: str) -> memoryview:
        """The bytes of a member; with `verify`, its checksum is verified on the first read.

        A checksum of 0 means none: `torch.save` can omit it. Raises RecordError if the member does not exist or is
        damaged.
        """
        member = self._member(name)
        info = member.info
        data = self._stored(member)
        if _is_deflated(info):
            data = _inflated(data, info)
        if self._verify and info.CRC and not member.checked and zlib.crc32(data) != info.CRC:
            raise RecordError(f"its member {_shown(name)} is damaged: the checksum (CRC-32) does not match")
        member.checked = True
        return data

    def head(self, name: str, size: int) -> memoryview:
        """The first `size` bytes of a member (or all), unverified; nothing more is read or unpacked."""
        member = self._member(name)
        data = self._stored(member)[: size + _SLACK]
        if _is_deflated(member.info):
            try:
                data = memoryview(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size))
            except zlib.error as error:
                raise RecordError(f"its member {_shown(name)} is damaged: {error}") from None
        return data[:size]

    def _stored(self, member: _Member) -> memoryview:
        info = member.info
        start = self._start(info)
        if start + info.compress_size > member.end:
            raise RecordError(f"its member {_shown(info.filename)} overlaps the data after it")
        return self._data[start : start + info.compress_size]

    def _member(self, name: str) -> _Member:
        try:
            return self._members[name]
        except KeyError:
            raise RecordError(f"it has no member {_shown(name)}") from None

    def _start(self, info: zipfile.ZipInfo) -> int:
        """The start of a member's data: its local header can be longer than the directory says."""
        try:
            signature, _, flags, method, _, _, _, packed, _, name_size, extra = _LOCAL.unpack_from(
                self._data, info.header_offset
            )
        except struct.error:
            raise RecordError(f"its member {_shown(info.filename)} lies outside of the file") from None
        name_start = info.header_offset + _LOCAL.size
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
        same_size = flags & _SIZES_FOLLOW or packed in (info.compress_size, _IN_EXTRA)
        same = method == info.compress_type and same_size and not flags & _ENCRYPTED
        if signature != b"PK\x03\x04" or not same or bytes(self._data[name_start : name_start + name_size]) != name:
            raise RecordError(f"its directory and the local header of the member {_shown(info.filename)} differ")
        return name_start + name_size + extra


def first_name(head: bytes) -> str | None:
    """The name of the first member of a zip archive with these first bytes; None if it is not an archive."""
    if len(head) < _LOCAL.size or not head.startswith(b"PK\x03\x04"):
        return None
    size = int.from_bytes(head[26:28], "little")
    return head[_LOCAL.size : _LOCAL.size + size].decode("utf-8", "replace")


def is_safe_name(name: str) -> bool:
    """Whether a member's name is safe: relative, without a part "..", and the same for every program."""
    parts = name.replace("\\", "/").split("/")
    return bool(name) and "\0" not in name and parts[0] != "" and ".." not in parts


def _members(infos: list[zipfile.ZipInfo], directory: int) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    end = directory
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        _check(info)
        if info.filename in members:
            raise RecordError(f"it has two members {_shown(info.filename)}")
        start = info.header_offset
        if start < 0 or start + _LOCAL.size + len(info.orig_filename) + info.compress_size > end:
            raise RecordError(f"its member {_shown(info.filename)} overlaps another, or leaves the file")
        members[info.filename] = _Member(info, end)
        end = start
    return {info.filename: members[info.filename] for info in infos if not info.is_dir()}


def _check(info: zipfile.ZipInfo) -> None:
    name = _shown(info.filename)
    if not is_safe_name(info.orig_filename):
        raise RecordError(f"its member {name} has a name that points outside of it")
    if info.flag_bits & _ENCRYPTED:
        raise RecordError(f"its member {name} is encrypted; save it without a password")
    if info.volume:
        raise RecordError(f"its member {name} is on another disk of an archive of several")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RecordError(f"its member {name} is compressed by method {info.compress_type}; only deflate can be read")
    if not _is_deflated(info) and info.compress_size != info.file_size:
        raise RecordError(
            f"its member {name} is stored in {info.compress_size} bytes and claims to have {info.file_size}"
        )


def _is_deflated(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_DEFLATED


def _inflated(data: memoryview, info: zipfile.ZipInfo) -> memoryview:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        result = unpacker.decompress(data, info.file_size + 1)
    except zlib.error as error:
        raise RecordError(f"its member {_shown(info.filename)} is damaged: {error}") from None
    if len(result) != info.file_size or unpacker.unconsumed_tail or unpacker.unused_data or not unpacker.eof:
        raise RecordError(f"its member {_shown(info.filename)} does not unpack to {info.file_size} bytes as it claims")
    return memoryview(result)


def _shown(name: str) -> str:
    return f"'{shown(name, 100)}'"


class _File(io.RawIOBase):
    """A memoryview as a seekable file, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        at = offset + (0, self._at, len(self._data))[whence]
        if at < 0:
            raise ValueError("it ends too early")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        chunk = self._data[self._at : self._at + len(buffer)]
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)
