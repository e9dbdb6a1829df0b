# pyright: standard
"""The command of `phlox.testing.programs`."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Any, cast

from phlox.backend import Backend, load_backend
from phlox.testing.programs import WAYS, Program, differences, least_margin, merged, random_program, shrunk


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("element", choices=("f16", "bf16", "f32", "f64"))
    parser.add_argument("--count", type=int, default=100, help="how many programs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first (%(default)s)")
    parser.add_argument("--length", type=int, default=10, help="the lines of each (%(default)s)")
    parser.add_argument("--way", choices=WAYS, default="gradient", help="how a program is called (%(default)s)")
    parser.add_argument("--together", type=int, default=1, help="how many are compiled as one (%(default)s)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    options = parser.parse_args()
    backend: Backend = cast("Any", load_backend(options.backend))(float=options.element)

    def differences_of(program: Program) -> list[str]:
        return differences(program, backend, options.way, compiled=not options.eager)

    wrong, last = 0, options.seed + options.count
    for first in range(options.seed, last, options.together):
        seeds = range(first, min(first + options.together, last))
        programs = {seed: random_program(seed, options.length, least_margin(backend)) for seed in seeds}
        with suppress(Exception):  # the loop below finds the program that raised
            if len(seeds) > 1 and not differences_of(merged([*programs.values()])):
                continue
        for seed, program in programs.items():
            try:
                lines = differences_of(program)
                if not lines:
                    continue
                program = shrunk(program, lambda smaller: bool(differences_of(smaller)))
                lines = differences_of(program)
            except Exception as error:
                lines = [f"{type(error).__name__}: {error}"]
            wrong += 1
            sys.stdout.write(f"seed {seed}: {'; '.join(lines)}\n{program}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{wrong} of {options.count} programs differ\n")


if __name__ == "__main__":
    main()
