"""The Python of the README, and of the pages under docs/, runs as it stands there, top to bottom, in one namespace.

A block whose first line is a comment with the name of a file, `# digits_model.py`, is written there too: other blocks
of the page may import it.

Serves: README.md, docs/
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in path.read_text()
]

LONG = {
    "coming-from/equinox", "coming-from/jax-flax", "coming-from/keras", "distributed", "how-to/recompilation", "jax",
    "optimizers", "tutorials/digits", "tutorials/export", "tutorials/fine-tuning", "tutorials/images",
    "tutorials/several-devices", "tutorials/text", "tutorials/text-classification",
}  # fmt: skip
"""Pages whose programs train or start processes for longer than the others."""

PEERS = {
    "beartype", "blackjax", "chex", "diffrax", "einops", "equinox", "flax", "jaxopt", "jaxtyping", "keras", "lineax",
    "numpyro", "optimistix", "orbax", "pandas", "penzai", "treescope",
}  # fmt: skip
"""Libraries that may be missing: a block that begins by importing one of them is left out then."""


def is_left_out(block: str) -> bool:
    names: set[str] = set()
    for statement in ast.parse(block).body:
        if isinstance(statement, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add(str(statement.module).partition(".")[0])
    return any(find_spec(name) is None for name in names & PEERS)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("page", [
    pytest.param(page, id=name, marks=[pytest.mark.full] if name.removeprefix("docs/")[:-3] in LONG else [])
    for page in PAGES
    for name in (page.relative_to(ROOT).as_posix(),)
])  # fmt: skip
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")  # classes that are defined in it look their module up by name
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.syspath_prepend(tmp_path)
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if is_left_out(block):
            continue
        if named := re.match(r"# (\w+)\.py\n", block):
            Path(f"{named[1]}.py").write_text(block, encoding="utf-8")
            sys.modules.pop(named[1], None)  # of another page
        exec(compile(block, str(page), "exec"), module.__dict__)


def test_the_readme_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test_the_page_runs(ROOT / "README.md", tmp_path, monkeypatch)
    assert float(capsys.readouterr().out.rsplit("validation accuracy ", 1)[1]) > 0.9
    assert (tmp_path / "digits.safetensors").is_file() and (tmp_path / "digits.onnx").is_file()
    assert {page.parent.name for page in PAGES} >= {"docs", "tutorials", "how-to", "coming-from"}
