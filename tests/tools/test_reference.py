"""The pages of the reference: every public package and name, and docstrings as reStructuredText reads them.

Serves: tools/reference.py
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import phlox as px
from tools import reference


def test_every_public_package_has_a_page(tmp_path: Path) -> None:
    reference.write(tmp_path / "reference")
    packages = {f"phlox.{name}" for name in px.__all__ if isinstance(getattr(px, name), ModuleType)}
    assert packages <= {*reference.PACKAGES}
    pages = {path.stem for path in (tmp_path / "reference").glob("*.rst")}
    assert pages == {*reference.PACKAGES, "index"}
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "reference").rglob("*.rst"))
    for path in ("phlox.Tensor", "phlox.nn.Linear", "phlox.optim.AdamWConfig", "phlox.errors.DataError"):
        assert text.count(f":: {path}\n") == 1
    assert "autofunction:: phlox.transform.grad" not in text  # it is described as phlox.grad


def test_what_readers_look_for_stands_first(tmp_path: Path) -> None:
    reference.write(tmp_path / "reference")
    for package, names in reference.FIRST.items():
        assert package in reference.PACKAGES
        assert [name.short for name in reference.names_of(package)][: len(names)] == list(names)
    text = (tmp_path / "reference" / "phlox.train.rst").read_text(encoding="utf-8")
    assert text.index("* - :py:obj:`Learner") == text.index("* - ")
    assert text.index(".. autoclass:: phlox.train.Learner") == text.index(".. auto")
    assert "\nLearner\n---" not in text and "\nDescriptions\n----" in text


@pytest.mark.parametrize(
    "lines, expected",
    [
        (["*args and |x| of `|y| * 2`"], [r"\*args and \|x\| of `|y| * 2`"]),
        (["`Param`s, `a", "b` * c"], [r"`Param`\ s, `a", r"b` \* c"]),
        (["end_ and mid_dle"], [r"end\_ and mid_dle"]),
        ([">>> a * b", "c * d", "", "e * f"], [">>> a * b", "c * d", "", r"e \* f"]),
    ],
)
def test_docstrings_have_no_markup_but_backticks(lines: list[str], expected: list[str]) -> None:
    assert reference.escaped(lines) == expected


@pytest.mark.parametrize(
    "sentence, title",
    [
        ("Floor 1: the contract; and more", "The contract"),
        ("The dense (fully connected) layer", "The dense (fully connected) layer"),
        ("Losses (of pairs)", "Losses"),
        ("Mini-batches of arrays, in an order that depends only on the seed and the epoch", "Mini-batches of arrays"),
    ],
)
def test_titles_are_short(sentence: str, title: str) -> None:
    assert reference.short_title(sentence) == title


def test_every_public_name_has_a_docstring() -> None:
    names = [(package, name) for package in reference.PACKAGES for name in reference.names_of(package)]
    without = [name.path for package, name in names if not reference.docstring_of(name, package).strip()]
    assert not without
