"""What a command of `phlox` is: its arguments, and the function that carries it out."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

DONE, DIFFERENT, MISUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, in a file of its name; what it is called and a line about it are in `phlox.cli.main.COMMANDS`."""

    description: str
    """At the top of its help."""
    arguments: Callable[[argparse.ArgumentParser], None]
    """Declares its arguments."""
    run: Callable[[argparse.Namespace], int]
    """Carries it out and returns the exit status. What it raises becomes a sentence, see `phlox.cli.main.main`."""
    intermixed: bool = False
    """Whether options may stand among several positional arguments."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line, without the usage before it.

    `module`: of the `COMMAND` whose arguments it reads, imported only then: what another command needs costs nothing.
    """

    module: str | None = None

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] -- the declared one is overloaded
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse does, but that a command knows all of its arguments."""
        if self.module is None:
            return super().parse_known_args(args, namespace)
        command: Command = importlib.import_module(self.module).COMMAND
        self.module = None  # so that what argparse calls from here on is its own
        self.description = command.description
        self.set_defaults(run=command.run)
        command.arguments(self)
        parse = self.parse_known_intermixed_args if command.intermixed else super().parse_known_args
        found, rest = parse(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def whole(text: str) -> int:
    """A whole number from 0, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)
