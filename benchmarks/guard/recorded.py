"""The file in the repository that says what was counted last: one, sorted, and readable as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.guard.figures import Section, from_plain, to_plain

FILE = Path(__file__).parents[1] / "recorded" / "counts.json"


def load(file: Path = FILE) -> dict[str, Section]:
    """The sections by their keys; none where nothing was recorded yet."""
    if not file.is_file():
        return {}
    plain = json.loads(file.read_text(encoding="utf-8"))
    return {key: from_plain({"key": key, "entries": entries}) for key, entries in plain.items()}


def save(sections: Iterable[Section], file: Path = FILE) -> None:
    """Put these in the place of those with the same keys; what could not be counted now stays as it was."""
    known = load(file)
    for section in sections:
        old = known.get(section.key)
        kept = (
            {name: entry for name, entry in old.entries.items() if name in {**section.absent, **section.failed}}
            if old
            else {}
        )
        known[section.key] = Section(section.key, kept | section.entries)
    plain = {key: to_plain(section)["entries"] for key, section in known.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(as_text(plain) + "\n", encoding="utf-8")


def as_text(plain: Mapping[str, Any], indent: str = "") -> str:
    """JSON with sorted keys, a line for each figure and each part."""
    inner = indent + " "
    lines: list[str] = []
    for key in sorted(plain):
        value = plain[key]
        nested = isinstance(value, dict) and bool(value)
        lines.append(f"{inner}{json.dumps(key)}: {as_text(value, inner) if nested else json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
