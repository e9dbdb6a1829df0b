"""The pages about the kit: the edge-case contract is as the table has it, and the Python of the guide runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from phlox.testing.conformance.edge import page
from phlox.testing.conformance.edges import EDGES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_edge_cases_is_up_to_date() -> None:
    remedy = "run: python -m phlox.testing.edges > docs/edge-cases.md"
    assert (DOCS / "edge-cases.md").read_text(encoding="utf-8") == page(EDGES), remedy


def test_every_statement_is_there_once() -> None:
    statements = [edge.statement for edge in EDGES]
    assert len(set(statements)) == len(statements)
    sections = [edge.section for edge in EDGES]
    assert len(set(sections)) == sum(a != b for a, b in zip(sections, ["", *sections], strict=False))


def test_the_guide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    for block in blocks:
        exec(compile(block, str(DOCS / "testing.md"), "exec"), module.__dict__)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert len(tests) >= 4
    for test in tests:
        test()
