"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those named, and print one table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from pathlib import Path

NAMES = ("eager", "jitted_call", "demo_step")


def main() -> int:
    """Run and print; with `--out FILE` write the table there too."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which (all)")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    options = parser.parse_args()

    from benchmarks.harness import Ratio, table

    rows: list[Ratio] = []
    for name in options.names or NAMES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    text = table(rows)
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores; medians of interleaved turns\n\n{text}")
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
