"""The output of `phlox tune`: the table of measurements, and the settings to use."""

from __future__ import annotations

import shlex
import statistics

from phlox.backend.settings import FILE, Settings
from phlox.cli.text import count_text, printable, size_text, table
from phlox.cli.tuning.search import Configuration, Search

_HEADS = ("configuration", "ms/step", "ratio", "in rounds", "memory", "")


def line(one: Configuration) -> str:
    """One line about a configuration after its first measurement."""
    found = one.trials[0]
    where = f" on {found.device}" if found.device else ""
    said = one.problem or f"{_milliseconds(one.seconds())} ms{where}"
    return f"  {printable(one.name)}: {printable(said)}"


def results(search: Search, width: int | None) -> str:
    """The table, fastest first, and the notes below it."""
    measured = [one for one in search.configurations if one.trials]
    measured.sort(key=Configuration.seconds)
    rows = [_row(one, search.present) for one in measured]
    step = search.step
    what = f"A step is a call of {step}" if step else "No step was detected; the time is that of the whole script"
    rounds = max(len(one.trials) for one in measured)
    head = f"{what}. The fastest were run {count_text(rounds, 'time')}, alternating."
    shown = table(rows, _HEADS, right=(1, 2, 3, 4), spare=(4, 3), width=width)
    notes = [f"Note: {printable(note)}." for note in search.notes]
    return "\n".join([head, "", shown, *(["", *notes] if notes else [])])


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
        size_text(max(peaks)) if peaks else "",
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
    return table(rows, ("setting", "variable", "values", "now"))
