"""The report of an export to ONNX: the file, its operators, and how far its results are from the model's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phlox.export.report import Difference, ExportReport
from phlox.host.text import count

__all__ = ["Difference", "OnnxReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxReport(ExportReport):
    """The report of `phlox.export.onnx`: the file, and how far its results are from the model's."""

    files: tuple[Path, ...]
    """The file of the model and, if there is one, that of its large weights."""
    opset: int
    """The version of the operator set."""
    operators: dict[str, int]
    """The number of nodes of each operator, the most frequent first."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        values = ExportReport.to_dict(self)
        return values | {"files": [str(file) for file in self.files], "nodes": self.nodes}

    def _about(self) -> tuple[list[str], str]:
        content = ", ".join(f"{number} {operator}" for operator, number in self.operators.items())
        return [f"opset {self.opset}", count(self.nodes, "node")], content
