"""What the guard remembers of a path or a program: figures that should not grow, and the parts that explain them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Entry:
    """One path, program or graph."""

    figures: dict[str, float]
    """What is guarded: the smaller the better."""
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What the figure is made of, by name: how often it is there, and how much it is in all."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the packages that the figures depend on; where others are installed, nothing is compared."""


Entries: TypeAlias = dict[str, Entry]
"""By the name of the path or program."""


@dataclass(frozen=True)
class Section:
    """What was counted by one means, for one kind of interpreter or machine."""

    key: str
    """`instructions, Python 3.11`"""
    entries: Entries
    absent: dict[str, str] = field(default_factory=dict)
    """What could not be counted here, and which package it lacks."""
    failed: dict[str, str] = field(default_factory=dict)
    """What does not run, and how it ended."""


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed."""
    return {name: importlib.metadata.version(name) for name in packages}


def lacking(packages: Iterable[str]) -> str | None:
    """The first package that is not installed; None if all are."""
    return next((name for name in packages if importlib.util.find_spec(name) is None), None)


def entries_of(makers: Mapping[str, Callable[[], Entry]]) -> tuple[Entries, dict[str, str]]:
    """What each finds, and of those that fail how: one of them must not hide what the others say."""
    entries: Entries = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            entries[name] = make()
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return entries, failed


def to_plain(section: Section) -> dict[str, Any]:
    """For JSON."""
    return asdict(section)


def from_plain(plain: dict[str, Any]) -> Section:
    """Back from JSON."""
    entries = {name: entry_of(entry) for name, entry in plain["entries"].items()}
    return Section(plain["key"], entries, plain.get("absent", {}), plain.get("failed", {}))


def entry_of(plain: dict[str, Any]) -> Entry:
    """An entry back from JSON."""
    parts = {name: (int(times), int(size)) for name, (times, size) in plain["parts"].items()}
    return Entry(plain["figures"], parts, plain["versions"])
