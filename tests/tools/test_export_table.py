"""The page about exports has a row for every layer and model, and says of each what is so.

Serves: tools/export_table.py, docs/export.md
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.cases import ALL, Case
from tools.export_table import PAGE, exported, row, with_table

ROWS = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text(encoding="utf-8").splitlines()}


def test_every_case_has_a_row() -> None:
    assert {case.name for case in ALL} <= ROWS.keys()


@pytest.mark.parametrize("case", ALL[::17], ids=lambda case: case.name)
def test_a_row_says_what_is_so(case: Case, tmp_path: Path) -> None:
    made = row(case, exported(case, tmp_path)).rstrip("\n")
    before, _, difference = made.rpartition(" | ")
    shown, _, written = ROWS[case.name].rpartition(" | ")
    assert shown == before
    assert float(difference.strip(" |")) <= max(50 * float(written.strip(" |")), 1e-6)


def test_the_table_is_replaced() -> None:
    page = "a\n<!-- table: begin -->\nold\n<!-- table: end -->\nb\n"
    assert with_table(page, "new\n") == page.replace("old", "new")
