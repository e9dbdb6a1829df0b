"""The process in which `phlox tune` runs a program once: `python -m phlox.cli.tuning.child REPORT SECONDS STEP FILE`.

It runs FILE, with the arguments after it, as `python FILE ...` would. It times the steps, writes the result to REPORT,
and exits.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

from phlox.cli.tuning.watch import Seen, Watch

FAILED = 3
"""The exit status if the program raised an error, which is the last line on standard error."""


def main(arguments: list[str]) -> None:
    """Run the program of the command line."""
    report, seconds, only, script, *rest = arguments
    begun = perf_counter()

    def finish(name: str | None, seen: Seen | None, *, whole: bool) -> None:
        found: dict[str, Any] = {
            "step": name,
            "whole": whole,  # whether the program ran to its end
            "seconds": perf_counter() - begun,
            "asked_default": watch.asked,
            "peak_memory": peak_memory(),
        }
        if seen is not None:
            found |= {"windows": seen.windows, "values": seen.values, "device": seen.device, "calls": seen.calls}
        part = Path(f"{report}.part")
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(report)

    def enough(name: str, seen: Seen) -> None:
        finish(name, seen, whole=False)
        # Nothing more of the program runs, not even code at its end, which might save a model.
        os._exit(0)

    watch = Watch(float(seconds), only or None, enough)
    watch.install()
    sys.argv = [script, *rest]
    sys.path.insert(0, str(Path(script).absolute().parent))
    begun = perf_counter()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        if ending.code not in (None, 0):
            print(f"exit: {ending.code}", file=sys.stderr, flush=True)
            os._exit(FAILED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FAILED)
    found = watch.step()
    finish(*(found or (None, None)), whole=True)


def peak_memory() -> int | None:
    """The peak resident memory of this process in bytes, if the system reports it."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
