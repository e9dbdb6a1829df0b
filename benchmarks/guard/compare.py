"""What moved since it was recorded, by how much, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from benchmarks.guard.figures import Entry, Section

TOLERANCE = 0.02
"""Counts are exact; this leaves room for changes that are worth less than a line in a file."""

RATIO_TOLERANCE = 1.25
"""A ratio has moved if its median lies this far beyond the recorded quartiles."""

REASONS = 6
"""How many parts are named, the largest changes first."""


class Verdict(Enum):
    """What a comparison says."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    NEW = "new"
    """Counted, but not recorded."""
    GONE = "gone"
    """Recorded, but not counted any more."""
    FAILED = "failed"
    """It does not run."""
    SKIPPED = "skipped"
    """Not comparable here."""


@dataclass(frozen=True)
class Finding:
    """About one figure of a path or program, or about the whole of it."""

    verdict: Verdict
    name: str
    what: str
    because: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict.value:>7}  {self.name}: {self.what}", *(f"{'':12}{b}" for b in self.because)])


def compare(recorded: Section | None, found: Section) -> list[Finding]:
    """Every entry that is recorded or was found."""
    findings = [Finding(Verdict.FAILED, name, how) for name, how in found.failed.items()]
    if recorded is None:
        return [*findings, Finding(Verdict.SKIPPED, found.key, "nothing is recorded for it")]
    for name, before, now in _paired(recorded, found, findings):
        if now is None:
            findings.append(Finding(Verdict.GONE, name, "recorded, but counted no more"))
        elif before is None:
            findings.append(Finding(Verdict.NEW, name, "counted, but not recorded yet"))
        elif before.versions != now.versions:
            findings.append(Finding(Verdict.SKIPPED, name, _other_versions(before, now)))
        else:
            findings += _figures(name, before, now)
    return findings


def _paired(
    recorded: Section, found: Section, findings: list[Finding]
) -> Iterator[tuple[str, Entry | None, Entry | None]]:
    """Each name with what was recorded and found; of what cannot be had here, only a finding."""
    for name in sorted(recorded.entries.keys() | found.entries.keys() | found.absent.keys()):
        if name in found.absent:
            findings.append(Finding(Verdict.SKIPPED, name, f"needs {found.absent[name]}, which is not installed"))
        elif name not in found.failed:
            yield name, recorded.entries.get(name), found.entries.get(name)


def _other_versions(before: Entry, now: Entry) -> str:
    packages = sorted(before.versions.keys() | now.versions.keys())
    other = [name for name in packages if before.versions.get(name) != now.versions.get(name)]
    had, have = (
        ", ".join(f"{name} {versions.get(name, '(none)')}" for name in other)
        for versions in (before.versions, now.versions)
    )
    return f"recorded with {had}; here is {have}"


def _figures(name: str, before: Entry, now: Entry) -> list[Finding]:
    findings: list[Finding] = []
    why = explain(before, now)
    for figure in sorted(before.figures.keys() | now.figures.keys()):
        old, new = before.figures.get(figure), now.figures.get(figure)
        if old is None or new is None:
            verdict = Verdict.GONE if new is None else Verdict.NEW
            findings.append(
                Finding(verdict, name, f"{figure} is {'counted no more' if new is None else 'not recorded'}")
            )
            continue
        verdict = _verdict(old, new)
        # One figure is explained by the parts, and the others of the same entry by the same ones.
        because = why if verdict is not Verdict.SAME else ()
        why = () if because else why
        findings.append(Finding(verdict, name, f"{figure} {_change(old, new)}", because))
    return findings


def _verdict(old: float, new: float) -> Verdict:
    if new > old * (1 + TOLERANCE):
        return Verdict.WORSE
    return Verdict.BETTER if new < old * (1 - TOLERANCE) else Verdict.SAME


def _change(old: float, new: float) -> str:
    if old == new:
        return f"{new:,.0f}"
    share = f" ({(new - old) / old:+.1%})" if old else ""
    return f"{old:,.0f} -> {new:,.0f}{share}"


def explain(before: Entry, now: Entry) -> tuple[str, ...]:
    """The parts that grew or shrank most: called more often, or longer."""
    changes: list[tuple[int, str]] = []
    for part in before.parts.keys() | now.parts.keys():
        (times, size), (times_now, size_now) = before.parts.get(part, (0, 0)), now.parts.get(part, (0, 0))
        if (times, size) == (times_now, size_now):
            continue
        if not times:
            how = f"new, {times_now} times"
        elif not times_now:
            how = f"gone, was there {times} times"
        elif times != times_now:
            how = f"{times} -> {times_now} times"
        else:
            how = "longer" if size_now > size else "shorter"
        changes.append((size_now - size, f"{part}: {size_now - size:+,} ({how})"))
    changes.sort(key=lambda change: (-abs(change[0]), change[1]))
    named = [text for _, text in changes[:REASONS]]
    rest = changes[REASONS:]
    if rest:
        named.append(f"and {len(rest)} more, {sum(size for size, _ in rest):+,} together")
    return tuple(named)


def compare_ratios(recorded: Section | None, found: Section) -> list[Finding]:
    """As `compare`, by the quartiles; what is worse may be noise."""
    findings = [Finding(Verdict.FAILED, name, how) for name, how in found.failed.items()]
    if recorded is None:
        return [*findings, Finding(Verdict.SKIPPED, found.key, "nothing is recorded for it")]
    for name, before, now in _paired(recorded, found, findings):
        if before is None or now is None:
            verdict = Verdict.GONE if now is None else Verdict.NEW
            findings.append(Finding(verdict, name, "measured no more" if now is None else "not recorded yet"))
        else:
            lower, upper = before.figures["lower"], before.figures["upper"]
            median = now.figures["median"]
            verdict = Verdict.SAME
            if median > upper * RATIO_TOLERANCE:
                verdict = Verdict.WORSE
            elif median < lower / RATIO_TOLERANCE:
                verdict = Verdict.BETTER
            findings.append(Finding(verdict, name, f"{median:.2f}, recorded {lower:.2f} to {upper:.2f}"))
    return findings
