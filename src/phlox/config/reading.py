"""One pass over the values of a config that notes everything wrong with them, so that all is reported at once."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from phlox.errors import ConfigError

INVALID: Final[Any] = object()
"""What reading a wrong value gives; the problem has been noted by then."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


class Problem(NamedTuple):
    """Something wrong at a dotted `path`; `unfit` where the value is altogether of another kind than expected."""

    path: str
    message: str
    unfit: bool


@dataclass(slots=True)
class Reading:
    """The problems found so far, and how to read.

    `stored` values come from JSON: there a path is text and a nested config an object.
    `trusting` skips the question whether a value will be read back as it is, which is itself answered by a reading.
    """

    stored: bool = False
    trusting: bool = False
    problems: list[Problem] = field(default_factory=list[Problem])

    def problem(self, path: str, message: str, *, unfit: bool = False) -> Any:
        """Note a problem; gives INVALID."""
        self.problems.append(Problem(path, message, unfit))
        return INVALID

    def unfit(self, path: str, expected: str, value: object, remark: str = "") -> Any:
        """Note that `value` is of another kind than `expected`; gives INVALID."""
        return self.problem(path, f"expected {expected}, got {describe(value)}{remark}", unfit=True)

    def fork(self) -> Reading:
        """Begin a reading of the same manner without problems, to try something out."""
        return Reading(self.stored, self.trusting)

    def raise_problems(self, subject: str) -> None:
        """Raise `ConfigError` with all problems of `subject`, if there are any."""
        lines = [f"{path}: {message}" if path else message for path, message, _ in self.problems]
        if len(lines) == 1:
            raise ConfigError(f"{subject}: {lines[0]}")
        if lines:
            indented = (line.replace("\n", "\n  ") for line in lines)
            raise ConfigError(f"{subject} has {len(lines)} errors:\n  " + "\n  ".join(indented))


def join(path: str, key: object) -> str:
    """Give the path of what lies under `key` at `path`."""
    return f"{path}.{key}" if path else str(key)


def describe(value: object) -> str:
    """Say what came: its type and, shortened, itself.

    >>> describe("high")
    "str 'high'"
    """
    return "None" if value is None else f"{type(value).__name__} {_short.repr(value)}"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Give the known name that `name` is probably meant to be, if any.

    >>> nearest("d_inputt", ["d_input", "dropout"])
    'd_input'
    """
    from difflib import get_close_matches  # only for what is wrong

    return next(iter(get_close_matches(str(name), list(known), n=1)), None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Give a remark on the nearest known name; empty where none is near."""
    near = nearest(name, known)
    return f"; did you mean `{near}`?" if near is not None else ""
