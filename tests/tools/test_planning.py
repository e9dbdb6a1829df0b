"""The tables about planning are those that the tool writes.

Serves: tools/planning.py
"""

from __future__ import annotations

import pytest

from tools import planning


@pytest.mark.full
def test_the_page_is_as_the_tool_writes_it() -> None:
    text = planning.page().read_text("utf-8")
    assert planning.written(text) == text, "out of date: python tools/planning.py"
    assert planning.plans() in text and planning.accelerators() in text


def test_the_sizes_are_what_they_are_called() -> None:
    for size, billions in (("1B", 1e9), ("7B", 7e9), ("70B", 70e9)):
        found = planning.planned(size, {"data": 8}, "fsdp")
        assert abs(found.count / billions - 1) < 0.05
