"""Reports of compiled calls in notebooks."""

from __future__ import annotations

from collections.abc import Callable

from phlox.host.html import Cell, header, paragraph, representation, table
from phlox.host.units import amount, size
from phlox.transform.compile.report import ExecutableReport


def html_of_report(report: ExecutableReport) -> str:
    """The representation of the cost of a compiled call."""
    return representation(report, _report)


def _report(report: ExecutableReport) -> str:
    several = f"each of {report.devices} devices" if report.devices > 1 else "one device"
    head = header(report.function, f"one call on {report.backend}", several, f"by {report.source}")
    whole = report.memory or 0
    rows = [
        [Cell("FLOPs"), Cell(_known(report.flops, amount))],
        [Cell("bytes accessed"), Cell(_known(report.bytes_accessed, size))],
        [Cell("memory"), Cell(_known(report.memory, size))],
    ]
    for name in ("arguments", "outputs", "aliased", "temporaries"):
        part: int | None = getattr(report, name)
        bar = min(part / whole, 1.0) if part and whole else None
        rows.append([Cell(name, indent=1), Cell(_known(part, size), bar=bar)])
    collectives = report.collectives
    if not collectives:
        rows.append([Cell("collectives"), Cell("unknown" if collectives is None else "none")])
    costs = table(["", "one call"], rows, left=1)
    sent = [
        [Cell(kind, code=True), f"{one.count:,}", size(one.payload), size(one.sent)]
        for kind, one in sorted((collectives or {}).items())
    ]
    loops = report.analysis.loops_of_unknown_length
    note = f"{loops} {'loop' if loops == 1 else 'loops'} of unknown length: counted as one iteration" if loops else ""
    return f"<div>{head}</div>{costs}{table(['collective', 'count', 'results', 'sent'], sent, left=1)}{paragraph(note)}"


def _known(number: int | None, text: Callable[[int], str]) -> str:
    return "unknown" if number is None else text(number)
