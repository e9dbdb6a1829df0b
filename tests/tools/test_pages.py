"""Pages say alike how Phlox is installed, in one way that works, and show no comments of the formatter.

Serves: tools/pages.py, README.md, docs/
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import pages
from tools.environments import ROOT, project, supported_table


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_what_is_written_from_here(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text) == text, "python -m tools.pages writes it"
    for extras in re.findall(r"<!-- install: ([\w,]+) -->", text):
        assert extras == "none" or set(extras.split(",")) <= set(project()["optional-dependencies"])
    assert "fmt: skip" not in text
    assert not re.search(r"pip install '?phlox", text), "there is no release yet"


def test_tutorials_begin_with_the_one_way_to_install() -> None:
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert "<!-- install: " in text or "quickstart.md" in text, page.name


def test_markers_are_filled_and_the_rest_stays() -> None:
    page = "a\n<!-- install: jax,onnx -->\nstale\n<!-- /install -->\nb\n<!-- versions --><!-- /versions -->\nc\n"
    text = pages.filled(page)
    assert "pip install --editable '.[jax,onnx]'\n" in text and supported_table() in text
    assert "stale" not in text and text.startswith("a\n") and "\nb\n" in text and text.endswith("\nc\n")
    assert pages.filled(text) == text
