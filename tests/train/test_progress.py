from __future__ import annotations

import io
import re

import pytest

from phlox.train import EpochReport, Mean, PlainProgress, Plan, RichProgress, StepReport, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(epoch: int, *, held_out: bool = True) -> EpochReport:
    judged = {"loss": 0.25 / epoch, "accuracy": 0.98} if held_out else {}
    return EpochReport(epoch, 10 * epoch, 0.01, {"loss": 0.5 / epoch, "accuracy": 0.9}, judged, 1.5, 1234.5)


def test_a_plain_line_an_epoch() -> None:
    stream = io.StringIO()
    log = progress(stream, unit="images")
    assert isinstance(log, PlainProgress)
    log.start(Plan(12, 10, 64))
    log.epoch(report(1))
    log.epoch(report(2, held_out=False))
    log.stop()
    assert stream.getvalue().splitlines() == [
        "epoch  1/12  loss 0.5000  accuracy 90.0%  validation loss 0.2500  validation accuracy 98.0%  1,234 images/s",
        "epoch  2/12  loss 0.2500  accuracy 90.0%  1,234 images/s",
    ]


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress(Terminal()), PlainProgress)


@pytest.mark.parametrize("width", [20, 30, 40, 50, 64, 80, 100, 200])
def test_a_live_bar_fits_its_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    log = progress(stream, unit="images")
    assert isinstance(log, RichProgress)
    log.start(Plan(2, 3, 64))
    means = {"loss": Mean(), "accuracy": Mean()}
    for mean, value in zip(means.values(), (0.5, 0.9), strict=True):
        mean.add(value)
    for epoch in (1, 2):
        log.step(StepReport(epoch, 3, 0.1, means))
        log.epoch(report(epoch))
    log.stop()
    text = stream.getvalue()
    assert text.endswith("\x1b[?25h"), "the cursor is back"
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").split("\n") if line]
    assert max(map(len, lines)) <= width
    if width >= 40:
        assert re.search(r"2/2.* loss 0\.25.* acc\w* 90\.0%.*/s.* 0:00", lines[-1]), lines[-1]
    assert ("━" in lines[-1]) == (width >= 80)
    assert ("val " in lines[-1]) == (width >= 100)
