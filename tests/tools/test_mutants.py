"""Mutants are programs with one change, the same for one seed; and the copy is mended after each.

Serves: tools/mutants.py
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants

SOURCE = '''"""A module, 1."""
from __future__ import annotations
__all__ = ["f", "g" + "h"]
def f(x: "int | None", n=2) -> int | str:
    """Do it, 3 times."""
    if x < n and x is not None:
        g(x)
        x += 1
    elif not x:
        raise ValueError(f"{x + 1}" + "no")
    return B.float_mul(x, 1.5)
'''


def test_each_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    made = [make() for make in mutants.mutants_of(path)]
    texts = {one.text for one in made}
    assert len(texts) == len(made) == 12, [one.what for one in made]
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for one in made:
        ast.parse(one.text)
        assert one.text.strip() != "\n".join(plain), one.what
        assert '"""Do it, 3 times."""' in one.text and "x + 1}" in one.text and "def f(x: 'int | None'" in one.text
    for part in (
        "left out: g(x)",
        "left out: x += 1",
        "the condition negated",
        "LtE",
        "Or",
        "Is",
        "float_add",
        "2.5",
        "3",
    ):
        assert any(one.what.endswith(part) for one in made), part


def test_a_failing_test_kills_and_the_copy_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tmp_path / "src" / "some" / "module.py"
    original.parent.mkdir(parents=True)
    original.write_text("def f():\n    return 1\n")
    copy = tmp_path / "copy"
    (copy / "some").mkdir(parents=True)
    test = tmp_path / "test_some.py"
    test.write_text("from some.module import f\ndef test_f(): assert f() == 1\ndef test_any(): assert f()\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = full\n")
    [mutant] = [make() for make in mutants.mutants_of(original)]
    assert mutant.what == "1  ->  2"
    assert mutants.is_noticed(mutant, copy, ["test_some.py"], ["-m", "not full"])
    assert (copy / "some" / "module.py").read_text() == original.read_text()
    assert not mutants.is_noticed(mutant, copy, ["test_some.py::test_any"], [])
