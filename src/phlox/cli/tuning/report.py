"""The output of `phlox tune`: the table of measurements, and the settings to use."""

from __future__ import annotations

import shlex
import statistics

from phlox.backend.settings import FILE, Settings
from phlox.cli.tuning.search import Configuration, Search
from phlox.host.page import Page, Table
from phlox.host.text import count, printable, size

_HEADS = ("configuration", "ms/step", "ratio", "in rounds", "memory", "")


def line(one: Configuration) -> str:
    """One line about a configuration after its first measurement."""
    found = one.trials[0]
    where = f" on {found.device}" if found.device else ""
    said = one.problem or f"{_milliseconds(one.seconds())} ms{where}"
    return f"  {printable(one.name)}: {printable(said)}"


def results(search: Search) -> Page:
    """The table, fastest first, and the notes below it."""
    measured = [one for one in search.configurations if one.trials]
    measured.sort(key=Configuration.seconds)
    rows = [_row(one, search.present) for one in measured]
    step = search.step
    what = f"A step is a call of {step}" if step else "No step was detected; the time is that of the whole script"
    rounds = max(len(one.trials) for one in measured)
    head = f"{what}. The fastest were run {count(rounds, 'time')}, alternating."
    return Page("", parts=[head, Table(_HEADS, rows, {0, 5}, spare=(4, 3)), *[f"Note: {one}." for one in search.notes]])


def _row(one: Configuration, present: Configuration) -> list[str]:
    if one.problem:
        return [one.name, "", "", "", "", one.problem]
    ratios = one.ratios(present)
    peaks = [trial.peak_memory for trial in one.trials if trial.peak_memory is not None]
    return [
        one.name,
        _milliseconds(one.seconds()),
        _ratio(statistics.median(ratios)) if ratios else "",
        f"{_ratio(min(ratios))} to {_ratio(max(ratios))}" if len(ratios) > 1 and one is not present else "",
        size(max(peaks)) if peaks else "",
        f"different values: {one.differs}" if one.differs else "",
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def advice(search: Search, saved: str | None) -> str:
    """The settings to use."""
    best = search.best()
    if best is search.present:
        found = "Nothing was clearly faster than the present configuration; keep it."
        return f"{found}\nWrote the present settings to {saved}." if saved else found
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
    given = present.given()
    rows = [[key, *parts, str(given.get(key, "-"))] for key, parts in choices.items()]
    return Page("", parts=[Table(("setting", "variable", "values", "now"), rows, 4)]).text()
