"""READING.md: its program prints what it says, and what it names is there, of the length that it says.

Serves: READING.md
"""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "READING.md"
STOP = re.compile(r"^- \[`([\w/.]+)`\]\((src/phlox/[\w/.]+)\):(.*(?:\n  .*)*)", re.MULTILINE)


def length(path: Path, name: str) -> int:
    """The lines of a class, function or assignment in a file."""
    node: Any = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        [node] = [
            child
            for child in node.body
            if getattr(child, "name", None) == part
            or (
                isinstance(child, ast.Assign | ast.AnnAssign)
                and ast.unparse(child).startswith((f"{part} ", f"{part}:"))
            )
        ]
    return node.end_lineno - node.lineno + 1


def test_the_names_are_there_and_as_long_as_it_says() -> None:
    total = 0
    for shown, path, names in STOP.findall(PAGE.read_text(encoding="utf-8")):
        assert path == f"src/phlox/{shown}"
        for name, lines in re.findall(r"`([\w.]+)` \((\d+)\)", names):
            now = length(ROOT / path, name)
            assert abs(now - int(lines)) <= 0.1 * now + 2, f"{path}: {name} has {now} lines now"
            total += now
    assert 1000 < total < 1600, total


def test_the_program_prints_what_it_says() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert tried > 20 and not failed
