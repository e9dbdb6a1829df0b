"""`phlox verify`: does a saved model predict what it did when it was trained?"""

from __future__ import annotations

import argparse
import sys

from phlox.models import DigitsRun


def verify(options: argparse.Namespace) -> int:
    """Carry out the command, and return the exit status."""
    run = DigitsRun(options.run, options.device)
    found = run.verify()
    ties = ", the others are ties within the rounding" if found.ok and found.agreeing < found.images else ""
    print(f"model built from config and record on {run.device}; no initializer ran")
    print(f"{found.agreeing} of {found.images} predictions agree{ties}")
    print(f"largest difference in probability: {found.largest_difference:.1e}")
    if found.ok:
        return 0
    print(
        f"phlox: {run.path}: the predictions differ by more than half precision explains; "
        "config, record and predictions are not of one run",
        file=sys.stderr,
    )
    return 1
