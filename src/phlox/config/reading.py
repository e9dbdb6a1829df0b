"""One pass over the values of a config that collects all errors, so that they are reported together."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from phlox.errors import ConfigError

INVALID: Final[Any] = object()
"""The result of reading a wrong value, after its problem was added."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


class Problem(NamedTuple):
    """An error at a dotted `path`; `unfit` if the value has an entirely different type than expected."""

    path: str
    message: str
    unfit: bool


@dataclass(slots=True)
class Reading:
    """The problems found so far, and the mode of reading.

    `stored` values come from JSON: there a path is a string and a nested config an object.
    `trusting` skips the check that a value is read back unchanged, because that check is itself a reading.
    """

    stored: bool = False
    trusting: bool = False
    problems: list[Problem] = field(default_factory=list[Problem])

    def problem(self, path: str, message: str, *, unfit: bool = False) -> Any:
        """Add a problem; returns INVALID."""
        self.problems.append(Problem(path, message, unfit))
        return INVALID

    def unfit(self, path: str, expected: str, value: object, remark: str = "") -> Any:
        """Add the problem that `value` has another type than `expected`; returns INVALID."""
        return self.problem(path, f"expected {expected}, got {describe(value)}{remark}", unfit=True)

    def fork(self) -> Reading:
        """A new reading in the same mode without problems, for a trial."""
        return Reading(self.stored, self.trusting)

    def raise_problems(self, subject: str) -> None:
        """Raise `ConfigError` with all problems, if there are any."""
        lines = [f"{path}: {message}" if path else message for path, message, _ in self.problems]
        if len(lines) == 1:
            raise ConfigError(f"{subject}: {lines[0]}")
        if lines:
            indented = (line.replace("\n", "\n  ") for line in lines)
            raise ConfigError(f"{subject} has {len(lines)} errors:\n  " + "\n  ".join(indented))


def join(path: str, key: object) -> str:
    """The path of `key` under `path`."""
    return f"{path}.{key}" if path else str(key)


def describe(value: object) -> str:
    """The type of a value and its shortened repr.

    >>> describe("high")
    "str 'high'"
    """
    return "None" if value is None else f"{type(value).__name__} {_short.repr(value)}"


def nearest(name: object, names: Iterable[str]) -> str | None:
    """The one of `names` that is closest to `name`, if one is close.

    >>> nearest("d_inputt", ["d_input", "dropout"])
    'd_input'
    """
    from difflib import get_close_matches  # imported only after an error

    return next(iter(get_close_matches(str(name), list(names), n=1)), None)


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """A remark with the closest of `names`; empty if none is close."""
    near = nearest(name, names)
    return f"; did you mean `{near}`?" if near is not None else ""
