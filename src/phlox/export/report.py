"""What an export tells: the file, and how far it is from the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Difference:
    """One output, at one choice of sizes."""

    sizes: dict[str, int]
    """The sizes of the open axes."""
    output: str
    absolute: float
    """The largest difference of an element."""
    relative: float
    """That, divided by the largest element of the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """A file that an export wrote, and what was found when it was run."""

    path: Path
    size: int
    """The bytes of all files."""
    inputs: dict[str, str]
    """Element type and shape by name: `f32 [batch, 8]`."""
    outputs: dict[str, str]
    runtime: str
    """What has run the file; empty if nothing has."""
    reference: str
    """With what the results were compared."""
    differences: tuple[Difference, ...]
    seconds: float
    constraints: tuple[str, ...] = ()
    """What the open axes must satisfy; the file refuses other sizes."""

    @property
    def largest_difference(self) -> float:
        """The largest difference of an element of any output, at any of the sizes that were tried."""
        return max([one.absolute for one in self.differences], default=0.0)

    @property
    def largest_relative_difference(self) -> float:
        """The largest difference, relative to the largest element of its output."""
        return max([one.relative for one in self.differences], default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return asdict(self) | {"path": str(self.path), "largest_difference": self.largest_difference}

    def _about(self) -> list[str]:
        """What it says of the file itself."""
        return [f"{self.path}: {self.size:,} bytes, {self.seconds:.1f} s"]

    def __str__(self) -> str:
        head, *more = self._about()
        lines = [head]
        lines += [f"  input   {name}: {text}" for name, text in self.inputs.items()]
        lines += [f"  output  {name}: {text}" for name, text in self.outputs.items()]
        lines += [*more, *[f"  only where {one}" for one in self.constraints]]
        if not self.runtime:
            return "\n".join([*lines, "  not run"])
        lines.append(f"  run by {self.runtime}, compared with {self.reference}:")
        wide = max(len(one.output) for one in self.differences)
        for one in self.differences:
            sizes = ", ".join(f"{name}={size}" for name, size in one.sizes.items()) or "as given"
            lines.append(f"    {one.output:{wide}}  {sizes}: {one.absolute:.2g} ({one.relative:.2g} of the largest)")
        lines.append(f"  largest difference {self.largest_difference:.3g}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from phlox.export.html import html_of_report

        return html_of_report(self)
