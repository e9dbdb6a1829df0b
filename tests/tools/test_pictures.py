"""The pictures of the pages: each is made by code, shown somewhere, and small.

Serves: tools/pictures.py
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.train.browser import PROGRAM
from tools import pictures

DOCS = pictures.FOLDER.parent


@pytest.mark.parametrize("path", sorted(pictures.FOLDER.iterdir()), ids=lambda path: path.name)
def test_a_picture_is_made_by_code_shown_and_small(path: Path) -> None:
    assert path.stem in pictures.PICTURES and path.suffix in (".png", ".svg")
    assert path.stat().st_size <= pictures.LARGEST
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    assert any(f"pictures/{path.name}" in page for page in pages), "no page shows it"


def test_pages_show_pictures_that_are_there_and_say_what_they_show() -> None:
    for page in DOCS.rglob("*.md"):
        for alt, target in re.findall(r"!\[(.*?)\]\(((?:\.\./)*pictures/.*?)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file() and len(alt) > 10, (page, target)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    pictures.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(pictures.PICTURES) and all(
        len(line) > 20 for line in lines
    )
    with pytest.raises(SystemExit):
        pictures.main(["nonsense"])


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="there is no browser")
def test_a_picture_has_a_light_and_a_dark_half(tmp_path: Path) -> None:
    from PIL import Image

    path = pictures.write("notebook-model", tmp_path)
    with Image.open(path) as read:
        shown = np.asarray(read.convert("RGB"))
    height, width, _ = shown.shape
    assert width == 2 * 560 and height > 300
    assert shown[2, 2].tolist() == [255, 255, 255] and shown[2, width - 2].sum() < 100


def test_drawings_are_written_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pictures.PICTURES, "drawing", lambda: pictures.Drawing("<svg/>"))
    assert pictures.write("drawing", tmp_path).read_text() == "<svg/>"
    monkeypatch.setitem(pictures.PICTURES, "large", lambda: pictures.Drawing(" " * 60_001))
    with pytest.raises(SystemExit, match="60,001 bytes"):
        pictures.write("large", tmp_path)
