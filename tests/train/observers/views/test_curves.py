"""Learning curves as plots."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from phlox.errors import RunError
from phlox.train import EpochReport, draw_curves


def report(epoch: int, *, held_out: bool = True) -> EpochReport:
    judged = {"loss": 0.25 / epoch, "accuracy": 0.98} if held_out else {}
    return EpochReport(epoch, 10 * epoch, 0.01, {"loss": 0.5 / epoch, "accuracy": 0.9}, judged, 1.5, 1234)


@pytest.mark.full
@pytest.mark.parametrize("epochs", [1, 2, 40])
def test_the_curves_are_a_picture(epochs: int) -> None:
    picture = draw_curves([report(epoch) for epoch in range(1, epochs + 1)], title="Digits")
    with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
        assert image.width > 2 * image.height > 500
        colours = {tuple(colour) for colour in np.asarray(image.convert("RGB")).reshape(-1, 3)[::7].tolist()}
    assert len(colours) > 10


@pytest.mark.full
def test_the_curves_are_vectors() -> None:
    history = [report(epoch) for epoch in range(1, 4)]
    drawn = draw_curves(history, title="Digits", format="svg")
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and b"<dc:date>" not in drawn
    assert drawn == draw_curves(history, title="Digits", format="svg")


def test_curves_need_an_epoch() -> None:
    with pytest.raises(RunError, match="no epochs"):
        draw_curves([])
