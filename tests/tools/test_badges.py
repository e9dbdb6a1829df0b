"""The badges of the README say what is so.

Serves: tools/badges.py
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import phlox as px
from tools import badges


def test_badges_are_those_of_the_files() -> None:
    for name, (label, text) in badges.facts().items():
        written = (badges.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert written == badges.badge(label, text), "python -m tools.badges writes them anew"
        assert ElementTree.fromstring(written).attrib["aria-label"] == f"{label}: {text}"
    assert {path.stem for path in badges.FOLDER.iterdir()} == set(badges.facts())
    assert badges.facts()["version"][1] == px.__version__


def test_the_engines_are_those_of_the_registry() -> None:
    _, text = badges.facts()["engines"]
    assert {one.lower().replace("pytorch", "torch") for one in text.split(" | ")} <= set(px.backend.backend_names())
