"""`Report`: the result of the conformance suite on a backend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Failure:
    """One failed comparison."""

    part: str
    """The part of the suite: "values", "gradients", ..."""
    operation: str
    """The row of the table, or the section of the edge cases."""
    message: str
    """The arguments, the result, and the expected result."""

    def __str__(self) -> str:
        return f"{self.part}, {self.operation}: {self.message}"


@dataclass
class Report:
    """The passed, failed and skipped comparisons, with reasons. `print` it for a summary.

    >>> report = Report("NumPy()", {"native": 3, "derived": 2, "unsupported": 0})
    >>> report.passed["values"] += 4
    >>> print(report)
    NumPy(): 4 comparisons passed (4 values), none failed.
    Operations: 3 native, 2 derived, 0 unsupported.
    """

    backend: str
    provisions: dict[str, int]
    """The numbers of native, derived and unsupported operations."""
    passed: Counter[str] = field(default_factory=lambda: Counter[str]())
    """The number of passed comparisons, by part of the suite."""
    failures: list[Failure] = field(default_factory=lambda: list[Failure]())
    left_out: Counter[tuple[str, str]] = field(default_factory=lambda: Counter[tuple[str, str]]())
    """The number of skipped comparisons, by part of the suite and reason."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def check(self) -> None:
        """Raise `AssertionError` with the summary if something failed."""
        if self.failures:
            raise AssertionError(str(self))

    def summary(self, most: int = 20) -> str:
        """A short text, with at most `most` failures in full."""
        total = sum(self.passed.values())
        parts = ", ".join(f"{count} {part}" for part, count in self.passed.items())
        failed = f"{len(self.failures)} failed" if self.failures else "none failed"
        lines = [f"{self.backend}: {total} comparisons passed ({parts or 'there were none'}), {failed}."]
        lines.append("Operations: " + ", ".join(f"{count} {name}" for name, count in self.provisions.items()) + ".")
        lines += [
            f"Left out: {reason}: {count} {part} not compared." for (part, reason), count in self.left_out.items()
        ]
        lines += [f"FAILED {failure}" for failure in self.failures[:most]]
        if len(self.failures) > most:
            others = Counter(failure.operation for failure in self.failures[most:])
            named = ", ".join(f"{name} ({count})" for name, count in others.most_common(most))
            lines.append(f"... and {len(self.failures) - most} more: {named}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()
