"""The table of the operations that each backend supports, for `phlox backends` and the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.catalogue import families, provision
from phlox.host.page import Cell, Page, Table

SIGNS = {"native": "native", "derived": "derived", "unsupported": "-"}
WIDE = "f32"
"""Marks an operation that a half-precision backend computes in single precision."""


@dataclass(frozen=True)
class SupportTable:
    """How each backend implements each operation; None in place of a backend whose engine is not installed."""

    backends: dict[str, Backend | None]
    """By name."""

    def cell(self, operation: str, name: str) -> str:
        """How one backend implements one operation, as a word or two."""
        backend = self.backends[name]
        if backend is None:
            return "not installed"
        kind = provision(backend, operation)
        widened = kind != "unsupported" and hasattr(vars(backend).get(operation), "widened")
        return f"{SIGNS[kind]}, {WIDE}" if widened else SIGNS[kind]

    def summary(self) -> list[str]:
        """A line for each backend: the numbers of its operations, by how they are implemented."""
        operations = [name for names in families().values() for name in names]
        lines: list[str] = []
        for name, backend in self.backends.items():
            if backend is None:
                lines.append(f"{name}: its engine is not installed")
                continue
            count = Counter(provision(backend, operation) for operation in operations)
            missing = f", {count['unsupported']} unsupported" if count["unsupported"] else ""
            lines.append(
                f"{backend!r}: {len(operations)} operations, "
                f"{count['native']} native, {count['derived']} derived{missing}"
            )
        return lines

    def text(self) -> str:
        """The table as columns for a terminal, by family."""
        columns = list(self.backends)
        rows: list[Sequence[str | Cell]] = []
        for title, names in families().items():
            rows += [[], [title]]
            rows += [[Cell(name, indent=1), *[self.cell(name, column) for column in columns]] for name in names]
        return Page("", parts=[Table(["", *columns], rows, len(columns) + 1), *self.summary()]).text()

    def markdown(self) -> str:
        """The table in Markdown, one for each family."""
        columns = list(self.backends)
        lines = [f"- {line}" for line in self.summary()]
        for title, names in families().items():
            lines += ["", f"### {title[0].upper()}{title[1:]}", ""]
            lines += ["| operation | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
            lines += [f"| `{name}` | " + " | ".join(self.cell(name, key) for key in columns) + " |" for name in names]
        return "\n".join(lines)
