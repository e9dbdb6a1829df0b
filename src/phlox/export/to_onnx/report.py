"""What an export tells: the file, its operators, and how far it is from the model."""

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


@dataclass(frozen=True, slots=True)
class OnnxReport:
    """A file that was written by `phlox.export.onnx`, and what was found when it was run."""

    path: Path
    files: tuple[Path, ...]
    """The model, and the file of its large weights."""
    size: int
    """The bytes of all files."""
    opset: int
    """The version of the operator set."""
    inputs: dict[str, str]
    """Element type and shape by name: `f32 [batch, 8]`."""
    outputs: dict[str, str]
    operators: dict[str, int]
    """How many nodes there are of each operator, the most frequent first."""
    runtime: str
    """What has run the file; empty if nothing has."""
    reference: str
    """With what the results were compared."""
    differences: tuple[Difference, ...]
    seconds: float

    @property
    def largest_difference(self) -> float:
        """The largest difference of an element of any output, at any of the sizes that were tried."""
        return max([one.absolute for one in self.differences], default=0.0)

    @property
    def largest_relative_difference(self) -> float:
        """The largest difference, relative to the largest element of its output."""
        return max([one.relative for one in self.differences], default=0.0)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        found = asdict(self)
        found["path"], found["files"] = str(self.path), [str(file) for file in self.files]
        return found | {"nodes": self.nodes, "largest_difference": self.largest_difference}

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.size:,} bytes, opset {self.opset}, {self.nodes} nodes, {self.seconds:.1f} s"]
        lines += [f"  input   {name}: {text}" for name, text in self.inputs.items()]
        lines += [f"  output  {name}: {text}" for name, text in self.outputs.items()]
        lines.append("  " + ", ".join(f"{count} {op}" for op, count in self.operators.items()))
        if not self.runtime:
            return "\n".join([*lines, "  not run"])
        lines.append(f"  run by {self.runtime}, compared with {self.reference}:")
        wide = max(len(one.output) for one in self.differences)
        for one in self.differences:
            sizes = ", ".join(f"{name}={size}" for name, size in one.sizes.items()) or "as given"
            lines.append(f"    {one.output:{wide}}  {sizes}: {one.absolute:.2g} ({one.relative:.2g} of the largest)")
        lines.append(f"  largest difference {self.largest_difference:.3g}")
        return "\n".join(lines)
