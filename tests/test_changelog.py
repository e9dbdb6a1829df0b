"""CHANGELOG.md: its form, and each deprecated name with the release that removes it.

Serves: CHANGELOG.md
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import phlox
from tools.environments import ROOT
from tools.release import numbers, sections

PAGE = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "phlox"

DEPRECATED: dict[str, str] = {}
"""What warns, by its file, and how the changelog calls it."""


def warnings() -> Iterator[tuple[str, str]]:
    """The files that give a DeprecationWarning, and the function or class around it as text."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "DeprecationWarning" in text else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in ("warn", "warnings.warn"):
                    given: list[Any] = [*call.args, *(one.value for one in call.keywords)]
                    if any(isinstance(one, ast.Name) and one.id == "DeprecationWarning" for one in given):
                        yield path.relative_to(SOURCE).as_posix(), ast.unparse(node)


def test_every_deprecated_name_is_in_the_changelog() -> None:
    assert dict.fromkeys(file for file, _ in warnings()).keys() == DEPRECATED.keys()
    deprecated = re.findall(r"^### Deprecated\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for name in DEPRECATED.values():
        assert any(f"`{name}" in one for one in deprecated), name


def test_a_warning_says_which_release_removes_the_name() -> None:
    for file, text in warnings():
        found = re.search(r"goes with (\d+\.\d+\.\d+)", text)
        assert found is not None, file
        assert numbers(found[1]) > numbers(phlox.__version__), f"{file}: it is time to remove this"
        assert f"removed in {found[1]}" in PAGE


def test_releases_are_in_order_and_dated() -> None:
    unreleased, *released = sections(PAGE)
    assert unreleased.version == "Unreleased" and unreleased.date is None
    assert released[0].version == phlox.__version__
    assert all(numbers(one.version) > numbers(other.version) for one, other in pairwise(released))
    assert datetime.date.fromisoformat(released[0].date or "")


def test_a_release_is_read_on_one_screen_and_the_rest_is_folded() -> None:
    for one in sections(PAGE):
        parts = re.split(r"^### (.*)$", one.text, flags=re.MULTILINE)
        assert len(parts[0].splitlines()) <= 30, f"[{one.version}]: what stands in front of the details is too long"
        assert parts[0].startswith("In short:") or not one.text
        for name, details in zip(parts[1::2], parts[2::2], strict=True):
            folded = r"<details>\n<summary>[^<]*</summary>\n\n(?:(?!</?details>)[\s\S])*\n\n</details>"
            assert re.fullmatch(folded, details.strip()), f"[{one.version}], {name}: write all within <details>"
        assert len(parts[0].splitlines()) + 2 * len(parts[1::2]) <= 40


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)\s#]+)", PAGE):
        assert link.startswith("https://") or (ROOT / link).is_file(), link
