"""`Report`: one HTML file about a training, updated while it runs."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, cast

import numpy as np

from phlox.errors import RunError
from phlox.host.html import escape, filled, style
from phlox.host.page import Page, Part, Table, facts
from phlox.host.svg import POINTS, Curve
from phlox.record.io.files import atomic_write
from phlox.train.events import EpochReport, Growing, flattened
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.views.epochs import best_point, epochs_table, is_shown
from phlox.train.observers.views.mistakes import mistakes
from phlox.train.observers.views.plots import Plot, plots_of
from phlox.train.observers.views.report_page import (
    Sample,
    embedded,
    matrix,
    samples,
    section,
)
from phlox.train.observers.views.text import amount, clock, is_complete
from phlox.version import __version__

Wrong = Callable[[Any], Sequence[tuple[Any, ...]]]
"""A function of the learner, whose class is not imported here at run time."""

_SHARE = 20
"""If epochs are shorter than this many times the time of a write, not every epoch is written."""


class Report(Callback):
    """Writes a report of the training as one HTML file, which needs no network and no other file.

    It shows the state of the training, curves of the loss and of all metrics, learning rates, times, a confusion matrix
    if a metric is one, wrong predictions, the parameters of the model, the environment and the events. It is
    written after every epoch, and every `every_seconds` within one; the file is complete at any time. If it fails (a
    full disk, an error of `wrong`), the learner is warned, and the training goes on.

    Args:
        path: the file; `report.html` in the folder of the run if None.
        samples: the number of wrong predictions to show.
        every_seconds: seconds between two writes within an epoch.
        classes: the names of the classes.
        table: names and values that are shown as settings, such as hyper-parameters.
        wrong: a function of the learner that returns wrong predictions, as tuples `(content, expected, got,
            confidence)`. The content is an image (an array [H, W], [H, W, C] or [C, H, W]) or a text; `expected` and
            `got` are class indices or texts; the confidence, from 0 to 1, may be left out. It is called after epochs,
            at most every `every_seconds`, and at the end. Without it, the report shows at the end what a classifier of
            images got wrong among the first rows of the validation data.
        show: a function from an input row to an image or a text, for inputs that are not images.

    Raises `RunError`, when a training begins, if there is neither a path nor a folder.

    >>> Report("report.html", classes=["cat", "dog"])
    Report('report.html')
    """

    writes: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        samples: int = 16,
        every_seconds: float = 30.0,
        classes: Sequence[str] | None = None,
        table: Mapping[str, Any] | None = None,
        wrong: Wrong | None = None,
        show: Callable[[Any], Any] | None = None,
    ) -> None:
        if samples < 0 or not every_seconds > 0:
            raise RunError(
                f"Report: samples must be at least 0 and every_seconds more than 0, got {samples!r} and "
                f"{every_seconds!r}"
            )
        self.path = None if path is None else Path(path)
        self.samples, self.every_seconds = samples, every_seconds
        self.classes = [str(name) for name in classes or ()]
        self.table, self.wrong, self._show = dict(table or {}), wrong, show
        self._losses: Growing[tuple[int, float]] = Growing()
        self._validations: Growing[tuple[int, dict[str, float]]] = Growing()
        self._reset()

    def _reset(self) -> None:
        self._written = self._read = perf_counter()
        self._cost = 0.0
        self._asked = -math.inf
        self._wrong: list[Sample] = []
        self._failures: set[str] = set()
        self._error: BaseException | None = None
        self._has_ended = False
        self._started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())

    def __repr__(self) -> str:
        return f"Report({'' if self.path is None else repr(str(self.path))})"

    # --- events

    def on_fit_start(self, learner: AnyLearner) -> None:
        self._reset()
        if self.path is None and learner.folder is None:
            raise RunError("Report: there is no folder to write report.html to; give Report(path), or fit(folder=...)")
        if not learner.is_resumed:
            self._losses, self._validations = Growing(), Growing()
        self._write(learner)

    def on_step_end(self, learner: AnyLearner) -> None:
        now = perf_counter()
        since = now - self._read
        # Reading waits for the engine. Points get rarer as the training gets longer: a plot shows a number of them.
        if (since >= 1.0 and since * POINTS >= learner.seconds) or not self._losses:
            self._losses.append((learner.step, float(learner.loss)))
            self._read = perf_counter()
        if now - self._written >= self.every_seconds:
            self._write(learner)

    def on_validation_end(self, learner: AnyLearner) -> None:
        values = {k: v for name, part in learner.validation.items() for k, v in flattened(name, part).items()}
        self._validations.append((learner.step, {name: v for name, v in values.items() if is_shown(name)}))

    def on_epoch_end(self, learner: AnyLearner) -> None:
        if perf_counter() - self._asked >= self.every_seconds:
            self._ask(learner)
        if perf_counter() - self._written >= _SHARE * self._cost:
            self._write(learner)

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        self._error = error

    def on_fit_end(self, learner: AnyLearner) -> None:
        self._has_ended = True
        if self._error is None:
            self._ask(learner)
        self._write(learner)

    def state(self) -> Mapping[str, Any]:
        return {"losses": self._losses, "validations": self._validations}

    def restore(self, state: Mapping[str, Any], /) -> None:
        losses = state.get("losses", ())
        if "steps" in state:  # of a former version
            losses = zip(state["steps"], losses, strict=False)
        self._losses = Growing((int(step), float(loss)) for step, loss in losses)
        self._validations = Growing((int(step), dict(values)) for step, values in state.get("validations", ()))

    # --- writing

    def _ask(self, learner: AnyLearner) -> None:
        if not self.samples or (self.wrong is None and not self._has_ended):
            return
        try:
            examples = mistakes(learner, self._show) if self.wrong is None else self.wrong(learner)
            self._wrong = [Sample(*example[:4]) for example in examples[: self.samples]]
            samples(self._wrong, self.classes)  # raises for what cannot be shown
        except Exception as error:
            self._wrong = []
            if self.wrong is not None or self._show is not None:
                name = "show" if self.wrong is None else "wrong"
                self._warn(learner, f"Report: {name}= failed, {type(error).__name__}: {error}")
        self._asked = perf_counter()

    def _write(self, learner: AnyLearner) -> None:
        begun = perf_counter()
        path = self.path or Path(learner.folder or ".") / "report.html"
        data = self.html(learner).encode("utf-8", "replace")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, durable=False, follow_links=self.path is not None) as file:
                file.write(data)
        except OSError as error:
            self._warn(learner, f"Report: {path} cannot be written ({error.strerror or error})")
        self._written = perf_counter()
        self._cost = self._written - begun

    def _warn(self, learner: AnyLearner, text: str) -> None:
        if text not in self._failures:  # warn only once
            self._failures.add(text)
            learner.warn(text)

    def html(self, learner: AnyLearner) -> str:
        """The HTML of the report, as it is now."""
        state, status = self._status(learner)
        path = self.path
        title = learner.folder.name if learner.folder is not None else path.stem if path is not None else "training"
        parts = [
            *(
                section(f"{name[:1].upper()}{name[1:]}", matrix(values, self.classes))
                for name, values in _confusions(learner).items()
            ),
            section("What went wrong", [samples(self._wrong, self.classes)]),
            section("Epochs", epochs_table(learner.history)),
            section("Events", [Table(["step", "event"], _events(learner.events), {1}, wrap=True)]),
            section("Settings", [facts((str(name), str(value)) for name, value in self._settings(learner).items())]),
            section("Model", _models(learner.model), folded=True),
            section("Environment", [facts(self._environment(learner).items())]),
        ]
        plots = [plot.embedded() for plot in self._plots(learner)]
        data = {"plots": plots, "running": state == "running", "every": self.every_seconds}
        return filled("phlox.train.observers.views", "report.html", {
            "title": escape(title), "state": state, "status": escape(status), "facts": _facts(learner),
            "style": style(), "body": "".join(parts), "data": embedded(data),
        })  # fmt: skip

    def _status(self, learner: AnyLearner) -> tuple[str, str]:
        if isinstance(self._error, KeyboardInterrupt):
            return "stopped", "interrupted"
        if self._error is not None:
            return "failed", f"failed: {type(self._error).__name__}: {self._error}"
        if not self._has_ended:
            return "running", "running"
        if learner.stopped and not is_complete(learner.plan, learner.epoch, learner.step):
            return "stopped", f"stopped: {learner.stopped}"
        return "finished", "finished"

    def _plots(self, learner: AnyLearner) -> Iterator[Plot]:
        history: list[EpochReport] = learner.history
        if len(self._losses) > 1:
            yield Plot("loss while training", "step", [Curve("train", *zip(*self._losses, strict=True))])
        if len(self._validations) > len(history) + 1:  # some validations were in the middle of an epoch
            steps = [step for step, _ in self._validations]
            for name in dict.fromkeys(name for _, values in self._validations for name in values):
                if not name.rpartition("/")[2].isdecimal():
                    y = [values.get(name, math.nan) for _, values in self._validations]
                    yield Plot(f"{name} by step", "step", [Curve("validation", steps, y)], True)
        yield from plots_of(history, self.classes)
        if history:
            epochs = [report.epoch for report in history]
            rates = [flattened("lr", report.lr) for report in history]
            names = sorted({key for by_group in rates for key in by_group})
            curves = [
                Curve(key.removeprefix("lr/"), epochs, [entry.get(key, math.nan) for entry in rates]) for key in names
            ]
            yield Plot("learning rate", "epoch", curves)
            yield Plot("seconds an epoch", "epoch", [Curve("seconds", epochs, [entry.seconds for entry in history])])
            yield Plot("rows a second", "epoch", [Curve("rows/s", epochs, [entry.rate for entry in history])])

    def _settings(self, learner: AnyLearner) -> dict[str, Any]:
        """The settings of the learner, and the values that were given."""
        own = {**learner.settings(), **learner.description}
        return {**{name: value for name, value in own.items() if value is not None}, **self.table}

    def _environment(self, learner: AnyLearner) -> dict[str, str]:
        facts = {
            "started": self._started, "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "Phlox": __version__, "device": str(learner.device), "Python": platform.python_version(),
            "NumPy": np.__version__, "system": platform.platform(), "processors": str(os.cpu_count() or "unknown"),
        }  # fmt: skip
        for module, name in (("jax", "JAX"), ("torch", "PyTorch")):
            if module in sys.modules:
                with contextlib.suppress(Exception):  # a package may be installed without metadata
                    facts[name] = str(import_module("importlib.metadata").version(module))
        return facts


def _facts(learner: AnyLearner) -> str:
    plan, facts = learner.plan, [f"updated {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"]
    of = "" if plan.epochs is None else f" of {plan.epochs:,}"
    facts.insert(0, f"epoch <b>{learner.epoch:,}</b>{of}, step <b>{learner.step:,}</b>")
    facts.insert(1, f"trained for <b>{clock(learner.seconds)}</b>")
    for name in dict.fromkeys(name for report in learner.history for name in flattened("", report.validation)):
        points = [(r.epoch, flattened("", r.validation).get(name)) for r in learner.history]
        best = best_point(name, [x for x, _ in points], [y for _, y in points])
        if best is not None and not name.rpartition("/")[2].isdecimal() and len(facts) < 8:
            shown = name.removeprefix("/")
            facts.insert(-1, f"best validation {escape(shown)} <b>{amount(shown, best[1])}</b> in epoch {best[0]:g}")
    return f"<p class=facts>{' · '.join(f'<span>{fact}</span>' for fact in facts)}</p>"


def _models(model: Any) -> list[Part]:
    """The tree of a module, or of several modules by name."""
    from phlox.module import Module
    from phlox.module.pages import page_of_module

    if isinstance(model, Module):
        return [page_of_module(model)]
    named = cast("Mapping[str, Any]", model)
    return [Page(name, parts=_models(part), is_open=True) for name, part in named.items() if isinstance(part, Module)]


def _events(events: Sequence[tuple[int, str]]) -> list[list[str]]:
    return [[f"{step:,}", str(text)] for step, text in reversed(events[-200:])]


def _confusions(learner: AnyLearner) -> dict[str, Any]:
    """The newest values of metrics that are confusion matrices: of the validation, or of the training."""
    from phlox.metrics import ConfusionMatrix

    metrics = getattr(learner, "metrics", {})
    metrics = cast("Mapping[str, Any]", getattr(metrics, "metrics", metrics))
    trained = learner.history[-1].train if learner.history else {}
    names = [name for name, metric in metrics.items() if isinstance(metric, ConfusionMatrix)]
    values = {name: learner.validation.get(name, trained.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}
