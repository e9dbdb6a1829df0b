"""`python -m benchmarks.gpu.part NAME FILE SECONDS [--dry] [--peak TFLOPS]`: one part, in a process of its own."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.gpu.command import PARTS, Task


def main() -> None:
    """Run the part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("file", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--peak", type=float)
    options = parser.parse_args()
    part = next(part for part in PARTS if part.name == options.name)
    module, _, function = part.function.partition(":")
    peak = None if options.peak is None else options.peak * 1e12
    task = Task(options.file, options.seconds, dry=options.dry, peak=peak, options=part.options)
    getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(task)


if __name__ == "__main__":
    main()
