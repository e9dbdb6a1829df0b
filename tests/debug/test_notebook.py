"""`px.debug.to_html`: what a notebook shows, as a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import NumPy
from phlox.train import History
from tests.train.browser import PROGRAM, Browser

HOSTILE = "</title><script>alert(1)</script>\u202e"
VALUES = {
    "tensor": px.ones((20, 30)), "model": nn.Linear(64, 32), "optimizer": optim.AdamWConfig().init(),
    "config": optim.AdamWConfig(), "record": nn.Linear(64, 32).into_record(), "history": History(),
    "results": {"loss": 0.5, "matrix": np.eye(3)}, "nested": [1, {"a": "b"}, (px.ones((2,)),)], "text": HOSTILE,
    HOSTILE: None, "array": np.arange(3), "class": nn.Linear, "long": list(range(5000)),
}  # fmt: skip


def test_a_page_of_anything(tmp_path: Path) -> None:
    text = px.debug.to_html(VALUES, tmp_path / "page.html", title=HOSTILE)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert "<script" not in text and text.count("</title>") == 1 and "http" not in text.replace("http-equiv", "")
    assert "<title>Tensor</title>" in px.debug.to_html(px.ones((2,)))
    assert "<b>0</b>" in px.debug.to_html([px.ones((2,))]) and "and 4,800 more" in text


def test_a_list_within_itself() -> None:
    values: list[object] = [px.ones((2,), device=NumPy())]
    values.append(values)
    assert len(px.debug.to_html(values)) < 200_000


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="there is no browser")
def test_it_fits_light_dark_and_narrow_screens(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    px.debug.to_html(VALUES, path)
    with Browser(tmp_path / "profile") as browser:
        for dark in (False, True):
            for width in (1200, 400):
                browser.open(path, dark=dark, width=width, script=True)
                assert browser.value("document.documentElement.scrollWidth <= innerWidth")
                ink, back = browser.value(
                    "[['td', 'color'], ['body', 'backgroundColor']].map(([name, what]) => "
                    "getComputedStyle(document.querySelector(name))[what])"
                )
                assert (ink, back) == (
                    ("rgb(228, 231, 235)", "rgb(18, 20, 23)") if dark else ("rgb(31, 35, 40)", "rgb(247, 247, 245)")
                )
        assert browser.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert browser.errors == []
