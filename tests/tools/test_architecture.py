"""ARCHITECTURE.md: its picture and table are those of the import contract, what it names is there, budgets are kept.

Serves: ARCHITECTURE.md
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import architecture
from tools.architecture import (
    ROOT,
    SOURCE,
    budgets,
    circles,
    code_lines,
    floors,
    imports,
    lines_of_packages,
    missing,
    outputs,
    over_budget,
    package,
    page,
    unmeant,
)


@pytest.mark.parametrize("path", outputs(), ids=lambda path: path.name)
def test_it_is_as_the_tool_writes_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == outputs()[path], "out of date: python tools/architecture.py"


def test_every_package_is_on_a_floor() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    names = [one.name for floor in floors() for one in floor.packages]
    assert sorted(names) == sorted(packages | modules)


def test_docstrings_say_their_floor_right() -> None:
    for floor in floors():
        for one in floor.packages:
            file = SOURCE / one.name / "__init__.py"
            said = re.match(r'"""Floor (\d+): ', file.read_text(encoding="utf-8")) if file.exists() else None
            assert said is None or said[1] == floor.label, one.name


def test_a_change_of_the_contract_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = outputs()
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(text.replace('"module : config"', '"module", "config"'), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(architecture, "ROOT", tmp_path)
        changed = [page(architecture.PAGE.read_text(encoding="utf-8")), architecture.picture(architecture.LIGHT)]
    assert not set(changed) & set(before.values())
    assert "| 8 | [`models/`]" in changed[0]


def test_the_pictures_are_whole() -> None:
    for path, text in outputs().items():
        if path.suffix == ".svg":
            texts = [element.text for element in ElementTree.fromstring(text).iter() if element.tag.endswith("text")]
            assert {one.name for floor in floors() for one in floor.packages} <= set(texts)


def test_it_needs_nothing_but_python() -> None:
    tool = ROOT / "tools" / "architecture.py"
    done = subprocess.run([sys.executable, "-I", "-S", tool, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_what_a_page_names_is_there(name: str) -> None:
    assert missing((ROOT / name).read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    text = "`tensor/base.py:binary`, `tensor/base.py:unary`, `backend/torch/linear.py`, `nn/`, `rooms/`, `a/b`"
    assert missing(text) == ["`tensor/base.py:unary`", "`backend/torch/linear.py`", "`rooms/`"]


def test_what_is_said_of_a_package() -> None:
    nn = package("nn")
    assert nn.says.startswith("Layers") and {"initializer", "loss"} <= set(nn.rooms)


def test_every_package_keeps_its_budget() -> None:
    counted = lines_of_packages()
    assert over_budget(counted) == []
    assert counted.keys() == budgets().keys()


def test_no_circle_of_imports_is_new() -> None:
    assert unmeant(circles(imports())) == []
    across = ["phlox.module.module", "phlox.transform.grad"]
    assert unmeant([across, ["phlox.module.module", "phlox.module.records"]]) == [across]


def test_circles_are_found_in_all_kinds_of_imports(tmp_path: Path) -> None:
    package = tmp_path / "house"
    texts = {
        "__init__": "",
        "a": "from house.b import f",
        "b": "if TYPE_CHECKING:\n    from house import c",
        "c": "def f():\n    import house.d",
        "d": "from house.a import f",
        "shown": "def f():\n    from house.pages import g",
        "pages": "from house.shown import f",
        "last": "from house import a",
    }
    package.mkdir()
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert circles(imports(package)) == [["house.a", "house.b", "house.c", "house.d"]]
    assert imports(package)["house.last"] == {"house.a"} and imports(package)["house.shown"] == set()


LINES = '''
"""What it is.

In detail."""

import a  # why


class B:
    """A class."""

    field: int = 1
    """What it holds,
    and why."""

    # A comment.
    def run(self):
        "In other quotes."
        try:
            "neither"
            return f(
                1,
                """A string,
                which is a value""",
            )
        except E:
            "nor this"
            match self:
                case 1:
                    "nor this"
        ...
'''
"""The lines of code are the import, class, field, def, try, five of the return, except, match, case and dots."""


def test_what_counts_as_a_line_of_code() -> None:
    assert code_lines(LINES) == 14 and code_lines("") == code_lines('"""Text."""') == 0


def test_one_line_over_the_budget_is_said(tmp_path: Path) -> None:
    within = dict(budgets())
    assert over_budget(within) == []
    assert over_budget(within | {"nn": within["nn"] + 1}) == [
        f"nn: {within['nn'] + 1:,} lines of code, the budget is {within['nn']:,} (pyproject.toml, tool.phlox.lines)"
    ]
    assert "new: 1 lines" in over_budget({"new": 1})[0]
    for name in ("new/part/a.py", "new/b.pyi", "c.py", "new/c.pyc", "new/d.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert lines_of_packages(tmp_path) == {"new": 2, "total": 3}
