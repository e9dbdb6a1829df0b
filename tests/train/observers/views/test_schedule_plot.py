"""Schedules as plots."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phlox import optim
from phlox.errors import ExtraNotInstalledError, OptimizerError, RunError
from phlox.train import draw_schedule
from phlox.train.observers.views import schedule_plot

COSINE = optim.CosineAnnealingLr(0.1, num_iters=100)


def pixels(picture: bytes) -> Any:
    with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def drawn(picture: bytes, colour: tuple[int, int, int]) -> Any:
    """Where, among rows and columns, a line of this colour is."""
    return np.argwhere(np.abs(pixels(picture) - colour).sum(axis=-1) < 40)


ORANGE, BLUE = (0xD9, 0x48, 0x0F), (0x18, 0x64, 0xAB)


def test_the_line_has_the_form_of_the_schedule() -> None:
    picture = draw_schedule(COSINE, 101, title="Cosine")
    line = drawn(picture, ORANGE)
    columns = np.unique(line[:, 1])
    heights = np.array([line[line[:, 1] == column, 0].mean() for column in columns])  # rows go down
    found = (heights.max() - heights) / (heights.max() - heights.min())
    expected = 0.5 * (1.0 + np.cos(np.pi * np.linspace(0.0, 1.0, len(columns))))
    np.testing.assert_allclose(found, expected, atol=0.04)
    assert len(columns) > 500 and COSINE.taken == 0


def test_what_jumps_is_no_slope() -> None:
    line = drawn(draw_schedule(optim.StepLr(0.1, step_size=50), 100), ORANGE)
    rows = np.unique(line[:, 0], return_counts=True)[1]
    assert np.sort(rows)[-4:].min() > 300  # two levels, some pixels thick; between them a line straight down


def test_several_schedules_and_groups_have_lines_of_their_own() -> None:
    groups = optim.GroupedLr({"head": COSINE, "*": 0.03})
    for several in ({"one": COSINE, "other": optim.WarmUpLr(COSINE, num_iters=9)}, groups, {"both": groups}):
        picture = draw_schedule(several, 100)
        assert len(drawn(picture, ORANGE)) > 300 and len(drawn(picture, BLUE)) > 300
    assert not len(drawn(draw_schedule(COSINE, 100), BLUE))
    assert schedule_plot._lines({"both": groups}, 1) == {"both, head": ([0], [0.1]), "both, *": ([0], [0.03])}


@pytest.mark.parametrize("steps", [1, 2, 1_000_000])
@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
def test_any_number_of_steps(steps: int, log: bool) -> None:
    schedule = optim.WarmUpLr(optim.ExponentialLr(0.1, gamma=0.99999), num_iters=100_000, start_lr=0.01)
    assert len(drawn(draw_schedule(schedule, steps, log=log), ORANGE)) > 20


def test_the_picture_is_of_the_first_steps_wherever_the_schedule_stands() -> None:
    moved = optim.CosineAnnealingLr(0.1, num_iters=100)
    for _ in range(30):
        moved.step()
    assert draw_schedule(moved, 100) == draw_schedule(COSINE, 100) and moved.taken == 30


def test_a_file_is_written(tmp_path: Path) -> None:
    picture = draw_schedule(COSINE, 100, path=tmp_path / "lr.png")
    assert (tmp_path / "lr.png").read_bytes() == picture and len(list(tmp_path.iterdir())) == 1
    vectors = draw_schedule(COSINE, 100, path=tmp_path / "lr.svg", format="svg")
    assert (tmp_path / "lr.svg").read_bytes() == vectors == draw_schedule(COSINE, 100, format="svg")
    assert ElementTree.fromstring(vectors).tag.endswith("svg")
    with pytest.raises(RunError, match="missing.*cannot be written"):
        draw_schedule(COSINE, 100, path=tmp_path / "missing" / "lr.png")
    with pytest.raises(RunError, match=r"lr\.pdf: the plot is a PNG or an SVG; give its file a name .* \.png or \.svg"):
        draw_schedule(COSINE, 100, path=tmp_path / "lr.pdf")


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(OptimizerError, match="steps must be a whole number of at least one, got 0"):
        draw_schedule(COSINE, 0)
    with pytest.raises(OptimizerError, match="there are no schedules to plot"):
        draw_schedule({}, 10)
    with pytest.raises(OptimizerError, match="FunctionLr: the rate at step 3 must be .* got -1"):
        draw_schedule(optim.FunctionLr(lambda step: 2.0 - step), 10)
    with pytest.raises(OptimizerError, match="all rates are zero.*omit log=True"):
        draw_schedule(optim.ConstantLr(0.0), 10, log=True)


def test_without_matplotlib_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'train'"):
        draw_schedule(COSINE, 10)
