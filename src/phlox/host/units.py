"""Amounts in few digits, as tables show them."""

from __future__ import annotations


def amount(number: int) -> str:
    """A number of operations in at most four digits.

    >>> amount(12_600_000), amount(7)
    ('12.6 M', '7')
    """
    value, unit = float(number), ""
    for bigger in ("k", "M", "G", "T", "P", "E"):
        if value < 999.95:
            break
        value, unit = value / 1000.0, bigger
    return f"{value:.1f} {unit}" if unit else str(number)


def size(number: int) -> str:
    """A number of bytes.

    >>> size(9616), size(64)
    ('9.4 KiB', '64 B')
    """
    value, unit = float(number), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1023.95:
            break
        value, unit = value / 1024.0, bigger
    return f"{value:.1f} {unit}" if unit != "B" else f"{number} B"


def duration(seconds: float) -> str:
    """A time in three digits.

    >>> duration(0.00123), duration(75.0)
    ('1.23 ms', '75.0 s')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1.0:
            value = seconds * factor
            return (
                f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
            )
    return f"{seconds * 1e6:.2f} us" if seconds else "0"
