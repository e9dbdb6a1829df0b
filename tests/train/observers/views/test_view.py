"""The views of a training: what they write, how wide it is, and how often they look.

Serves: phlox/train/observers/views/view.py, phlox/train/observers/views/text.py, phlox/train/observers/views/screen.py
"""

from __future__ import annotations

import io
import re
import sys
import types
from typing import Any

import pytest

from phlox.backend import Autodiff, NumPy, as_device
from phlox.errors import ExtraNotInstalledError, RunError
from phlox.train.events import EpochReport, Plan
from phlox.train.observers.views import screen as screen_module
from phlox.train.observers.views import view as view_module
from phlox.train.observers.views.text import (
    BestValues,
    Snapshot,
    amount,
    cells,
    cropped,
    epoch_lines,
    figures,
    is_better,
    length,
    live_lines,
    one_line,
)
from phlox.train.observers.views.view import (
    NotebookProgress,
    PlainProgress,
    Print,
    RichProgress,
    View,
    memory_text,
    progress,
)
from tests.train.shown_learner import FakeLearner

WIDTHS = [10, 20, 30, 40, 64, 80, 100, 200]
MANY: dict[str, Any] = {
    "loss": 1234.5678, "accuracy": 0.99, "recall": [0.5, float("nan"), 1.0], "confusion": [[1, 2], [3, 4]],
    "by_group": {"a": 0.25, "b": 1e-7}, "a_metric_with_a_long_name_indeed": 0.5, "精度": 0.5,
}  # fmt: skip


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which goes on where a test says so."""
    now = [1000.0]
    monkeypatch.setattr(view_module, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def plain_of(text: str) -> list[str]:
    """The lines that were written, without the codes that colour them and move the cursor."""
    return [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").split("\n") if line]


def run(learner: FakeLearner, view: View, clock: list[float], *, epochs: int = 2, validates: bool = True) -> None:
    learner.begin(view)
    for epoch in range(1, epochs + 1):
        learner.begin_epoch()
        for _ in range(4):
            clock[0] += 0.5
            learner.take(loss=0.5 / epoch, accuracy=0.9)
        if validates:
            learner.validate(loss=0.25 / epoch, accuracy=0.98)
        learner.end_epoch(seconds=2.0)


# --- which one


def test_which_view_there_is(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    assert isinstance(progress(terminal, unit="images"), RichProgress)
    assert isinstance(progress(io.StringIO()), PlainProgress)
    for name in ("dumb", "unknown"):
        monkeypatch.setenv("TERM", name)
        assert isinstance(progress(terminal), PlainProgress)


def test_without_rich_there_are_plain_lines_and_one_note(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, clock: list[float]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ExtraNotInstalledError, match=r"install Phlox with the extra 'train'"):
        RichProgress(terminal)
    view = progress(terminal)
    run(FakeLearner(epochs=2), view, clock)
    lines = terminal.getvalue().splitlines()
    assert lines[0] == "phlox: the extra 'train' gives a live view of the training"
    assert len(lines) == 3 and lines[2].startswith("epoch 2/2")


# --- plain lines


def test_a_plain_line_an_epoch(clock: list[float]) -> None:
    stream, learner = io.StringIO(), FakeLearner(epochs=12)
    view = PlainProgress(stream, unit="images")
    run(learner, view, clock)
    learner.validation = {}
    learner.begin_epoch()
    learner.take(4, loss=1e-5, recall=[0.5, 1.0])
    learner.end_epoch(seconds=125.0)
    learner.end()
    both = "accuracy 90.0%  validation loss {}  validation accuracy 98.0%  2.00 s  20 images/s"
    assert stream.getvalue().splitlines() == [
        f"epoch  1/12  loss 0.5000  {both.format('0.2500')}",
        f"epoch  2/12  loss 0.2500  {both.format('0.1250')}",
        "epoch  3/12  loss 1.00e-05  recall 0.5..1  2:05  0 images/s",
    ]


def test_a_long_epoch_has_a_line_every_half_minute(clock: list[float]) -> None:
    stream, learner = io.StringIO(), FakeLearner(epochs=1, steps=1000)
    learner.begin(PlainProgress(stream))
    learner.begin_epoch()
    for _ in range(100):
        clock[0] += 1.0
        learner.take(loss=0.5)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "epoch 1/1  step 30/1,000  loss 0.5000  10 rows/s  16:10 left"
    assert [line.split("  ")[1] for line in lines] == ["step 30/1,000", "step 60/1,000", "step 90/1,000"]
    assert learner.reads <= 5  # and it looked no more often


def test_plain_lines_have_no_control_characters_and_tell_events(clock: list[float]) -> None:
    stream, learner = io.StringIO(), FakeLearner()
    learner.begin(PlainProgress(stream))
    learner.begin_epoch()
    learner.take(1, **{"lo\x1b[2Jss\n": 0.5})
    learner.warn("saved  to\n\x1b[31mruns\x07")
    learner.take(3)
    learner.end_epoch()
    learner.end(RunError("the loss\nis nan"))
    assert stream.getvalue().splitlines() == [
        r"step 1: saved to \x1b[31mruns\x07",
        r"epoch 1/3  lo\x1b[2Jss 0.5000  1.50 s  27 rows/s",
        "ended by RunError after 0:00: the loss is nan",
    ]


def test_a_validation_within_an_epoch_has_a_line(clock: list[float]) -> None:
    stream, learner = io.StringIO(), FakeLearner(epochs=2, steps=4)
    learner.begin(PlainProgress(stream))
    learner.begin_epoch()
    learner.take(2, loss=1.0)
    learner.validate(loss=0.75)
    learner.take(2, loss=1.0)
    learner.validate(loss=0.5)
    learner.end_epoch()
    assert [line.split("  1.50 s")[0] for line in stream.getvalue().splitlines()] == [
        "epoch 0.50/2  loss 1.0000  validation loss 0.7500",
        "epoch 1/2  loss 1.0000  validation loss 0.5000",
    ]


# --- a terminal


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("values", [{"loss": 0.5, "accuracy": 0.9}, MANY], ids=["few", "many"])
def test_a_live_view_fits_its_terminal(
    width: int, values: dict[str, Any], terminal: Terminal, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    learner = FakeLearner(epochs=2)
    learner.begin(progress(terminal, unit="images"))
    for _ in range(2):
        learner.begin_epoch()
        for _ in range(4):
            clock[0] += 1.0
            learner.take(**values)
        learner.warn("checkpoint written: runs/first/checkpoints/" + "a" * 300)
        learner.validate(**values)
        learner.end_epoch()
    learner.end()
    text = terminal.getvalue()
    assert text.endswith("\x1b[?25h"), "the cursor is back"
    lines = plain_of(text)
    assert max(map(cells, lines)) <= width
    if width >= 40:
        assert any(re.fullmatch(r" *2/2 .*(0\.5000|1234\.6) .*", line) for line in lines)
        assert "finished 2 epochs in 0:08" in lines[-1]
    assert any("━" in line for line in lines) == (width >= 30)
    assert any("val accuracy" in line for line in lines) == (width >= 30)


def test_what_a_terminal_shows(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=2)
    run(learner, progress(terminal, unit="images"), clock)
    learner.warn("learning rate x 0.1")
    learner.end()
    lines = plain_of(terminal.getvalue())
    assert lines.count("epoch     loss  val loss  accuracy  val accuracy       time") == 1
    assert "  1/2   0.5000    0.2500*    90.0%         98.0%*    2.00 s" in lines
    assert "  2/2   0.2500    0.1250*    90.0%         98.0%     2.00 s" in lines
    bars = [line for line in lines if "━" in line]
    assert any(re.fullmatch(r"epoch 1/2  ━+─+   50%  loss 0\.5000  accuracy 90\.0%", line) for line in bars)
    rates = [line for line in lines if "images/s" in line]
    pattern = r"20 images/s · 0:0\d left · lr 0\.01 · memory [\d.]+ [MG]B · 0:0\d elapsed"
    assert rates and all(re.fullmatch(pattern, line) for line in rates if "left" in line)
    assert lines[-3:] == [
        "best val loss 0.1250 (epoch 2) · val accuracy 98.0% (epoch 1)",
        "step 8 learning rate x 0.1",
        "finished 2 epochs in 0:04",
    ]


@pytest.mark.parametrize(("error", "stopped", "expected"), [
    (KeyboardInterrupt(), None, "interrupted after 0:01, at step 2"),
    (RunError("the loss\x1b[2J is nan"), None, r"ended by RunError after 0:01: the loss\x1b[2J is nan"),
    (None, "no better", "stopped after 0:01: no better"),
], ids=["interrupted", "failed", "stopped"])  # fmt: skip
def test_however_it_ends_the_terminal_is_in_order(
    error: BaseException | None, stopped: str | None, expected: str, terminal: Terminal, clock: list[float]
) -> None:
    learner = FakeLearner()
    learner.begin(progress(terminal))
    learner.begin_epoch()
    for _ in range(2):
        clock[0] += 0.5
        learner.take()
    learner.stopped = stopped
    learner.end(error)
    text = terminal.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1 and text.endswith("\x1b[?25h")
    assert plain_of(text)[-1] == expected
    assert sys.stdout is not terminal and "FileProxy" not in type(sys.stdout).__name__


def test_it_looks_five_times_a_second_at_most(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=1, steps=1000)
    learner.begin(progress(terminal))
    learner.begin_epoch()
    for _ in range(1000):
        clock[0] += 0.01
        learner.take()
    assert 40 <= learner.reads <= 50


def test_a_training_of_unknown_length(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=None, steps=None)
    run(learner, progress(terminal), clock, validates=False)
    learner.end()
    lines = plain_of(terminal.getvalue())
    assert "epoch 2  step 3  loss 0.2500  accuracy 90.0%" in lines
    assert "    1   0.5000*    90.0%*    2.00 s" in lines
    assert not any("left" in line for line in lines) and any("0:03 elapsed" in line for line in lines)


@pytest.mark.full
def test_the_head_of_the_table_comes_again_when_it_is_gone(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=500)
    run(learner, progress(terminal), clock, epochs=500)
    learner.end()
    lines = plain_of(terminal.getvalue())
    heads = [place for place, line in enumerate(lines) if re.match(" *epoch +loss", line)]
    assert 15 < len(heads) < 40
    rows = [line for line in lines if re.match(r" *\d+/500 ", line)]
    assert len(rows) == 500 and "500/500" in rows[-1]


def test_a_resumed_training_knows_its_best_and_its_place(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=3, steps=4)
    learner.history = [EpochReport(1, 4, 0.1, {"loss": 1.0}, {"loss": 0.001}, 1.0, 40)]
    learner.epoch, learner.step = 1, 6
    learner.begin(progress(terminal))
    clock[0] += 1.0
    learner.take()
    clock[0] += 1.0
    learner.take()
    lines = plain_of(terminal.getvalue())
    assert any(line.startswith("epoch 2/3") and " 75%" in line for line in lines)
    assert "best val loss 0.0010 (epoch 1)" in lines
    learner.validate(loss=0.5)
    learner.end_epoch()
    assert "  2/3   1.0000    0.5000     1.50 s" in plain_of(terminal.getvalue())


def test_the_time_that_is_left_counts_what_was_slow_at_first_once(terminal: Terminal, clock: list[float]) -> None:
    learner = FakeLearner(epochs=2, steps=10)
    learner.begin(progress(terminal))
    learner.begin_epoch()
    clock[0] += 100.0  # it compiles
    learner.take()
    for _ in range(4):
        clock[0] += 2.0
        learner.take()
    assert any("0:30 left" in line for line in plain_of(terminal.getvalue()))


def test_a_terminal_without_blocks(terminal: Terminal, clock: list[float]) -> None:
    terminal.encoding = "ascii"
    learner = FakeLearner(epochs=2)
    learner.warn("naïve " + "x" * 200)
    run(learner, progress(terminal), clock)
    learner.end()
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).isascii()
    assert "#" in terminal.getvalue()


def test_every_view_gives_the_screen_back(terminal: Terminal) -> None:
    one = screen_module.Screen(terminal)
    one.close()
    one.open(Snapshot())
    one.close()
    one.close()
    assert terminal.getvalue().count("\x1b[?25h") == 1


# --- a notebook


def test_a_notebook_has_one_line_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        shown.append(data["text/plain"])
        return Handle()

    package = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    view = progress(unit="images")
    assert isinstance(view, NotebookProgress)
    learner = FakeLearner(epochs=2)
    run(learner, view, clock)
    learner.end()
    assert shown[0].startswith("epoch 1/2  starting")
    assert any(re.match(r"epoch 2/2  ━+─+ +50%  loss 0.2500  accuracy 90.0%  20 images/s", line) for line in shown)
    assert shown[-1] == "finished 2 epochs in 0:04" and all("\n" not in line for line in shown)
    assert len(shown) <= 13
    assert [line[:11] for line in capsys.readouterr().out.splitlines()] == ["epoch 1/2  ", "epoch 2/2  "]
    package.get_ipython = lambda: types.SimpleNamespace()  # IPython in a terminal is no notebook
    assert not isinstance(progress(), NotebookProgress)


# --- texts


def test_the_best_values() -> None:
    best = BestValues()
    assert best.add("1", {"validation/loss": 2.0, "train/loss": 2.0, "validation/x": 1.0}) == {
        "validation/loss", "train/loss",
    }  # fmt: skip
    assert best.add("2", {"validation/loss": float("nan"), "train/loss": 2.0}) == set()
    assert best.add("3", {"validation/loss": 1.0, "validation/recall/0": 1.0}) == {
        "validation/loss", "validation/recall/0",
    }  # fmt: skip
    assert [tuple(one) for one in best.shown()] == [("validation/loss", 1.0, "3")]
    assert is_better("validation/accuracy", 2.0, 1.0) and not is_better("validation/accuracy", 1.0, 1.0)


def test_the_digits_of_values() -> None:
    values = (0.0, 5, 12.34567, 123.4567, -0.5, float("nan"), float("inf"), 99999.0)
    assert [amount("x", value) for value in values] == [
        "0.0000", "5", "12.346", "123.46", "-0.5000", "nan", "inf", "1.00e+05",
    ]  # fmt: skip
    assert amount("top5_accuracy", 0.123) == "12.3%" and amount("accuracy", 97.5) == "97.500"
    assert figures(MANY) == {
        "loss": "1234.6", "accuracy": "99.0%", "recall": "0.5..1", "by_group/a": "0.2500", "by_group/b": "1.00e-07",
        "a_metric_with_a_long_name_indeed": "0.5000", "精度": "0.5000",
    }  # fmt: skip
    assert one_line("a\tb\r\n c\x00") == "a b c\\x00"


@pytest.mark.parametrize("width", [1, 5, *WIDTHS])
def test_every_line_fits(width: int) -> None:
    best = {"validation/loss", "validation/accuracy"}
    for line in epoch_lines("12/500", MANY, MANY, 1.5, best, width):
        assert length(line) <= width
    now = Snapshot(
        epoch=12, epochs=500, step=50, steps=100, values=MANY, rate=1e6, elapsed=1e6, left=1e6, memory="memory 1 GB",
        lr={"a": 0.1, "b": 0.01}, events=[(1, "x" * 300), (2, "精" * 100)], ended="y" * 300,
    )  # fmt: skip
    for ended in (None, "y" * 300):
        now.ended = ended
        assert all(length(line) <= width for line in live_lines(now, width))
    assert cropped([("abc", ""), ("def", "dim")], 4) == [("abc", ""), ("…", "dim")]
    assert cropped([("精精精", "")], 5) == [("精精…", "")]


def test_the_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    learner: Any = FakeLearner()
    assert re.fullmatch(r"memory [\d.]+ [MG]B|memory \d\.\d\d GB", memory_text(learner))
    assert all(as_device(name).backend.memory_used(as_device(name)) is None for name in ("numpy", "jax", "torch"))
    learner.device = Autodiff(NumPy()).device()
    monkeypatch.setattr(NumPy, "memory_used", lambda self, device: 2_500_000_000)
    assert memory_text(learner).endswith(", device 2.50 GB")
    monkeypatch.setattr(view_module, "resident_bytes", lambda: 0)
    assert memory_text(learner) == "device memory 2.50 GB"


# --- Print


def test_lines_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    learner = FakeLearner(epochs=2, steps=4)
    learner.begin(Print(every_steps=3))
    for _ in range(2):
        learner.begin_epoch()
        learner.take(4, loss=0.5, shares=[0.25, 0.75], confusion=[[1.0, 2.0], [3.0, 4.0]])
        learner.validate(loss=1.5)
        learner.end_epoch(seconds=0.0)
    learner.stopped = "8 steps were taken"
    learner.plan = Plan(3, 12, 4, 10)
    learner.end()
    lines = [re.sub(r"(  [\d,]+ rows/s)?(  \S+ left)?$", "", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:-1] == [
        "epoch 1/2  step 3/4  loss 0.5000  shares 0.25..0.75",
        "epoch 1/2  loss 0.5000  shares 0.25..0.75  validation loss 1.5000",
        "epoch 2/2  step 2/4  loss 0.5000  shares 0.25..0.75",
        "epoch 2/2  loss 0.5000  shares 0.25..0.75  validation loss 1.5000",
    ]
    assert lines[-1].endswith(": 8 steps were taken")
    with pytest.raises(RunError, match="every_steps must be"):
        Print(0)


def test_a_stream_that_ends_does_not_end_the_training() -> None:
    stream = io.StringIO()
    stream.close()
    learner = FakeLearner()
    learner.begin(Print(1, stream))
    learner.begin_epoch()
    learner.take(4)
    learner.end_epoch()
    learner.end()
    assert len(learner.events) == 1 and "there are no more lines" in learner.events[0][1]
