"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those named, and print one table."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = (
    "eager",
    "tiny_gpt",
    "composites",
    "operations",
    "jitted_call",
    "demo_step",
    "mlp_step",
    "gpt_step",
    "torch_compile",
    "records",
    "record_memory",
    "first_prediction",
    "optimizer_update",
)

ON_ONE_THREAD = {"eager", "tiny_gpt", "torch_compile"}
"""Of arrays too small for threads, on either side."""


def main() -> int:
    """Run each in a process of its own and print; with `--out FILE` write the table there too."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which (all)")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    parser.add_argument("--quick", action="store_true", help="small sizes, where a benchmark has them")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()

    from benchmarks.harness import Ratio, table

    if options.rows is not None:
        rows = importlib.import_module(f"benchmarks.{options.names[0]}").run()
        options.rows.write_text(json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8")
        return 0
    quick = {"PHLOX_BENCHMARKS_QUICK": "1"} if options.quick else {}
    found: list[Ratio] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or NAMES:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name in ON_ONE_THREAD else ()
            file = Path(folder) / name
            command = [sys.executable, "-m", "benchmarks", name, "--rows", str(file)]
            subprocess.run(command, check=True, env={**os.environ, **dict.fromkeys(threads, "1"), **quick})
            found += [Ratio(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    text = table(found)
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores; medians of interleaved turns\n\n{text}")
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
