"""The report of an export: the file, and how far its results are from the model's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phlox.host.page import Cell, Page, Part, Table
from phlox.host.text import Report, duration, size


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one output, at one choice of sizes."""

    sizes: dict[str, int]
    """The sizes of the open axes."""
    output: str
    """The name of the output."""
    absolute: float
    """The largest difference of an element."""
    relative: float
    """The absolute difference, divided by the largest element of the model's own result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(Report):
    """The report of an export: the file, and how far its results are from the model's."""

    path: Path
    """The path of the file."""
    size: int
    """The bytes of all files."""
    inputs: dict[str, str]
    """The element type and shape of each input by name, such as `f32 [batch, 8]`."""
    outputs: dict[str, str]
    """The element type and shape of each output by name."""
    runtime: str
    """The runtime that ran the file; empty if it was not run."""
    reference: str
    """The model and backend of the expected results, such as `the model on NumPy(float='f64')`."""
    differences: tuple[Difference, ...]
    """The difference of each output, for each of the sizes."""
    seconds: float
    """The seconds that the export took."""
    constraints: tuple[str, ...] = ()
    """The conditions on the sizes of open axes; the file refuses other sizes."""
    tried: tuple[dict[str, int], ...] = ()
    """Sizes at borders (0, 1, 2, one more or less than another) at which file and model agree, too."""
    remarks: tuple[str, ...] = ()
    """Other differences between the file and the model, such as different results for NaN or infinities."""

    @property
    def largest_difference(self) -> float:
        """The largest difference of an element of any output, at any of the sizes that were tried."""
        return max([difference.absolute for difference in self.differences], default=0.0)

    @property
    def largest_relative_difference(self) -> float:
        """The largest difference, relative to the largest element of its output."""
        return max([difference.relative for difference in self.differences], default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"path": str(self.path), "largest_difference": self.largest_difference}

    def _tried(self) -> list[str]:
        """The sizes at borders, by axis."""
        base = self.differences[0].sizes if self.differences else {}
        sizes_by_axis = {name: sorted({tried[name] for tried in self.tried} - {size}) for name, size in base.items()}
        return [f"{name} = {', '.join(map(str, sizes))}" for name, sizes in sizes_by_axis.items() if sizes]

    def _about(self) -> tuple[list[str], str]:
        """Parts of the first line about the file, and a line about its content."""
        return [], ""

    def _page(self) -> Page:
        said, content = self._about()
        ends = [["input", Cell(name, code=True), text] for name, text in self.inputs.items()]
        ends += [["output", Cell(name, code=True), text] for name, text in self.outputs.items()]
        parts: list[Part] = [Table(["", "", ""], ends, 3), content, *[f"only where {it}" for it in self.constraints]]
        if self.runtime:
            rows = [
                [
                    Cell(difference.output, code=True),
                    ", ".join(f"{name}={size}" for name, size in difference.sizes.items()) or "as given",
                    f"{difference.absolute:.2g}",
                    f"{difference.relative:.2g}",
                ]
                for difference in self.differences
            ]
            parts += [
                f"run by {self.runtime}, compared with {self.reference}:",
                Table(["output", "sizes", "largest difference", "of the largest element"], rows, 2),
                f"largest difference {self.largest_difference:.3g}",
                *[f"the same at {sizes}" for sizes in self._tried()],
                *self.remarks,
            ]
        badge = ("run and compared", "good") if self.runtime else ("not run", "bad")
        return Page(str(self.path), [size(self.size), *said, duration(self.seconds)], parts, [badge])
