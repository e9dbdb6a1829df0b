"""The CRC-32 of much data on several cores: each takes a part, and the parts' checksums are joined.

A CRC is a remainder of polynomials over GF(2): that of A followed by B is that of A times x to the number of bits of B,
plus that of B. `zlib.crc32` lets other threads run while it computes.
"""

from __future__ import annotations

import os
import threading
import zlib

_POLYNOMIAL = 0xEDB88320  # of CRC-32 (IEEE 802.3), x**31 being the lowest bit
_PART = 1 << 22
"""Bytes that are worth a thread."""


def crc32(data: memoryview, start: int = 0) -> int:
    """`zlib.crc32(data, start)`."""
    parts = min(os.cpu_count() or 1, len(data) // _PART)
    if parts < 2:
        return zlib.crc32(data, start)
    edges = [len(data) * i // parts for i in range(parts + 1)]
    sums = [0] * parts

    def work(i: int) -> None:
        sums[i] = zlib.crc32(data[edges[i] : edges[i + 1]], start if i == 0 else 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, parts)]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    result = sums[0]
    for i in range(1, parts):
        result = joined(result, sums[i], edges[i + 1] - edges[i])
    return result


def joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of what has `first`, followed by `length` bytes that have `second`."""
    power, square, bits = 1 << 31, 1 << 30, 8 * length  # 1 and x
    while bits:
        if bits & 1:
            power = _product(power, square)
        square = _product(square, square)
        bits >>= 1
    return _product(power, first) ^ second


def _product(a: int, b: int) -> int:
    """The product of two polynomials, modulo that of the CRC."""
    result = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            result ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return result
