"""The output of `phlox tune`: the table of measurements, and the settings to use."""

from __future__ import annotations

import shlex
import statistics

from phlox.backend.settings import FILE, Settings
from phlox.cli.tuning.search import Configuration, Search
from phlox.host.page import Page, Table
from phlox.host.text import count, printable, size

_HEADS = ("configuration", "ms/step", "ratio", "in rounds", "memory", "")


def line(configuration: Configuration) -> str:
    """One line about a configuration after its first measurement."""
    trial = configuration.trials[0]
    where = f" on {trial.device}" if trial.device else ""
    outcome = configuration.problem or f"{_milliseconds(configuration.seconds())} ms{where}"
    return f"  {printable(configuration.name)}: {printable(outcome)}"


def results(search: Search) -> Page:
    """The table, fastest first, and the notes below it."""
    measured = [c for c in search.configurations if c.trials]
    measured.sort(key=Configuration.seconds)
    rows = [_row(c, search.present) for c in measured]
    step = search.step
    meaning = f"A step is a call of {step}" if step else "No step was detected; the time is that of the whole script"
    rounds = max(len(c.trials) for c in measured)
    head = f"{meaning}. The fastest were run {count(rounds, 'time')}, alternating."
    return Page("", parts=[head, Table(_HEADS, rows, {0, 5}, spare=(4, 3)), *[f"Note: {n}." for n in search.notes]])


def _row(configuration: Configuration, present: Configuration) -> list[str]:
    if configuration.problem:
        return [configuration.name, "", "", "", "", configuration.problem]
    ratios = configuration.ratios(present)
    peaks = [trial.peak_memory for trial in configuration.trials if trial.peak_memory is not None]
    return [
        configuration.name,
        _milliseconds(configuration.seconds()),
        _ratio(statistics.median(ratios)) if ratios else "",
        f"{_ratio(min(ratios))} to {_ratio(max(ratios))}" if len(ratios) > 1 and configuration is not present else "",
        size(max(peaks)) if peaks else "",
        f"different values: {configuration.differs}" if configuration.differs else "",
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def advice(search: Search, saved: str | None) -> str:
    """The settings to use."""
    best = search.best()
    if best is search.present:
        text = "Nothing was clearly faster than the present configuration; keep it."
        return f"{text}\nWrote the present settings to {saved}." if saved else text
    gain = f", {_ratio(statistics.median(best.ratios(search.present)))} of the present time"
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in best.settings.variables().items())
    lines = [f"Fastest: {printable(best.name)}{gain}. To use it, set", f"  {variables}"]
    if saved:
        lines += [f"or use the file that was written: {FILE}={shlex.quote(saved)}"]
    return "\n".join(lines)


def remarks(search: Search) -> dict[str, object]:
    """How the settings were measured, for the settings file."""
    best = search.best()
    return {
        "script": search.program.script,
        "step": search.step,
        "ms_a_step": round(best.seconds() * 1e3, 4),
        "ratio": round(statistics.median(best.ratios(search.present)), 4),
    }


def listing(present: Settings, choices: dict[str, list[str]]) -> str:
    """All settings, and their present values."""
    values = present.given()
    rows = [[key, *parts, str(values.get(key, "-"))] for key, parts in choices.items()]
    return Page("", parts=[Table(("setting", "variable", "values", "now"), rows, 4)]).text()
