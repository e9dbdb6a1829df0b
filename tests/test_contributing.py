"""The walks of CONTRIBUTING.md, put into a copy of the tree, do what they say; and the pages name files that exist.

Serves: CONTRIBUTING.md
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"<!-- walk: (.*?) -->\n(.*?)(?=<!-- )", PAGE, re.DOTALL))
WHERE = re.compile(r"# (?P<path>[\w/.]+)(?:, (?:in (?P<name>\w+)|at the (?P<part>imports|end)))?\n")


def nodes_of(tree: ast.Module, name: str) -> Iterator[tuple[ast.AST, bool]]:
    """What a block may be put into the end of: classes and the like, and brackets."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() if node.name == name:
                yield node, False
            case ast.If(test=ast.Name(id=found)) if found == name:
                yield node, False
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                yield node, True
            case ast.Call(func=ast.Name(id=found), args=[*_, ast.Dict() as table]) if found == name:
                yield table, True
            case _:
                pass


def put(block: str, tree: Path) -> str:
    """Puts a block where its first line says, and gives the path of the file."""
    where = WHERE.match(block)
    assert where is not None, f"the block begins with no place:\n{block}"
    path, code = tree / where["path"], block[where.end() :]
    if where["name"] is None and where["part"] is None:
        assert not path.exists(), f"{where['path']} is there already"
        path.write_text(code, encoding="utf-8")
        return where["path"]
    text = path.read_text(encoding="utf-8")
    lines, parsed = text.splitlines(keepends=True), ast.parse(text)
    if where["part"] == "end":
        at, code = len(lines), f"\n\n{code}"
    elif where["part"] == "imports":
        at = max(node.end_lineno or 0 for node in parsed.body if isinstance(node, ast.Import | ast.ImportFrom))
    else:
        [(node, bracket)] = nodes_of(parsed, where["name"])
        place: Any = node
        at = place.end_lineno - bracket
        first = lines[place.body[0].lineno - 1] if not bracket else lines[at - 1]
        code = textwrap.indent(code, re.match(r"\s*", first)[0])  # pyright: ignore[reportOptionalSubscript]
        code = f"\n{code}" if isinstance(node, ast.ClassDef) and "def " in code else code
    path.write_text("".join([*lines[:at], code, *lines[at:]]), encoding="utf-8")
    return where["path"]


@pytest.mark.full
@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_leads_where_it_says(walk: str, tmp_path: Path) -> None:
    unneeded = shutil.ignore_patterns("__pycache__", "golden")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unneeded)
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)

    blocks = re.findall(r"^```python\n(.*?)^```", WALKS[walk], re.MULTILINE | re.DOTALL)
    for path in [put(block, tmp_path) for block in blocks]:
        compile((tmp_path / path).read_text(encoding="utf-8"), path, "exec")

    [command] = re.findall(r'^make test ARGS="(.*)"$', WALKS[walk], re.MULTILINE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            "not full",
            *shlex.split(command),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"\d+ passed", done.stdout)


def test_there_are_three_walks() -> None:
    assert set(WALKS) == {"an operation", "a layer", "an optimizer"}
