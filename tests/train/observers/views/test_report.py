"""`Report`: what the file says, and what a browser makes of it.

Serves: phlox/train/observers/views/report.py, phlox/train/observers/views/report_page.py
Serves: phlox/train/observers/views/mistakes.py
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.errors import RunError
from phlox.host.html import filled, parts_html
from phlox.host.svg import POINTS
from phlox.train import Learner
from phlox.train.events import Plan
from phlox.train.observers.views import report as report_module
from phlox.train.observers.views.report import Report
from phlox.train.observers.views.report_page import matrix
from tests.train.browser import PROGRAM, Browser
from tests.train.shown_learner import FakeLearner

HOSTILE = '<script>document.title="taken"</script>'
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "h1", "span", "button", "p", "b", "h2",
    "noscript", "div", "code", "table", "thead", "tbody", "tr", "th", "td", "script", "details", "summary", "img",
}  # fmt: skip
CONFUSION = [[50, 2, 0], [3, 40, 7], [0, 1, 60]]


def loss(epoch: int, *, validation: bool = False) -> float:
    return 2.0 / epoch + (0.02 * epoch if validation else 0.0)


def trained(
    path: Path, *, epochs: int = 12, end: bool = True, stop: str | None = None, **options: Any
) -> tuple[FakeLearner, Report]:
    learner = FakeLearner(epochs=epochs, steps=4)
    learner.model = nn.Sequential([nn.Linear(4, 3), nn.Linear(3, 2).freeze()])
    learner.metrics = {"confusion": metrics.ConfusionMatrix(num_classes=3), "accuracy": metrics.Accuracy(num_classes=3)}
    report = Report(path, **options)
    learner.begin(report)
    for epoch in range(1, epochs + 1):
        learner.begin_epoch()
        learner.take(4, loss=loss(epoch), accuracy=1 - 0.5 / epoch, recall=[0.5, 0.25, 1.0], confusion=CONFUSION)
        report._read -= 2.0  # as if a second had gone by
        learner.validate(
            loss=loss(epoch, validation=True), accuracy=1 - 0.6 / epoch, recall=[0.5, math.nan, 1.0],
            confusion=CONFUSION,
        )  # fmt: skip
        learner.end_epoch()
    learner.warn(f"checkpoint written: {HOSTILE}")
    if stop is not None:
        learner.stopped, learner.plan = stop, Plan(epochs + 1, None, 4, 10)
    if end:
        learner.end()
    return learner, report


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1], parse_constant=lambda name: pytest.fail(name))


class Reader(HTMLParser):
    """The cells of all tables, and the tags of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def test_the_tables_have_the_values_of_the_history(tmp_path: Path) -> None:
    learner, _ = trained(tmp_path / "report.html")
    rows = Reader((tmp_path / "report.html").read_text()).rows
    place = next(i for i, row in enumerate(rows) if row[:2] == ["epoch", "step"])
    heads = rows[place]
    assert heads[2:4] == ["validation/loss", "validation/accuracy"]
    assert not any("confusion" in name for name in heads)
    for row, report in zip(rows[place + 1 :], reversed(learner.history), strict=False):
        flat = report.flat()
        for name, cell in zip(heads, row, strict=True):
            assert float(cell.replace(",", "")) == pytest.approx(flat[name], rel=1e-5, nan_ok=True), (name, cell)
    assert [row[0] for row in rows[place + 1 : place + 13]] == [str(epoch) for epoch in range(12, 0, -1)]


def test_the_curves_have_the_values_of_the_history_and_mark_the_best(tmp_path: Path) -> None:
    learner, _ = trained(tmp_path / "report.html")
    data = embedded(tmp_path / "report.html")
    plots = {one["name"]: one for one in data["plots"]}
    assert data["running"] is False
    train, validation = plots["loss"]["series"]
    assert train["y"] == [report.train["loss"] for report in learner.history]
    assert validation["y"] == [report.validation["loss"] for report in learner.history]
    best = min(learner.history, key=lambda report: report.validation["loss"])
    assert validation["best"] == [best.epoch, best.validation["loss"]] and train["best"] is None
    assert plots["accuracy"]["series"][1]["best"][0] == 12 and plots["accuracy"]["percent"]
    assert [one["label"] for one in plots["recall"]["series"]] == ["0", "1", "2"]
    assert plots["recall"]["series"][1]["y"] == [None] * 12
    assert "confusion" not in plots and {"learning rate", "seconds an epoch", "rows a second"} < plots.keys()
    assert plots["loss while training"]["series"][0]["x"][0] == 1


def test_the_states_of_a_training(tmp_path: Path) -> None:
    def status(path: Path) -> str:
        return re.search(r'<span class="status (.*?)</span>', path.read_text())[1]  # pyright: ignore[reportOptionalSubscript]

    learner, report = trained(tmp_path / "a.html", end=False)
    assert status(tmp_path / "a.html") == 'running">running' and embedded(tmp_path / "a.html")["running"] is True
    learner.stopped = "12 epochs are over"  # as planned
    learner.end()
    assert status(tmp_path / "a.html") == 'finished">finished'
    trained(tmp_path / "b.html", stop="no <better>")
    assert status(tmp_path / "b.html") == 'stopped">stopped: no &lt;better&gt;'
    learner, report = trained(tmp_path / "c.html", end=False)
    learner.end(RunError("the loss is nan"))
    assert status(tmp_path / "c.html") == 'failed">failed: RunError: the loss is nan'
    learner, report = trained(tmp_path / "d.html", end=False)
    learner.end(KeyboardInterrupt())
    assert status(tmp_path / "d.html") == 'stopped">interrupted'
    assert report.writes and repr(report) == f"Report({str(tmp_path / 'd.html')!r})"


def test_every_text_is_escaped(tmp_path: Path) -> None:
    def wrong(learner: Any) -> list[Any]:
        return [(HOSTILE, 0, HOSTILE, 0.5), (np.eye(4), 1, 2), ("{{data}}", "{{body}}", "x", None)]

    path = tmp_path / f"{HOSTILE.replace('/', '-')}.html"
    trained(path, classes=[HOSTILE, "b", "c"], wrong=wrong, table={HOSTILE: HOSTILE, "{{title}}": "{{facts}}"})
    text = path.read_text()
    reader = Reader(text)
    assert sum(tag == "script" for tag, _ in reader.tags) == 2
    assert {tag for tag, _ in reader.tags} == TAGS
    assert not [1 for tag, attributes in reader.tags if any(name.startswith("on") for name in attributes)]
    assert [HOSTILE, HOSTILE] in reader.rows and ["{{title}}", "{{facts}}"] in reader.rows
    assert [f"{HOSTILE}", "50", "2", "0"] in reader.rows
    assert "{{data}}" in text and "expected {{body}}" in text


def test_nothing_is_fetched(tmp_path: Path) -> None:
    trained(tmp_path / "report.html", wrong=lambda learner: [(np.eye(4), 1, 2)])
    for tag, attributes in Reader((tmp_path / "report.html").read_text()).tags:
        assert not {"href", "srcset", "action"} & attributes.keys() and tag not in ("link", "iframe", "object")
        assert (attributes.get("src") or "data:").startswith("data:")


def test_the_template_is_small() -> None:
    parts = dict.fromkeys(["title", "state", "status", "facts", "style", "body", "data"], "")
    assert len(filled("phlox.train.observers.views", "report.html", parts).encode()) < 60_000


@pytest.mark.parametrize(
    ("shape", "show", "shown"),
    [((1, 6, 6), None, 3), ((6, 6), None, 3), ((6, 6, 3), None, 3), ((36,), None, 0), ((36,), lambda row: "a text", 3)],
)
def test_what_a_classifier_gets_wrong(shape: tuple[int, ...], show: Any, shown: int, tmp_path: Path) -> None:
    """The surest mistakes first; labels that are exchanged on purpose are mistakes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(40, *shape)).astype(np.float32)
    right = (x.reshape(40, -1)[:, 0] > 0.5).astype(np.int64)
    x.reshape(40, -1)[:, 0] += 4.0 * right
    labels = right.copy()
    labels[[3, 7, 20]] = 1 - labels[[3, 7, 20]]
    model = nn.Sequential([nn.Flatten(), nn.Linear(x[0].size, 2)]).init(0)
    learner = Learner(model, optim.AdamWConfig(), 0.1, nn.cross_entropy_loss)
    learner.fit(Loader((x, right), 40), epochs=60, validation=Loader((x, right), 40), progress=False)
    report = Report(tmp_path / "report.html", show=show)
    learner.fit(
        Loader((x, right), 40), epochs=1, validation=Loader((x, labels), 16), callbacks=[report], progress=False
    )
    found = report._wrong
    sure = [sample.confidence or 0.0 for sample in found]
    assert len(found) == shown and sure == sorted(sure, reverse=True)
    assert {(s.expected, s.got) for s in found} <= {(0, 1), (1, 0)}
    assert ("What went wrong" in (tmp_path / "report.html").read_text()) == bool(shown)


def test_confusion(tmp_path: Path) -> None:
    rows = Reader(parts_html(matrix(CONFUSION, ["a", "b"]))).rows
    assert rows[:4] == [
        ["expected \\ got", "a", "b", "2"], ["a", "50", "2", "0"], ["b", "3", "40", "7"], ["2", "0", "1", "60"],
    ]  # fmt: skip
    assert rows[4:6] == [["expected", "got", "count", "of the class"], ["b", "2", "7", "14.0%"]]
    large = np.eye(41, dtype=int) * 9
    large[3, 5] = 4
    assert Reader(parts_html(matrix(large.tolist(), []))).rows[1:] == [["3", "5", "4", "30.8%"]]
    assert "Nothing is mistaken" in parts_html(matrix([[1, 0], [0, 1]], []))
    assert matrix([[1, 2, 3]], []) == [] and matrix([], []) == []


def test_a_long_training_makes_a_small_file(tmp_path: Path) -> None:
    learner, _ = trained(tmp_path / "report.html", epochs=3000)
    data = embedded(tmp_path / "report.html")
    assert all(len(one["x"]) <= 2002 for plot in data["plots"] for one in plot["series"])
    shown = [row for row in Reader((tmp_path / "report.html").read_text()).rows if row[:1] and len(row) > 8]
    assert 300 < len(shown) < 500
    best = min(learner.history, key=lambda report: report.validation["loss"])
    assert any(row[0] == f"{best.epoch:,}" for row in shown)


def test_the_model(tmp_path: Path) -> None:
    learner, report = trained(tmp_path / "report.html", epochs=1)
    shown = report.html(learner)  # pyright: ignore[reportArgumentType]
    rows = Reader(shown).rows
    assert ["weight", "(4, 3)", "f32", "12", "deferred"] in rows
    assert ["bias", "(2,)", "f32", "2", "deferred, not trained"] in rows
    assert "23 parameters" in shown and "15 trained" in shown and "<code>layers.1</code>" in shown
    learner.model = {"generator": nn.Linear(2, 2), "critic": nn.Linear(2, 1), "other": 3}
    shown = report.html(learner)  # pyright: ignore[reportArgumentType]
    assert "<b>critic</b>" in shown and "<b>other</b>" not in shown and shown.count("<b>Linear</b>") == 2


def test_the_folder_of_the_run_is_the_place(tmp_path: Path) -> None:
    learner = FakeLearner()
    with pytest.raises(RunError, match=r"no folder to write report.html to; give Report\(path\), or fit\(folder="):
        learner.begin(Report())
    learner.folder = tmp_path / "first"
    learner.begin(Report())
    assert "<h1>first</h1>" in (tmp_path / "first" / "report.html").read_text()
    wrong: dict[str, Any]
    for wrong in ({"samples": -1}, {"every_seconds": 0}, {"every_seconds": math.nan}):
        with pytest.raises(RunError, match="samples must be at least 0 and every_seconds more than 0"):
            Report(**wrong)


def test_what_fails_in_it_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    learner, _ = trained(tmp_path / "file" / "report.html")
    told = [text for _, text in learner.events if "Report: " in text]
    assert len(told) == 1 and "cannot be written" in told[0]

    def fails(learner: Any) -> Any:
        raise ValueError("no data")

    learner, _ = trained(tmp_path / "report.html", wrong=fails)
    assert (12 * 4, "Report: wrong= failed, ValueError: no data") in learner.events or any(
        text == "Report: wrong= failed, ValueError: no data" for _, text in learner.events
    )
    learner, _ = trained(tmp_path / "report.html", wrong=lambda learner: [(np.zeros(3), 0, 1)])
    assert any("an image of shape (3,) cannot be shown" in text for _, text in learner.events)


def test_it_writes_every_few_seconds_and_not_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(report_module, "perf_counter", lambda: now)
    written: list[float] = []
    monkeypatch.setattr(Report, "html", lambda self, learner: written.append(now) or "")
    learner = FakeLearner(epochs=1, steps=100)
    learner.begin(Report(tmp_path / "r.html", every_seconds=30))
    learner.begin_epoch()
    for _ in range(100):
        now += 1.5
        learner.take()
    assert written == [1000.0, 1030.0 + 0.0, 1060.0, 1090.0, 1120.0, 1150.0]
    assert learner.reads == 100  # at most once a second
    learner.seconds = 10 * 1.5 * POINTS  # and of a training so long every ten steps, for a plot shows no more points
    for _ in range(100):
        now += 1.5
        learner.take()
    assert learner.reads == 110


def test_resumed_it_goes_on_with_its_curve(tmp_path: Path) -> None:
    _, first = trained(tmp_path / "report.html", epochs=2)
    state = json.loads(json.dumps(first.state()))
    second = Report(tmp_path / "report.html")
    second.restore(state)
    learner = FakeLearner(epochs=4)
    learner.is_resumed = True
    learner.begin(second)
    assert (
        json.dumps(second.state()) == json.dumps(first.state())
        and len(state["losses"]) == 2
        and len(state["validations"]) == 2
    )
    learner.is_resumed = False
    learner.begin(second)
    assert second.state()["losses"] == []
    second.restore({"steps": [3, 7], "losses": [0.5, 0.25], "validations": []})  # of a former version
    assert second.state()["losses"] == [(3, 0.5), (7, 0.25)]


def test_validations_within_an_epoch_are_drawn_by_step(tmp_path: Path) -> None:
    learner = FakeLearner(epochs=1, steps=8)
    report = Report(tmp_path / "report.html")
    learner.begin(report)
    learner.begin_epoch()
    for value in (3.0, 1.0, 2.0):
        learner.take(2)
        learner.validate(loss=value, confusion=CONFUSION)
    learner.end()
    (plot,) = [one for one in embedded(tmp_path / "report.html")["plots"] if one["name"] == "loss by step"]
    assert plot["series"][0] == {"label": "validation", "x": [2, 4, 6], "y": [3.0, 1.0, 2.0], "best": [4, 1.0]}


# --- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("needs Chromium (apt install chromium), which is not installed")
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    def wrong(learner: Any) -> list[Any]:
        return [(np.eye(8), 0, 1, 0.7), ("word" * 200, 2, HOSTILE * 3, 0.2), (np.zeros((3, 300, 200)), 1, 0)]

    path = tmp_path / "report.html"
    trained(
        path, classes=[HOSTILE, "a_class_with_a_name_without_an_end_" * 3, "c"], wrong=wrong,
        table={"a_setting_with_a_long_name_" * 4: "x" * 300}, stop="validation/" + "loss" * 60,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_overflow_and_no_error(browser: Browser, whole: Path, width: int, dark: bool) -> None:
    browser.errors.clear()
    browser.open(whole, width=width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.title") == "report"
    assert browser.value("document.querySelectorAll('figure svg path.curve').length") == 11
    assert browser.value("document.querySelectorAll('.samples img').length") == 2
    assert browser.value("[...document.images].every(one => one.naturalWidth > 0)")
    ground, ink = (browser.value(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert (_lightness(ground) < 60) == dark and abs(_lightness(ground) - _lightness(ink)) > 150
    browser.value("document.getElementById('theme').click()")
    assert (_lightness(browser.value("getComputedStyle(document.body).backgroundColor")) < 60) == (not dark)
    browser.value("localStorage.clear()")
    assert browser.errors == []


def _lightness(colour: str) -> float:
    return float(np.mean([float(part) for part in re.findall(r"\d+", colour)[:3]]))


LEGEND = "document.querySelector('figure[data-name=loss] .legend').textContent"
BOX = "(() => { const r = document.querySelector('figure[data-name=loss] svg').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"  # noqa: E501
FIGURE = "document.querySelector('figure[data-name=loss]"
LABELS = (
    f"[...{FIGURE.replace('Selector', 'SelectorAll')} svg text[text-anchor=middle]:not(.name)')]"
    ".map(t => +t.textContent)"
)


def test_zoom_hover_and_scale(browser: Browser, whole: Path) -> None:
    browser.errors.clear()
    browser.open(whole)
    browser.value("document.querySelector('figure[data-name=loss]').scrollIntoView({block: 'center'})")
    assert f"validation {loss(12, validation=True):.5g}".rstrip("0") in browser.value(LEGEND)
    assert "(best 0.4 at 10)" in browser.value(LEGEND)
    x, y, width, height = browser.value(BOX)

    def at(epoch: float, low: float = 1.0, high: float = 12.0) -> float:  # from the margins of the plot
        return x + 54 + (epoch - low) / (high - low) * (width - 64)

    browser.mouse("mouseMoved", at(5.1), y + height / 2, clicks=0)
    assert browser.value(LEGEND) == f"epoch 5train {loss(5):.5g}validation {loss(5, validation=True):.5g}"
    browser.mouse("mousePressed", at(3), y + height / 2)
    browser.mouse("mouseMoved", at(6), y + height / 2)
    browser.mouse("mouseReleased", at(6), y + height / 2)
    for name in ("loss", "accuracy"):  # plots over the same x zoom together
        labels = browser.value(LABELS.replace("=loss", f"={name}"))
        assert labels == [3, 4, 5, 6] or labels == [4, 5, 6] or labels == [4, 5], labels
    browser.mouse("mouseMoved", at(4, 3, 6), y + height / 2, clicks=0)
    assert browser.value(LEGEND).startswith("epoch 4")
    browser.value("document.querySelector('figure[data-name=loss] .reset').click()")
    assert max(browser.value(LABELS)) >= 10
    scale = "document.querySelector('figure[data-name=loss] .scale')"
    before, curve = browser.value(f"{scale}.textContent"), "document.querySelector('figure[data-name=loss] path.curve')"
    path = browser.value(f"{curve}.getAttribute('d')")
    browser.value(f"{scale}.click()")
    assert {before, browser.value(f"{scale}.textContent")} == {"log", "linear"}
    assert browser.value(f"{curve}.getAttribute('d')") != path
    browser.value("localStorage.clear()")
    assert browser.errors == []


def test_the_keyboard_reads_values(browser: Browser, whole: Path) -> None:
    browser.open(whole)

    def press(key: str) -> None:
        browser.value(f"{FIGURE} svg').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")

    press("ArrowLeft")
    assert browser.value(LEGEND).startswith("epoch 12")
    press("ArrowLeft")
    assert browser.value(LEGEND).startswith("epoch 11")


def test_without_javascript_there_are_tables(browser: Browser, whole: Path) -> None:
    browser.errors.clear()
    browser.open(whole, width=360, script=False)
    document = browser.call("DOM.getDocument", depth=-1)["root"]
    text = json.dumps(document)
    assert "all values are in the table of epochs" in text and f"{loss(7):.6g}" in text
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.value("document.documentElement.scrollWidth") <= 360
    assert not [error for error in browser.errors if "script" not in error.lower()]


def test_a_report_without_values(browser: Browser, tmp_path: Path) -> None:
    browser.errors.clear()
    learner = FakeLearner()
    learner.begin(Report(tmp_path / "report.html"))
    browser.open(tmp_path / "report.html", width=360)
    assert "There is nothing to draw yet." in browser.value("document.body.textContent")
    assert browser.errors == []
