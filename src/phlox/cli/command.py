"""`Command`: the arguments of a `phlox` command, and the function that runs it."""

from __future__ import annotations

import argparse
import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from phlox.errors import PhloxError
from phlox.other_names import remark

DONE, DIFFERENT, MISUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""
_UNKNOWN = re.compile(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)")


@dataclass(frozen=True, slots=True)
class Command:
    """One command, in a file of its name. `phlox.cli.main.COMMANDS` has its name and one line about it."""

    description: str
    """The text at the top of its help."""
    arguments: Callable[[argparse.ArgumentParser], None]
    """Declares its arguments."""
    run: Callable[[argparse.Namespace], int]
    """Runs the command and returns the exit status. An error becomes one sentence, see `phlox.cli.main.main`."""
    intermixed: bool = False
    """Whether options may appear between several positional arguments."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line, without the usage before it.

    `module`: the module of the `COMMAND` whose arguments it parses. It is imported only then, so the imports of other
    commands cost nothing.
    """

    module: str | None = None

    def error(self, message: str) -> NoReturn:
        if (unknown := _UNKNOWN.search(message)) is not None:
            name, known = unknown.group(1), re.findall(r"[a-z-]+", unknown.group(2))
            hint = remark(name, "command", known)
            self.exit(MISUSED, f"{self.prog}: there is no command {name!r}{hint}; all commands: {self.prog} --help\n")
        self.exit(MISUSED, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] -- the declared one is overloaded
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As in argparse, but an argument that the command does not know is an error."""
        if self.module is None:
            return super().parse_known_args(args, namespace)
        command: Command = importlib.import_module(self.module).COMMAND
        self.module = None  # argparse calls this method again, and must then get its own behaviour
        self.description = command.description
        self.set_defaults(run=command.run)
        command.arguments(self)
        parse = self.parse_known_intermixed_args if command.intermixed else super().parse_known_args
        options, unknown = parse(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def whole(text: str) -> int:
    """A non-negative integer, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)


def count(text: str) -> int:
    """A positive integer, as the type of an argument."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """A positive number of seconds, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return number


def sentence_of(error: PhloxError | OSError) -> str:
    """The message of an error, without the number at the beginning of an `OSError`."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: there is no such file; check the path"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
