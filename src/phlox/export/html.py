"""Reports of exports in notebooks."""

from __future__ import annotations

from phlox.export.report import ExportReport
from phlox.host.html import Cell, facts, fold, header, paragraph, representation, table
from phlox.host.units import duration
from phlox.host.units import size as bytes_text


def html_of_report(report: ExportReport) -> str:
    """The HTML of an export's report."""
    return representation(report, _report)


def _report(report: ExportReport) -> str:
    badges = [("run and compared", "good")] if report.runtime else [("not run", "bad")]
    said = (report.path.name, bytes_text(report.size), duration(report.seconds))
    head = header(type(report).__name__, *said, badges=badges)
    pairs = [("file", str(report.path))]
    if report.runtime:
        compared = f"{report.largest_difference:.3g} ({report.largest_relative_difference:.3g} of the largest element)"
        pairs += [("run by", report.runtime), ("compared with", report.reference), ("largest difference", compared)]
    rows = [["input", Cell(name, code=True), text] for name, text in report.inputs.items()]
    rows += [["output", Cell(name, code=True), text] for name, text in report.outputs.items()]
    limits = "".join(paragraph(f"only where {one}") for one in report.constraints)
    limits += "".join(paragraph(one) for one in report.remarks)
    found = [
        [
            Cell(one.output, code=True),
            ", ".join(f"{name}={size}" for name, size in one.sizes.items()) or "as given",
            f"{one.absolute:.2g}",
            f"{one.relative:.2g}",
        ]
        for one in report.differences
    ]
    heads = ["output", "sizes", "largest difference", "of the largest element"]
    differences = fold(f"comparisons: {len(found)}", table(heads, found, left=2)) if found else ""
    operators: dict[str, int] = getattr(report, "operators", {})
    counts = [[Cell(name, code=True), f"{count:,}"] for name, count in operators.items()]
    nodes = fold(f"nodes: {sum(operators.values()):,}", table(["operator", "count"], counts)) if counts else ""
    values = table(["", "name", "type and shape"], rows, left=3)
    return f"<div>{head}</div>{facts(pairs)}{values}{limits}{differences}{nodes}"
