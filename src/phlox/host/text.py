"""Values as text: numbers in few digits, untrusted names made safe, and the base of reports.

The writers of pages are imported when they are first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.host.page import Page


def digits(value: float) -> str:
    """A number from 0 to 1000 with three digits."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _scaled(number: int, units: Sequence[str]) -> str:
    """A number with its unit; each unit is a thousand times the previous one."""
    value, place = float(number), 0
    while value >= (999.5 if place else 1000.0) and place < len(units) - 1:
        value, place = value / 1000.0, place + 1
    return f"{digits(value) if place else number} {units[place]}".rstrip()


def amount(number: int) -> str:
    """A number of operations with three digits.

    >>> amount(12_600_000), amount(7)
    ('12.6 M', '7')
    """
    return _scaled(number, ("", "k", "M", "G", "T", "P", "E"))


def size(number: int) -> str:
    """A number of bytes with three digits; units are powers of 1000.

    >>> [size(number) for number in (0, 999, 1000, 27_796, 999_950, 5 * 10**9)]
    ['0 B', '999 B', '1.00 kB', '27.8 kB', '1.00 MB', '5.00 GB']
    """
    return _scaled(number, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def duration(seconds: float) -> str:
    """A time with three digits.

    >>> duration(0.00123), duration(75.0), duration(0.0)
    ('1.23 ms', '75.0 s', '0')
    """
    if not seconds:
        return "0"
    factor, unit = (1.0, "s") if seconds >= 1.0 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    return f"{digits(seconds * factor)} {unit}"


def count(number: int, what: str, several: str = "") -> str:
    """A number of things.

    >>> count(1, "entry", "entries"), count(1200, "state")
    ('1 entry', '1,200 states')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable(text: str, keep: str = "") -> str:
    """`text` with unprintable characters escaped: those of an untrusted file may control a terminal, or hide others.

    >>> printable("a\\x1b[2J\\n")
    'a\\\\x1b[2J\\\\n'
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text])


def shown(name: str, longest: int = 200) -> str:
    """A name or path of an untrusted file, made safe for a message: cut where it is long, and printable."""
    return printable(name if len(name) <= longest else f"{name[:longest]}...")


def short(value: object, longest: int = 60) -> str:
    """The `repr` of a value in one line, cut where it is long; functions and classes by their names."""
    if callable(value) and (name := getattr(value, "__name__", None)) is not None:
        return str(name)[:longest]
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"<{type(value).__name__}: repr failed with {type(error).__name__}>"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def terminal_width() -> int | None:
    """The width of the terminal; None if the output goes elsewhere and has no limit."""
    if not sys.stdout.isatty():
        return None
    import shutil  # with all its archive formats

    return shutil.get_terminal_size().columns


# --- what shows a value


class Report:
    """The base of results that print what a notebook shows: a subclass makes a `Page` of itself."""

    __slots__ = ()

    def _page(self) -> Page:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._page().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from phlox.host.html import representation

        return representation(self, type(self)._page)


def html_by(module: str, name: str) -> Callable[[Any], str]:
    """A method `_repr_html_`: it shows the page that a function, called `name` in `module`, makes of the value."""

    def _repr_html_(self: Any) -> str:
        from phlox.host.html import representation

        return representation(self, getattr(import_module(module), name))

    return _repr_html_
